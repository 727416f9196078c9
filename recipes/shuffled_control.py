"""The control of the demo: the same rewards, dealt out to the wrong completions.

A gain that appears with these rewards too would be an artefact of the training, not something that was taught.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from quatrain.config import Section, VerifierConfig
from quatrain.rewards import build_verifier
from quatrain.rewards.verifier import Kind, Limits, Scope
from quatrain.types import Rollout, Score


class ShuffledSettings(Section):
    """The verifier whose scores are dealt out."""

    of: VerifierConfig


@dataclass
class Shuffled:
    """Scores of the verifier `of`, permuted over all completions of the step (a fixed permutation per step)."""

    settings: ShuffledSettings
    limits: Limits
    Settings: ClassVar = ShuffledSettings
    scope: ClassVar[Scope] = "completion"
    kind: ClassVar[Kind] = "shaping"
    examples: ClassVar = ()

    def __post_init__(self) -> None:
        self._inner = build_verifier(self.settings.of, f"{self.limits.setting}.of")

    async def score(self, rollouts: Sequence[Rollout]) -> Sequence[Score]:
        """One score per rollout, of some rollout."""
        scores = list(await self._inner.score(rollouts))
        random.Random(repr([rollout.prompt.index for rollout in rollouts])).shuffle(scores)
        return scores

    def close(self) -> None:
        """Close the inner verifier."""
        self._inner.close()
