"""Finding the answer in a completion and the gold in a row, in time linear in the text."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from pydantic import Field

from quatrain.config import Section
from quatrain.errors import VerifierError
from quatrain.rewards.verifier import label, missing_column
from quatrain.types import Rollout

Extract = Literal["whole", "last_line", "last_number", "first_number", "boxed", "hashes", "tag"]
MAX_NUMBER_LENGTH = 1000  # characters; beyond it a numeral is not read as a number
MAX_EXPONENT = 1000


class AnswerSettings(Section):
    """Where the gold stands and how an answer is found in the completion."""

    answer_column: str = Field("answer", description="column with the gold answer; GSM8K's '... #### 72' reads as 72")
    extract: Extract = "whole"
    tag: str = Field("answer", min_length=1, description="for extract: tag, the name in <name>...</name>")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A possible answer and the half-open range of the text that it covers."""

    text: str
    start: int
    end: int


_SEPARATORS = re.compile(
    r"(?:[\s,;/|&$.:()*\[\]\\]|\b(?:or|and|maybe|perhaps|possibly|alternatively|also|else|either)\b)*", re.IGNORECASE
)
_LIST = re.compile(r"(?:[^\S\n]|[,;/|&{}$]|\\(?:boxed|fbox)|\b(?:or|and)\b)+", re.IGNORECASE)


def extract_answer(text: str, settings: AnswerSettings) -> str | None:
    """The answer that `text` commits to, or None when it gives none or lists several.

    The last candidate counts. When a different one stands right before it (or, for `first_number`, right behind it)
    with nothing but separators or "or" / "and" between them, the text hedges, and there is no answer.
    """
    match settings.extract:
        case "whole":
            return text.strip() or None
        case "last_line":
            return text.rstrip().rpartition("\n")[2].strip() or None
        case "boxed":
            return _committed(text, list(boxes(text)), _SEPARATORS)
        case "hashes":
            return _committed(text, list(hashes(text)), _SEPARATORS)
        case "tag":
            return _committed(text, list(tagged(text, settings.tag)), _SEPARATORS)
        case "last_number":
            return _committed(text, _edge(text, last=True), _LIST)
        case "first_number":
            return _committed(text, _edge(text, last=False), _LIST)


def _committed(text: str, candidates: list[Candidate], separators: re.Pattern[str]) -> str | None:
    """The last candidate, unless a different one stands next to it in a list."""
    if not candidates:
        return None
    final = candidates[-1]
    for other in reversed(candidates[:-1]):
        first, second = sorted((other, final), key=lambda candidate: candidate.start)
        if not separators.fullmatch(text, first.end, second.start):
            break
        if _normal(other.text) != _normal(final.text):
            return None
    return final.text.strip() or None


def _normal(text: str) -> str:
    return "".join(text.split())


def boxes(text: str) -> Iterator[Candidate]:
    r"""Contents of \boxed{...} and \fbox{...} with balanced braces, and of the brace-less \boxed 5."""
    position = 0
    while match := _BOX.search(text, position):
        start = match.end()
        if text[start : start + 1] == "{":
            end = _closing_brace(text, start)
            if end is None:
                return  # never closed: nothing behind it can be a closed box of its own either
            yield Candidate(text[start + 1 : end], match.start(), end + 1)
            position = end + 1
        else:
            bare = _BARE.match(text, start)
            position = start
            if bare:
                yield Candidate(bare[0], match.start(), bare.end())
                position = bare.end()


_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z]) {0,8}")
_BARE = re.compile(r"-?[0-9A-Za-z.]+")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)


def _closing_brace(text: str, opening: int) -> int | None:
    """Position of the brace that closes the one at `opening`; escaped braces do not count."""
    depth = 0
    for match in _BRACE.finditer(text, opening):
        if match[0] == "{":
            depth += 1
        elif match[0] == "}":
            depth -= 1
            if depth == 0:
                return match.start()
    return None


def hashes(text: str) -> Iterator[Candidate]:
    """What follows '####' on its line: GSM8K's way to mark the final answer."""
    position = 0
    while (found := text.find("####", position)) >= 0:
        end = text.find("\n", found)
        end = len(text) if end < 0 else end
        content = text[found:end].rpartition("####")[2].strip()
        if content:
            yield Candidate(content, found, end)
        position = end


