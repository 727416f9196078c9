"""The rules of `math` on which users disagree, as settings: a pair of answers is rewritten before it is compared."""

import re
from typing import Annotated, Literal

from pydantic import Field

from quatrain.rewards.extract import AnswerSettings
from quatrain.rewards.math_text import clean, squeezed


class MathSettings(AnswerSettings):
    """Settings of `math`; `auto` takes the last of boxes, '####' lines and "answer is" phrases."""

    extract: Literal["auto", "whole", "last_line", "last_number", "first_number", "boxed", "hashes", "tag"] = "auto"  # type: ignore[assignment]
    require_marker: bool = Field(False, description="extract auto: a last sentence without box or marker never counts")
    form: Literal["value", "written"] = Field("value", description="written: the form counts too, so 2/4 is not 1/2")
    rounded_digits: Annotated[int, Field(ge=6)] | None = Field(
        15, description="a decimal with at least so many significant digits stands for the number without end that it "
        "is rounded from; null: never")  # fmt: skip
    bare_percent: bool = Field(False, description="65 is right where the gold is 65%")
    bare_base: bool = Field(False, description="1101 is right where the gold is 1101_2")
    ratios: bool = Field(False, description="3:2 is the fraction 3/2")
    powers: Literal["latex", "plain"] = Field(
        "latex", description="2^10 in a box or other LaTeX: 2^1 and then 0, or as plain text 2^{10}")  # fmt: skip
    decimal_comma: bool = Field(False, description="1,2 is 1.2")
    list_order: Literal["any", "same"] = Field("any", description="of lists without brackets; pairs are always ordered")
    relations_as_sets: bool = Field(True, description="x >= 3 is [3, oo)")


DEFAULTS = MathSettings()
_BASE = re.compile(r"([0-9A-Fa-f]+) ?_ ?(?:[0-9]|\{[0-9]+\})")
_RATIO = re.compile(r"([0-9]+) ?: ?([0-9]+)")
_COMMA = re.compile(r"([-+]?[0-9]+),([0-9]+)")
_RELATION = re.compile(r"[<>]|\\(?:le|ge|ne|lt|gt)(?![A-Za-z])|\\in(?![A-Za-z])")
_LIST = re.compile(r"[^()\[\]{}<>=:]+(?:,[^()\[\]{}<>=:]+)+")


def apply_rules(gold: str, answer: str, rules: MathSettings, in_latex: bool) -> tuple[str, str] | bool:
    """Both answers, cleaned and rewritten so that they can be compared by value, or the verdict that a rule gives."""
    gold, answer = clean(gold), clean(answer)
    if rules.form == "written":
        return squeezed(gold) == squeezed(answer)
    if not rules.relations_as_sets and bool(_RELATION.search(gold)) != bool(_RELATION.search(answer)):
        return False
    if rules.bare_percent and gold.endswith("%") and "%" not in answer:
        gold = gold[:-1].removesuffix("\\")
    if rules.bare_base and (numeral := _BASE.fullmatch(gold)) and "_" not in answer:
        gold = numeral[1]
    if rules.ratios:
        gold, answer = (_RATIO.sub(r"\\frac{\1}{\2}", text) for text in (gold, answer))
    if rules.decimal_comma:
        gold, answer = (_COMMA.sub(r"\1.\2", text) if _COMMA.fullmatch(text) else text for text in (gold, answer))
    if rules.powers == "latex" and (in_latex or "\\" in answer):
        answer = re.sub(r"\^ ?([0-9])(?=[0-9])", r"^{\1} ", answer)
    if rules.list_order == "same" and all(_LIST.fullmatch(text) for text in (gold, answer)):
        gold, answer = f"({gold})", f"({answer})"
    return gold, answer
