"""Mathematical equality with Math-Verify and sympy; runs in a worker process that is killed at its deadline."""

import logging
import re
import resource
from fractions import Fraction
from typing import Any

import sympy
from latex2sympy2_extended import latex2sympy  # type: ignore[import-untyped]
from latex2sympy2_extended.latex2sympy2 import ConversionConfig  # type: ignore[import-untyped]
from latex2sympy2_extended.math_normalization import NormalizationConfig  # type: ignore[import-untyped]
from math_verify import verify
from math_verify.grader import should_treat_as_complex

from quatrain.rewards.math_sets import CLOSE, PRECISION, real_roots, same_on_the_reals, same_sets, solution_set
from quatrain.rewards.math_text import clean, rational, rounded_from, same_rational, squeezed

MEMORY_BYTES = 4 << 30  # of a worker's address space; beyond it an answer ends in MemoryError

# unit letters are not dropped by the parser (in `3 - 2t` the t is a variable), and G is not g
_NORMAL = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=False, nits=True, boxed="none", equations=False
)
_CASED = ConversionConfig(lowercase_symbols=False)

_UNIT = re.compile(
    r"\\(?:text|mathrm|mbox)\{\s*([A-Za-z. ]{1,20})\s*\}(\^\{?[23]\}?)?$|"
    r"(?<=[0-9}]) ?\b(degrees|degree|cm|mm|km|kg|dollars|units|inches|feet|hours|minutes|seconds|meters)$"
)
_HUGE = re.compile(r"(?:[0-9]{5,}|\^ ?\{?[0-9]+\}?) ?\)? ?!|\\[dt]?binom ?\{ ?(?:[0-9]{6,}|[0-9]+ ?\^)")
_OPEN, _CLOSE = "([{", ")]}"


def warm_up() -> None:
    """Bound the memory, and load what the first comparisons load (for Math-Verify, whose own timer is off)."""
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    soft = MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    equal("(x+1)^2", "x^2+2x+1")
    equal("2<x<5", "(2,5)")


def equal(gold: str, answer: str, digits: int | None = None) -> bool:
    """True when the two answers are the same mathematics; False for a number too large to be worked out.

    A decimal of at least `digits` significant digits is also equal to a number without end that it is rounded from.
    """
    if _HUGE.search(answer):
        return False
    gold, answer = _prepare(gold), _prepare(answer)
    return same(gold, answer) or _rounded(gold, answer, digits) or _rounded(answer, gold, digits)


def _rounded(numeral: str, other: str, digits: int | None) -> bool:
    """True when `numeral` is a decimal, long enough, of the constant `other`, which has none that ends."""
    if digits is None or not re.fullmatch(r"[-+]?[0-9]*\.[0-9]+", numeral):
        return False
    value = read(other)
    if not isinstance(value, sympy.Expr) or value.free_symbols or not (real := value.evalf(PRECISION)).is_Float:
        return False
    shifted = Fraction(str(real)) * 10**30
    ends = abs(shifted - round(shifted)) < Fraction(1, 10**10)  # to 60 digits, the constant is a decimal of 30 places
    return not ends and rounded_from(numeral, Fraction(str(real)), digits)


def _prepare(text: str) -> str:
    text = clean(text)
    text = re.sub(r"\\text\{\s*(?:and|or)\s*\}", lambda match: " or " if "or" in match[0] else ", ", text)
    text = re.sub(r"\\text\{\s*(?:the|The)[^{}]*\bis\s*\}", "", text)
    if inner := re.fullmatch(r"\\text\{([^{}]*)\}", text.strip()):
        text = inner[1]
    text = re.sub(r",(?:\s*,)+", ",", text)
    return text.strip()


def same(gold: str, answer: str) -> bool:
    """Equality by the shape of the gold: words, numerals with a base or colon, units, collections, expressions."""
    if squeezed(gold) == squeezed(answer):
        return True
    if (verdict := same_rational(gold, answer, None)) is not None:
        return verdict
    for shape in (_literals, _units, _alternatives, _collections, _assignments):
        verdict = shape(gold, answer)
        if verdict is not None:
            return verdict
    return _expressions(gold, answer)