def tagged(text: str, tag: str) -> Iterator[Candidate]:
    """Contents of <tag>...</tag>; the opening nearest to each closing counts."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    position = 0
    while (end := text.find(closing, position)) >= 0:
        start = text.rfind(opening, position, end)
        if start >= 0:
            yield Candidate(text[start + len(opening) : end], start, end + len(closing))
        position = end + len(closing)


# digits, with thousands separators only in threes; a decimal part; an exponent; and possibly a quotient of two
_DIGITS = r"(?:[0-9]{1,3}(?:[,\u00a0\u202f][0-9]{3})+(?![0-9])|[0-9]+)?(?:(?<=[0-9])\.[0-9]+|(?<![0-9.])\.[0-9]+)?"
_UNSIGNED = rf"(?=\.?[0-9]){_DIGITS}(?:[eE][-+]?[0-9]+(?![0-9A-Za-z]))?"
MINUS_SIGNS = "\u2212\uff0d\u2012\u2013\ufe63"
_SIGN = rf"(?:(?<![0-9A-Za-z)\]}}])[-+{MINUS_SIGNS}] {{0,2}}(?:\\?[$€£¥] ?)?)?"
NUMBER = re.compile(rf"(?<![0-9.]){_SIGN}{_UNSIGNED}(?: ?/ ?[0-9]+(?![0-9./]))?")


def numbers(text: str) -> Iterator[Candidate]:
    """Every number of the text, with its sign and a percent sign that follows."""
    for match in NUMBER.finditer(text):
        end = match.end()
        percent = text[end : end + 1] == "%" or text[end : end + 2] == "\\%"
        yield Candidate(match[0] + ("%" if percent else ""), match.start(), end)


def _edge(text: str, last: bool) -> list[Candidate]:
    """The last number and the one before it, or the first one preceded by its successor."""
    kept: list[Candidate] = []
    for candidate in numbers(text):
        kept = [*kept[-1:], candidate]
        if not last and len(kept) == 2:
            return kept[::-1]
    return kept


def parse_number(text: str, percent: bool = False, currency: bool = True) -> Fraction | None:
    """The exact value of a whole text that is one number: "-1,234.50", "3/4", "6e-3", "$5"; None for anything else.

    `percent` reads "50%" as 1/2 (otherwise the sign is dropped); without `currency` a "$5" is not a number.
    """
    text = text.strip()
    if len(text) > MAX_NUMBER_LENGTH:
        return None
    plain = text.rstrip("%").rstrip("\\").rstrip() if text.endswith("%") else text
    plain = plain.removesuffix(".")
    for symbol in ("\\$", *"$€£¥"):
        if currency:
            plain = plain.removeprefix(symbol).removesuffix(symbol) if symbol in plain else plain
    match = NUMBER.fullmatch(plain.strip())
    if match is None or (not currency and any(symbol in plain for symbol in "$€£¥")):
        return None
    value = _value(match[0])
    return value / 100 if value is not None and percent and text.endswith("%") else value


_NOT_DIGITS = str.maketrans({**dict.fromkeys(MINUS_SIGNS, "-"), **dict.fromkeys(", $€£¥\\\u00a0\u202f", "")})


def _value(numeral: str) -> Fraction | None:
    """The value of a matched numeral, or None when it is too large to be worth computing."""
    top, _, bottom = numeral.translate(_NOT_DIGITS).partition("/")
    exponent = re.search(r"[eE]([-+]?[0-9]+)$", top)
    if exponent and (len(exponent[1]) > 6 or abs(int(exponent[1])) > MAX_EXPONENT):
        return None
    if bottom and int(bottom) == 0:
        return None
    return Fraction(top) / (int(bottom) if bottom else 1)


def gold_answer(rollout: Rollout, column: str, name: str) -> str:
    """The row's gold as text. A missing or empty one is a fault of the data and raises VerifierError."""
    columns = rollout.prompt.columns
    if column not in columns:
        raise missing_column(name, rollout, column, "set answer_column, or rename it with the source's `columns`")
    gold = columns[column]
    if gold is None or isinstance(gold, (list, tuple, dict, set, bytes)):
        raise VerifierError(
            f"{name}: {label(rollout)}: column {column!r} is {type(gold).__name__}, need text or a number"
        )
    text = str(gold)
    text = text.rpartition("####")[2] if "####" in text else text
    if not text.strip():
        raise VerifierError(f"{name}: {label(rollout)}: column {column!r} is empty, need a gold answer; drop the row")
    return text.strip()
