"""A verifier for word problems that does the arithmetic itself: paid is the right calculation, such as "23 - 8"."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from quatrain.config import Section
from quatrain.rewards.extract import gold_answer
from quatrain.rewards.verifier import Example, Kind, Limits, Scope, each, scored_text
from quatrain.types import Rollout, Score

NUMBER = r"\$?(\d+(?:\.\d+)?)"
CALCULATION = re.compile(rf"{NUMBER}((?:\s*[-+*/\u00d7\u00f7]\s*{NUMBER})+)")
TERM = re.compile(rf"([-+*/\u00d7\u00f7])\s*{NUMBER}")


class CalculationSettings(Section):
    """No settings."""


@dataclass(frozen=True)
class Calculation:
    """1 when the first calculation of the completion has the value of the column `answer`; a bare number is none."""

    settings: CalculationSettings
    limits: Limits
    Settings: ClassVar = CalculationSettings
    scope: ClassVar[Scope] = "completion"
    kind: ClassVar[Kind] = "correctness"
    examples: ClassVar = (
        Example(completion=" 2 + 3 * 4 = 20", columns={"answer": 14.0}, value=1.0),
        Example(completion=" 14", columns={"answer": 14.0}, value=0.0),
    )

    async def score(self, rollouts: Sequence[Rollout]) -> Sequence[Score]:
        """One score per rollout."""
        return each(rollouts, self._judge)

    def _judge(self, rollout: Rollout) -> float:
        gold = Fraction(gold_answer(rollout, "answer", self.limits.name))
        found = CALCULATION.search(scored_text(rollout))
        return float(found is not None and value(found[1], found[2]) == gold)

    def close(self) -> None:
        """Nothing to end."""


def value(first: str, rest: str) -> Fraction | None:
    """`("2", " + 3 * 4")` is 14: products before sums. None for a division by zero."""
    summands = [Fraction(first)]
    for sign, number in TERM.findall(rest):
        term = Fraction(number)
        if sign in "+-":
            summands.append(term if sign == "+" else -term)
        elif sign in "*\u00d7":
            summands[-1] *= term
        elif term == 0:
            return None
        else:
            summands[-1] /= term
    return sum(summands, Fraction(0))