def _literals(gold: str, answer: str) -> bool | None:
    """Words, letters in parentheses, numerals with a base, clock times and ratios are compared as text."""
    bare_gold, bare = (re.sub(r"^\((\w)\)$", r"\1", text).strip() for text in (gold, answer))
    if re.fullmatch(r"[A-Z]", bare_gold) or all(re.fullmatch(r"[A-Za-z]", text) for text in (bare_gold, bare)):
        return bare_gold == bare
    pattern = r"[0-9]+ ?: ?[0-9]+(?: ?: ?[0-9]+)*|[0-9A-Fa-f]+_(?:[0-9]|\{[0-9]+\})"
    if re.fullmatch(pattern, gold) or re.fullmatch(pattern, answer):
        return squeezed(gold) == squeezed(answer)
    plain_gold, plain = (text.replace("\\text", "").strip("{} ") for text in (gold, answer))
    wordy = [bool(re.fullmatch(r"[A-Za-z]{2,}(?: [A-Za-z]+)*", text)) for text in (plain_gold, plain)]
    if wordy[0] and (wordy[1] or "\\text" in gold):
        known = re.fullmatch(r"pi|e|i", plain_gold)
        return None if known else plain_gold.casefold() == plain.casefold()
    return None


def _units(gold: str, answer: str) -> bool | None:
    """A unit on one side is dropped; units on both sides must be the same."""
    found = [_UNIT.search(text) for text in (gold, answer)]
    if not any(found):
        return None
    bare = [text[: match.start()].strip() if match else text for text, match in zip((gold, answer), found, strict=True)]
    if not all(bare):
        return None
    names = ["".join(filter(None, match.groups())).strip(" .{}") if match else None for match in found]
    if all(found) and names[0] != names[1]:
        return False
    return same(*bare)


def split_top(text: str, separator: str = ",") -> list[str]:
    """Pieces between separators outside all brackets."""
    depth, start, pieces = 0, 0, []
    for position, character in enumerate(text):
        if character in _OPEN:
            depth += 1
        elif character in _CLOSE:
            depth -= 1
        elif character == separator and depth == 0:
            pieces.append(text[start:position].strip())
            start = position + 1
    return [*pieces, text[start:].strip()]


def _collection(text: str) -> tuple[str, list[str]] | None:
    r"""Kind ("{}", "()", "[]", "(]", "[)" or "" for a bare list) and members; None for anything else."""
    text = re.sub(r"\\emptyset|\\varnothing", r"\\{\\}", text).replace("\\{", "{ ").replace("\\}", " }")
    if text.replace(" ", "") == "{}":
        return "{}", []
    if re.fullmatch(r"[(\[{].*[)\]}]", text, re.DOTALL) and len(split_top(text)) == 1:
        members = split_top(text[1:-1])
        depth, lowest = 0, 1
        for character in text[1:-1]:
            depth += (character in _OPEN) - (character in _CLOSE)
            lowest = min(lowest, depth)
        kind = text[0] + text[-1]
        if lowest >= 0 and (len(members) > 1 or kind == "{}"):
            return kind, members
    members = [piece.removeprefix("and ").strip() for piece in split_top(re.sub(r"\band\b|\bor\b", ",", text))]
    members = [member for member in members if member]
    return ("", members) if len(members) > 1 else None


def _values(kind: str, members: list[str]) -> list[str]:
    r"""Members with \pm written out; in a bare list or a set `x = 3` stands for its value unless names differ."""
    spread = []
    for member in members:
        if "\\pm" in member and kind in ("", "{}"):
            spread += [member.replace("\\pm", ""), member.replace("\\pm", "-")]
        else:
            spread.append(member)
    return spread


