"""`reasoning_gym`: the answer is right by the task's own scorer (reasoning-gym, in worker processes)."""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from pydantic import Field

from quatrain.config import Section
from quatrain.errors import SettingError, VerifierError
from quatrain.rewards.extract import AnswerSettings, Extract, extract_answer
from quatrain.rewards.pool import Pool
from quatrain.rewards.verifier import VERIFIERS, Example, Kind, Limits, Scope, label, missing_column, scored_text
from quatrain.types import Rollout, Score

MAX_ANSWER_LENGTH = 20_000  # characters; a longer answer is not read


class GymSettings(AnswerSettings):
    """Settings of `reasoning_gym`."""

    extract: Extract = "tag"
    partial: bool = Field(False, description="pay the scorer's partial credit too; otherwise only what is fully right")


@VERIFIERS.register("reasoning_gym")
class Gym:
    """1 when the task that made the row scores the answer 1, else 0; with `partial`, whatever it scores.

    The row's column `metadata` names the task, as rows of the source `reasoning-gym:TASK` do. Scorers that look at
    their task's settings see the defaults.
    """

    Settings: ClassVar[type[Section]] = GymSettings
    default_timeout_s: ClassVar[float] = 5.0
    scope: ClassVar[Scope] = "completion"
    kind: ClassVar[Kind] = "correctness"
    examples: ClassVar[tuple[Example, ...]] = (
        Example(prompt="State the final answer: 4 + 3 =", completion="4 + 3 is <answer>7</answer>",
                columns={"answer": "7", "metadata": {"source_dataset": "chain_sum"}}, value=1.0),
        Example(completion="<answer>(8 - 2) * 3</answer>", value=1.0, columns={
            "answer": "3*8 - 6", "metadata": {"source_dataset": "countdown", "numbers": [2, 3, 8], "target": 18}}),
        Example(completion="<answer>8 * 3 - 6</answer>", value=0.0, columns={
            "answer": "(8 - 2) * 3", "metadata": {"source_dataset": "countdown", "numbers": [2, 3, 8], "target": 18}}),
        Example(completion="7", columns={"answer": "7", "metadata": {"source_dataset": "chain_sum"}}, value=0.0),
    )  # fmt: skip

    def __init__(self, settings: GymSettings, limits: Limits) -> None:
        if importlib.util.find_spec("reasoning_gym") is None:
            raise SettingError(f"{limits.setting}.kind", "reasoning_gym", "reasoning_gym to be installed",
                               "pip install 'quatrain[tasks]'")  # fmt: skip
        self._settings, self._limits = settings, limits
        self._pool = Pool("quatrain.rewards.gym_worker:task_score", setting=limits.setting, timeout_s=limits.timeout_s)

    async def score(self, rollouts: Sequence[Rollout]) -> Sequence[Score]:
        """One score per rollout; a completion without an answer is 0 without asking the scorer."""
        scores = [Score(value=0.0)] * len(rollouts)
        given = {position: one for position, rollout in enumerate(rollouts) if (one := self._given(rollout))}
        judged = await self._pool.call(list(given.values())) if given else []
        for (position, asked), outcome in zip(given.items(), judged, strict=True):
            if outcome.fatal:
                raise VerifierError(f"{self._limits.name}: {label(rollouts[position])}: {outcome.score.error}")
            score = outcome.score
            if score.usable and not self._settings.partial:
                score = replace(score, value=float(score.value >= 1 - 1e-9))
            scores[position] = replace(score, answer=asked["answer"])
        return scores

    def _given(self, rollout: Rollout) -> dict[str, Any] | None:
        """What the scorer is asked; None when the completion commits to no answer."""
        metadata = rollout.prompt.columns.get("metadata")
        if not isinstance(metadata, Mapping) or not isinstance(metadata.get("source_dataset"), str):
            do = "this verifier reads rows of reasoning-gym:TASK, whose metadata name the task"
            raise missing_column(self._limits.name, rollout, "metadata", do)
        column = self._settings.answer_column
        if column not in rollout.prompt.columns:
            raise missing_column(self._limits.name, rollout, column, "set answer_column")
        answer = extract_answer(scored_text(rollout), self._settings) if rollout.text.strip() else None
        if answer is None or len(answer) > MAX_ANSWER_LENGTH:
            return None
        gold = rollout.prompt.columns[column]  # None where the task has no single right answer
        return {"question": rollout.prompt.question, "gold": gold, "metadata": dict(metadata), "answer": answer}

    def close(self) -> None:
        """End the worker processes."""
        self._pool.close()
