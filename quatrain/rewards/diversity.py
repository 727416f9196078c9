"""`diversity`: how unlike the other completions of its group a completion is."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from pydantic import Field

from quatrain.config import Positive, Section
from quatrain.rewards.shaping import Unit, units_of
from quatrain.rewards.verifier import VERIFIERS, Example, Kind, Limits, Scope
from quatrain.types import Rollout, Score


class DiversitySettings(Section):
    """Settings of `diversity`."""

    n: Positive = Field(2, description="words or tokens of the n-grams compared")
    unit: Unit = "word"


def similarity(one: set[Hashable], other: set[Hashable]) -> float:
    """Jaccard: shared n-grams over all n-grams; two empty sets are alike."""
    return len(one & other) / len(one | other) if one or other else 1.0


@VERIFIERS.register("diversity")
@dataclass(frozen=True)
class Diversity:
    """1 - mean Jaccard similarity of a completion's n-grams to those of the group's other completions, in [0, 1].

    A blank completion scores 0 and is not compared with. One that has nobody to be compared with is not judged
    (abstained). It pays for being different, not for being right: give it a small weight beside a correctness part.
    """

    settings: DiversitySettings
    limits: Limits
    Settings: ClassVar = DiversitySettings
    scope: ClassVar[Scope] = "group"
    kind: ClassVar[Kind] = "shaping"
    examples: ClassVar = (
        Example(completion="add two and two", value=0.5),
        Example(completion="add two and two", value=0.5),
        Example(completion="count on your fingers", value=1.0),
        Example(completion=" ", value=0.0),
    )

    async def score(self, rollouts: Sequence[Rollout]) -> Sequence[Score]:
        """One score per rollout of one group."""
        grams = [self._grams(rollout) for rollout in rollouts]
        return [self._judge(position, grams) for position in range(len(rollouts))]

    def _grams(self, rollout: Rollout) -> set[Hashable] | None:
        """The n-grams (of a shorter text, the text itself); None for a blank one."""
        if not rollout.text.strip():
            return None
        units = units_of(rollout, self.settings.unit, self.limits.name)
        n = self.settings.n
        return set(zip(*(units[shift:] for shift in range(n)), strict=False)) if len(units) >= n else {tuple(units)}

    def _judge(self, position: int, grams: Sequence[set[Hashable] | None]) -> Score:
        own = grams[position]
        if own is None:
            return Score(value=0.0)
        others = [other for index, other in enumerate(grams) if index != position and other is not None]
        if not others:
            return Score(status="abstained")
        return Score(value=1 - sum(similarity(own, other) for other in others) / len(others))

    def close(self) -> None:
        """Nothing to end."""