def _collections(gold: str, answer: str) -> bool | None:
    """Sets, lists, pairs and intervals member by member; unions of intervals in any order."""
    if any("\\cup" in text for text in (gold, answer)) and not any(mark in gold + answer for mark in "<>"):
        if not all("\\cup" in text for text in (gold, answer)) or "\\le" in gold + answer or "\\ge" in gold + answer:
            return None
        return _matches(
            [part.strip() for part in gold.split("\\cup")], [part.strip() for part in answer.split("\\cup")]
        )
    if (
        any(mark in gold + answer for mark in ("<", ">", "\\le", "\\ge", "\\in ", "\\in[", "\\in("))
        or "\\begin" in gold
    ):
        return None
    first, second = _collection(gold), _collection(answer)
    if first is None and "\\pm" in gold:
        first = ("", [gold])
    if second is None and "\\pm" in answer:
        second = ("", [answer])
    if first is None and second is None:
        return None
    if first is None or second is None:
        return False
    if first[0] and second[0] and first[0] != second[0]:
        return False
    left, right = _values(*first), _values(*second)
    if any("=" in member for member in left + right):
        return _named(left, right, ordered=bool(first[0] or second[0]))
    ordered = first[0] not in ("", "{}") or second[0] not in ("", "{}")
    return _matches(left, right, ordered)


def _named(left: list[str], right: list[str], ordered: bool) -> bool:
    """Lists such as `x=1, y=2`: by name; values of a single name as a set; unlabelled values by alphabet."""
    pairs = [[(name.strip(), value.strip()) if mark else ("", name.strip()) for name, mark, value in
              (member.partition("=") for member in members)] for members in (left, right)]  # fmt: skip
    filled = []
    for side in pairs:
        name, done = "", []
        for own, value in side:
            name = own or name
            done.append((name, value))
        filled.append(done)
    names = [{name for name, _ in side} - {""} for side in filled]
    if len(names[0] | names[1]) == 1:  # one unknown: its values, in any order
        return _matches([value for _, value in filled[0]], [value for _, value in filled[1]], ordered)
    values = [[value for _, value in sorted(side, key=lambda pair: pair[0])] for side in filled]
    if names[0] and names[1] and names[0] != names[1]:
        return False
    return _matches(values[0], values[1], ordered=True)


def _matches(left: list[str], right: list[str], ordered: bool = False) -> bool:
    if len(left) != len(right) or len(left) > 50:
        return False
    if ordered:
        return all(same(one, other) for one, other in zip(left, right, strict=True))
    rest = list(right)
    for one in left:
        found = next((other for other in rest if same(one, other)), None)
        if found is None:
            return False
        rest.remove(found)
    return True


_OR = re.compile(r"\\lor(?![a-z])|\\vee(?![a-z])|(?<![A-Za-z\\])or(?![A-Za-z])")
_RELATION = re.compile(r"[<>]|\\(?:le|ge|ne|lt|gt)(?![A-Za-z])")


def _alternatives(gold: str, answer: str) -> bool | None:
    """Relations joined by "or" as the union of what solves them, against relations or sets."""
    if not any(_OR.search(text) and _RELATION.search(text) for text in (gold, answer)):
        return None
    solved = [solution_set([read(piece.strip()) for piece in _OR.split(text)]) for text in (gold, answer)]
    if solved[0] is None or solved[1] is None:
        return False
    return same_sets(solved[0], solved[1])


_EQUALITY = re.compile(r"(?<![<>!=])=(?!=)")


def _assignments(gold: str, answer: str) -> bool | None:
    """`x = 5` against 5 or `x = 5`; equations of curves by the ratio of their two sides' differences."""
    sides = [_EQUALITY.split(text) for text in (gold, answer)]
    counts = [len(side) for side in sides]
    if counts == [1, 1]:
        return None
    if max(counts) > 2:
        return False
    if counts == [2, 2]:
        first, second = sides
        if all(re.fullmatch(r"[A-Za-z]", side[0].strip()) for side in sides) and first[0].strip() == second[0].strip():
            return same(first[1].strip(), second[1].strip())
        return _equations(first, second)
    named, value = (sides[0], answer) if counts[0] == 2 else (sides[1], gold)
    name, own = named[0].strip(), named[1].strip()
    if not re.fullmatch(r"[A-Za-z](?:_\w)?", name):
        return False
    if set(re.findall(r"(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])", own)) - {"e", "i"} and rational(value) is not None:
        return False
    return same(own, value)


def _equations(first: list[str], second: list[str]) -> bool:
    differences = []
    for side in (first, second):
        left, right = read(side[0]), read(side[1])
        if left is None or right is None:
            return False
        differences.append(sympy.simplify(left - right))
    if any(difference == 0 for difference in differences):
        return False
    ratio = sympy.simplify(differences[0] / differences[1])
    return bool(ratio.is_number and ratio != 0 and ratio.is_finite)


