"""Mathematical answers as text, without computer algebra: the final one, its cleaned form, its rational value."""

import re
from fractions import Fraction

from quatrain.rewards.extract import Candidate, boxes, hashes, numbers, parse_number

MAX_ANSWER_LENGTH = 2000  # characters; a longer answer is not read
MAX_BITS = 4096  # of an integer power that is worked out
MAX_MARKERS = 50  # "answer is" phrases that are looked at, from the end
MAX_DEPTH = 40  # nested brackets; a parser's time grows fast with them

_MARKER = re.compile(
    r"\b(?:final |correct )?(?:answer|result|solution)(?:\*\*)? {0,2}(?:is|=|:)(?:\*\*)?[ :]{0,3}(?:\*\*)?",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"[.!?](?:\s|\*|$)")
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}")
_FUNCTION_WORDS = frozenset(
    ["sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "log", "exp", "sqrt", "and", "for", "all"]
)


def final_answer(text: str, require_marker: bool = False) -> str | None:
    r"""What a free-form solution commits to: the last of its boxes, '####' lines and "answer is" phrases.

    Without any of these, unless `require_marker`: a text that is one bare expression, or the number (or what follows
    "is") that a complete last sentence ends on. A text that breaks off, or lists several different boxes in a row, has
    no answer.
    """
    found = marked_answers(text)
    if not found:
        return None if require_marker else _unmarked(text.strip())
    return last_answer(text, found)


def marked_answers(text: str) -> list[Candidate]:
    """Boxes, '####' lines and "answer is" phrases, in the order of the text."""
    found = [*boxes(text), *hashes(text)]
    ranges = iter([*found, Candidate("", len(text), len(text))])
    box = next(ranges)
    for match in list(_MARKER.finditer(text))[-MAX_MARKERS:]:
        while box.end <= match.start() < len(text) and box.start < len(text):
            box = next(ranges)
        if box.start <= match.start():
            continue  # "the answer is" inside a box belongs to the box
        said = _first_sentence(text[match.end() : match.end() + MAX_ANSWER_LENGTH].partition("\n")[0])
        if said.strip() and not any(mark in said for mark in ("\\boxed", "\\fbox", "####")):
            found.append(Candidate(said, match.start(), match.end() + len(said)))
    return sorted(found, key=lambda candidate: candidate.start)


def last_answer(text: str, found: list[Candidate]) -> str | None:
    """The last candidate, unless a different one stands right before it, as in a list."""
    return None if len(found) > 1 and _hedges(text, found[-2], found[-1]) else found[-1].text.strip()


_LISTING = re.compile(
    r"(?:[\s,;/|&$.()\\]|\b(?:or|and|maybe|perhaps|possibly|alternatively|also|else|either|the|my)\b)*", re.IGNORECASE
)


def _hedges(text: str, before: Candidate, last: Candidate) -> bool:
    between = text[before.end : last.start]
    listed = len(between) < 80 and _LISTING.fullmatch(between)
    return bool(listed) and clean(before.text) != clean(last.text)


def _first_sentence(text: str) -> str:
    end = _SENTENCE_END.search(text)
    return text[: end.start()] if end else text


def _is_prose(text: str) -> bool:
    return any(word.lower() not in _FUNCTION_WORDS for word in _WORD.findall(text))


def _unmarked(text: str) -> str | None:
    line = text.rpartition("\n")[2].strip()
    if not _is_prose(line):
        return line if 0 < len(line) <= MAX_ANSWER_LENGTH else None
    line = line[-MAX_ANSWER_LENGTH:]
    if not line.endswith((".", "!", "?")):
        return None
    sentence = re.split(r"[.!?]\s", line)[-1].rstrip(".!? ")
    _, verb, tail = sentence.rpartition(" is ")
    if verb and not _is_prose(tail):
        return tail
    last = list(numbers(sentence))
    return last[-1].text if last else None


_SPACES = re.compile(r"\\[,;:! ]|~|\\quad|\\qquad|\\displaystyle|\\textstyle|\\limits")
_CHARACTERS = str.maketrans({
    **dict.fromkeys("\u2212\uff0d\u2013\u2012\ufe63", "-"), "π": "\\pi ", "∞": "\\infty ",
    "\u00d7": "\\times ", "·": "\\cdot ", "°": "^\\circ",
    "≤": "\\le ", "≥": "\\ge ", "≠": "\\ne ", "\u222a": "\\cup ", "∩": "\\cap ", "∅": "\\emptyset ", "÷": "/",
})  # fmt: skip
_REPLACE = [
    (re.compile(r"\\left(?![a-z])|\\right(?![a-z])|\\big[lr]?(?![a-z])|\\Big[lr]?(?![a-z])"), ""),
    (re.compile(r"\\[dt]frac"), r"\\frac"),
    (re.compile(r"\\(?:leq|leqslant)\b"), r"\\le"),
    (re.compile(r"\\(?:geq|geqslant)\b"), r"\\ge"),
    (re.compile(r"\\neq\b"), r"\\ne"),
    (re.compile(r"\\(?:mathrm|mathbf|operatorname)\{([^{}]{0,200})\}"), r"\1"),
    (re.compile(r"\^\{?\\(?:circ|degree)\}?|\\degree"), r"^\\circ"),
    (re.compile(r"\\frac ?([0-9])([0-9])(?![0-9])"), r"\\frac{\1}{\2}"),
    (re.compile(r"_\{([0-9A-Za-z])\}"), r"_\1"),
    (re.compile(r"√\(([^()]{1,200})\)"), r"\\sqrt{\1}"),
    (re.compile(r"√([0-9A-Za-z]+)"), r"\\sqrt{\1}"),
    (re.compile(r"\\\\\s*(?=\\end\{)"), ""),
    (re.compile(r"\{(?:p|b|v)matrix\}"), "{matrix}"),
]


def clean(text: str) -> str:
    r"""An answer without what does not change its meaning: dollar signs, \left and \right, spacing, synonyms."""
    text = text.strip().strip("*").strip()
    text = re.sub(r"\\[($)\]\[]", lambda match: "$" if match[0] != "\\$" else "", text)
    text = text.translate(_CHARACTERS).replace("$", " ")
    text = _SPACES.sub(" ", text)
    for pattern, new in _REPLACE:
        text = pattern.sub(new, text)
    return " ".join(text.split()).removesuffix(".").strip()


def depth(text: str) -> int:
    """How deep the brackets of a text are nested."""
    level = deepest = 0
    for character in text:
        level += (character in "([{") - (character in ")]}")
        deepest = max(deepest, level)
    return deepest


def squeezed(text: str) -> str:
    """Cleaned text without text commands and white space (but "5 6" is not 56), to compare character by character."""
    text = re.sub(r"\\(?:text|textbf|mbox)\{([^{}]*)\}", r"\1", text)
    return re.sub(r"(?<=[0-9]) +(?=[0-9])", "|", text).replace(" ", "")


_FRAC = re.compile(r"([+-]?) ?([0-9]{0,9}) ?\\frac\{(-?)([0-9]{1,300})\}\{(-?)([0-9]{1,300})\}")
_MIXED = re.compile(r"([+-]?)([0-9]{1,9}) ([0-9]{1,9})/([0-9]{1,9})")
_SCIENTIFIC = re.compile(
    r"(?:([+-]?[0-9]{1,50}(?:\.[0-9]{1,50})?) ?(?:\\times|\\cdot|\*) ?)?10 ?\^ ?\{? ?([+-]?[0-9]{1,4}) ?\}?"
)
_POWER = re.compile(r"(-?)([0-9]{1,9}) ?\^ ?(?:\{([0-9]{1,5})\}|([0-9])(?![0-9]))")
_REPEATING = re.compile(r"([+-]?)([0-9]{0,50})\.([0-9]{0,50}) ?\\overline ?\{([0-9]{1,1000})\}")
_WRAPPED = re.compile(r"\(([^()]*)\)|\\text\{([^{}]*)\}")
_GROUPED = re.compile(r"[+-]?[0-9]{1,3}(?:( ?, ?| )[0-9]{3})(?:\1[0-9]{3})*(?:\.[0-9]+)?")


def rational(text: str) -> Fraction | None:
    """The exact value of a cleaned text that is one rational number, percent signs read as 1/100; else None."""
    text = text.strip().replace("{,}", ",")
    if wrapped := _WRAPPED.fullmatch(text):
        return rational(wrapped[1] or wrapped[2] or "")
    if text.endswith("%"):
        value = rational(text[:-1].removesuffix("\\"))
        return None if value is None else value / 100
    for pattern, read in ((_FRAC, _read_frac), (_MIXED, _read_mixed), (_SCIENTIFIC, _read_scientific),
                          (_POWER, _read_power), (_REPEATING, _read_repeating)):  # fmt: skip
        if match := pattern.fullmatch(text):
            return read(match)
    if _GROUPED.fullmatch(text):
        text = text.replace(" ", "").replace(",", "")
    return parse_number(text, currency=False) if "%" not in text else None


_DECIMAL = re.compile(r"[+-]?([0-9]*)\.([0-9]+)")


def rounded_from(numeral: str, value: Fraction, digits: int | None) -> bool:
    """True when a decimal of `digits` or more significant digits agrees with `value` to half a unit in digit `digits`.

    `value` has no finite decimal of its own; one that has must be met exactly.
    """
    match = _DECIMAL.fullmatch(numeral.strip())
    if digits is None or match is None or len((match[1] + match[2]).lstrip("0")) < digits or value == 0:
        return False
    exponent = 0  # 10^exponent <= |value| < 10^(exponent + 1)
    while abs(value) >= Fraction(10) ** (exponent + 1):
        exponent += 1
    while abs(value) < Fraction(10) ** exponent:
        exponent -= 1
    return abs(Fraction(numeral.strip()) - value) <= Fraction(10) ** (exponent - digits + 1) / 2


def finite_decimal(value: Fraction) -> bool:
    """True for a fraction whose decimal ends."""
    rest = value.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    return rest == 1


def same_rational(left: str, right: str, digits: int | None) -> bool | None:
    """Equality of two cleaned texts that are rational numbers, rounded decimals included; None when one is not."""
    values = rational(left), rational(right)
    if values[0] is None or values[1] is None:
        return None
    if values[0] == values[1]:
        return True
    return any(
        rounded_from(text, value, digits) and not finite_decimal(value)
        for text, value in ((left, values[1]), (right, values[0]))
    )


def _read_frac(match: re.Match[str]) -> Fraction | None:
    sign, whole, top_sign, top, bottom_sign, bottom = match.groups()
    if int(bottom) == 0 or (whole and (top_sign or bottom_sign)):
        return None
    value = Fraction(int(whole or 0)) + Fraction(int(top), int(bottom))
    return -value if (sign == "-") ^ bool(top_sign) ^ bool(bottom_sign) else value


def _read_mixed(match: re.Match[str]) -> Fraction | None:
    sign, whole, top, bottom = match.groups()
    if int(bottom) == 0 or int(top) >= int(bottom):
        return None
    value = int(whole) + Fraction(int(top), int(bottom))
    return -value if sign == "-" else value


def _read_scientific(match: re.Match[str]) -> Fraction | None:
    exponent = int(match[2])
    return Fraction(match[1] or "1") * Fraction(10) ** exponent if abs(exponent) <= 1000 else None


def _read_power(match: re.Match[str]) -> Fraction | None:
    base, exponent = int(match[2]), int(match[3] or match[4])
    if base.bit_length() * exponent > MAX_BITS:
        return None
    return Fraction(base**exponent * (-1 if match[1] else 1))


def _read_repeating(match: re.Match[str]) -> Fraction:
    sign, whole, fixed, period = match.groups()
    value = Fraction(int(whole or 0)) + Fraction(int(fixed or 0), 10 ** len(fixed))
    value += Fraction(int(period), (10 ** len(period) - 1) * 10 ** len(fixed))
    return -value if sign == "-" else value
