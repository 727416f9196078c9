"""`exact`: the answer is the gold, character by character."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from quatrain.rewards.extract import AnswerSettings, extract_answer, gold_answer
from quatrain.rewards.verifier import VERIFIERS, Example, Kind, Limits, Scope, each, scored_text
from quatrain.types import Rollout, Score


class ExactSettings(AnswerSettings):
    """Settings of `exact`."""

    case_sensitive: bool = True


@VERIFIERS.register("exact")
@dataclass(frozen=True)
class Exact:
    """1 when the extracted text equals the gold after both are stripped of white space at the ends, else 0."""

    settings: ExactSettings
    limits: Limits
    Settings: ClassVar = ExactSettings
    scope: ClassVar[Scope] = "completion"
    kind: ClassVar[Kind] = "correctness"
    examples: ClassVar = (
        Example(prompt="Capital of France?", completion=" Paris\n", columns={"answer": "Paris"}, value=1.0),
        Example(prompt="Capital of Italy?", completion="Rome", columns={"answer": "Rome"}, value=1.0),
        Example(completion="paris", columns={"answer": "Paris"}, value=0.0),
        Example(completion="Paris or Rome", columns={"answer": "Paris"}, value=0.0),
    )

    async def score(self, rollouts: Sequence[Rollout]) -> Sequence[Score]:
        """One score per rollout."""
        return each(rollouts, self._judge)

    def _judge(self, rollout: Rollout) -> Score:
        gold = gold_answer(rollout, self.settings.answer_column, self.limits.name)
        answer = extract_answer(scored_text(rollout), self.settings) if rollout.text.strip() else None
        if answer is None:
            return Score(value=0.0)
        if not self.settings.case_sensitive:
            gold, answer = gold.casefold(), answer.casefold()
        return Score(value=float(gold == answer), answer=answer)

    def close(self) -> None:
        """Nothing to end."""