_NAMES = re.compile(r"(?<![\\A-Za-z])(pi|sin|cos|tan|ln|log|exp)(?![A-Za-z])")


def read(text: str) -> Any:
    """The sympy object of an expression, or None when it cannot be read."""
    text = _NAMES.sub(r"\\\1 ", text)
    text = re.sub(r"(?<![\\A-Za-z])sqrt\(([^()]*)\)", r"\\sqrt{\1}", text).replace("*", " \\cdot ")
    text = re.sub(r"([0-9.]+)[eE]([+-]?[0-9]{1,3})(?![0-9A-Za-z])", r"\1 \\cdot 10^{\2}", text)
    text = re.sub(r"\+ ?- ?", "- ", text)
    if text.endswith("^\\circ"):
        text = "(" + text.removesuffix("^\\circ") + ") \\cdot \\frac{\\pi}{180}"
    try:
        found = latex2sympy(text, is_real=not should_treat_as_complex(text), normalization_config=_NORMAL,
                            conversion_config=_CASED)  # fmt: skip
    except Exception:  # noqa: BLE001 - inside the boundary of a verifier's call; the parser raises bare Exceptions
        return None
    if not isinstance(found, sympy.Basic):
        return None if isinstance(found, str) else found
    return found.xreplace({symbol: sympy.I for symbol in found.atoms(sympy.Symbol) if symbol.name == "i"})


def _expressions(gold: str, answer: str) -> bool:
    degrees = [text.endswith("^\\circ") for text in (gold, answer)]
    if any(degrees) and not all(degrees):
        bare = gold.removesuffix("^\\circ"), answer.removesuffix("^\\circ")
        if rational(bare[0]) is not None and rational(bare[1]) is not None:
            return "%" not in gold + answer and rational(bare[0]) == rational(bare[1])
    left, right = read(gold), read(answer)
    if left is None or right is None:
        return False
    if isinstance(left, sympy.Expr) and isinstance(right, sympy.Expr):
        return _scalars(left, right)
    return bool(verify([left], [right], float_rounding=15, allow_set_relation_comp=True, timeout_seconds=None))


def _scalars(left: sympy.Expr, right: sympy.Expr) -> bool:
    """Constants to 60 digits relative to their size, other expressions by simplification of their difference."""
    if left.has(sympy.nan, sympy.zoo) or right.has(sympy.nan, sympy.zoo):
        return False
    if left == right:
        return True
    left, right = _exact(left), _exact(right)
    if not left.free_symbols | right.free_symbols:
        if (left.has(sympy.Integral) or right.has(sympy.Integral)) and _far_apart(left, right):
            return False
        return _constants(left.doit(), right.doit())
    return same_on_the_reals(left, right) or bool(sympy.simplify(left - right) == 0)


def _far_apart(left: sympy.Expr, right: sympy.Expr) -> bool:
    """True when quadrature to 15 digits puts two constants further apart than any error of it."""
    values = [side.evalf(15) for side in (left, right)]
    if not all(value.is_Float or value.is_Rational for value in values):
        return False
    return bool(abs(values[0] - values[1]) > 1e-3 * max(abs(value) for value in values))


def _exact(side: sympy.Expr) -> sympy.Expr:
    """Decimals as fractions, so that 0.1 is 1/10; an odd root of a negative number as its real value."""
    return real_roots(side.xreplace({one: sympy.Rational(str(one)) for one in side.atoms(sympy.Float)}))


def _constants(left: sympy.Expr, right: sympy.Expr) -> bool:
    """|left - right| <= 1e-40 max(|left|, |right|), each to 60 digits; a side that is zero needs proof by algebra."""
    if left == right:
        return True
    values = [side.evalf(PRECISION) for side in (left, right)]
    if not all(value.is_number and value.is_finite for value in values):
        return False
    difference, size = abs(values[0] - values[1]).evalf(PRECISION), max(abs(value).evalf(PRECISION) for value in values)
    if min(abs(value) for value in values) < CLOSE:
        return left.is_zero is not False and right.is_zero is not False and bool(sympy.simplify(left - right) == 0)
    return bool(difference <= CLOSE * size)
