"""`numeric`: the answer has the value of the gold, in exact rational arithmetic."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, ClassVar

from pydantic import Field

from quatrain.errors import VerifierError
from quatrain.rewards.extract import AnswerSettings, Extract, extract_answer, gold_answer, parse_number
from quatrain.rewards.verifier import VERIFIERS, Example, Kind, Limits, Scope, each, label, scored_text
from quatrain.types import Rollout, Score


class NumericSettings(AnswerSettings):
    """Settings of `numeric`."""

    extract: Extract = "last_number"
    tolerance: Annotated[float, Field(ge=0)] = Field(0.0, description="allowed |answer - gold|; 0: equal exactly")
    relative: bool = Field(False, description="the tolerance is a share of |gold|")
    percent: bool = Field(False, description="50% is 0.5; otherwise the percent sign is not read")
    currency: bool = Field(True, description="$5 is the number 5; otherwise not a number")


@VERIFIERS.register("numeric")
@dataclass(frozen=True)
class Numeric:
    """1 when |answer - gold| <= tolerance, with both read as exact fractions ("0.1" is 1/10, not a double)."""

    settings: NumericSettings
    limits: Limits
    Settings: ClassVar = NumericSettings
    scope: ClassVar[Scope] = "completion"
    kind: ClassVar[Kind] = "correctness"
    examples: ClassVar = (
        Example(prompt="What is 6 times 12?", completion="6 * 12 = 72.", columns={"answer": "72"}, value=1.0),
        Example(prompt="Total?", completion="It comes to $1,234.50", columns={"answer": "sum\n#### 1234.5"}, value=1.0),
        Example(completion="x = -5", columns={"answer": 5}, value=0.0),
        Example(completion="71, 72", columns={"answer": 72}, value=0.0),
        Example(completion="9007199254740996", columns={"answer": "9007199254740995"}, value=0.0),
    )

    async def score(self, rollouts: Sequence[Rollout]) -> Sequence[Score]:
        """One score per rollout."""
        return each(rollouts, self._judge)

    def _judge(self, rollout: Rollout) -> Score:
        gold = self._gold(rollout)
        answer = extract_answer(scored_text(rollout), self.settings) if rollout.text.strip() else None
        value = None if answer is None else self._number(answer)
        if value is None:
            return Score(value=0.0)
        allowed = Fraction(self.settings.tolerance) * (abs(gold) if self.settings.relative else 1)
        right = abs(value - gold) <= allowed
        return Score(value=float(right), answer=str(gold if right else value))  # right answers are one vote

    def _number(self, text: str) -> Fraction | None:
        return parse_number(text, percent=self.settings.percent, currency=self.settings.currency)

    def _gold(self, rollout: Rollout) -> Fraction:
        text = gold_answer(rollout, self.settings.answer_column, self.limits.name)
        value = parse_number(text, percent=self.settings.percent)
        if value is None:
            raise VerifierError(f"{self.limits.name}: {label(rollout)}: column {self.settings.answer_column!r} is "
                                f"{text[:60]!r}, need a number; use kind exact or math")  # fmt: skip
        return value

    def close(self) -> None:
        """Nothing to end."""
