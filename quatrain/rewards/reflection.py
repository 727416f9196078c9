"""`reflection`: a penalty for going in circles ("wait, let me rethink ...") without saying anything new."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from quatrain.config import NonNegative, Positive, Section
from quatrain.rewards.shaping import words
from quatrain.rewards.verifier import VERIFIERS, Example, Kind, Limits, Scope, each, scored_text
from quatrain.types import Rollout, Score

PHRASES = (
    "wait", "hmm", "hold on", "let me rethink", "let me think again", "let me check again", "let me recheck",
    "let me re-check", "let me double-check", "let me double check", "let me verify", "let me reconsider",
    "let me start over", "let's rethink", "let's check again", "let's reconsider", "on second thought", "alternatively",
    "actually", "等等", "等一下", "让我再想想", "重新考虑", "再检查一遍",
)  # fmt: skip
N = 3  # words of the n-grams by which a stretch is compared with what stood before it


class ReflectionSettings(Section):
    """Settings of `reflection`."""

    phrases: Annotated[tuple[str, ...], Field(min_length=1)] = Field(PHRASES, description="what opens a reflection")
    overlap: Annotated[float, Field(gt=0, le=1)] = Field(
        0.5, description="a reflection circles when this share of its 3-grams has stood before"
    )
    allowed: NonNegative = Field(1, description="circling reflections that cost nothing")
    full_after: Positive = Field(5, description="further ones after which the whole penalty is due")
    penalty: Annotated[float, Field(le=0)] = -1.0


def circling(text: str, phrases: Sequence[str], overlap: float) -> int:
    """Reflections whose stretch of text, up to the next one, repeats what stood before it or says nothing."""
    opens = "|".join(re.escape(phrase) for phrase in sorted(phrases, key=len, reverse=True))
    one = rf"(?:(?<![a-z])(?:{opens})(?![a-z]))"
    stretches = re.split(rf"{one}(?:\W{{0,4}}{one}){{0,2}}", text.casefold())  # "wait, let me rethink" is one
    seen: set[tuple[str, ...]] = set()
    count = 0
    for number, stretch in enumerate(stretches):
        said = words(stretch)
        grams = list(zip(*(said[shift:] for shift in range(N)), strict=False)) if len(said) >= N else [tuple(said)]
        if number and (not said or sum(gram in seen for gram in grams) >= overlap * len(grams)):
            count += 1
        seen.update(grams)
    return count


@VERIFIERS.register("reflection")
@dataclass(frozen=True)
class Reflection:
    """penalty * min(1, (circling - allowed) / full_after), with the reflections that circle; 0 for those that move on.

    A reflection is the text from one of `phrases` to the next. It circles when `overlap` of its word 3-grams stood
    before, or when it says nothing. Reflecting itself is not punished.
    """

    settings: ReflectionSettings
    limits: Limits
    Settings: ClassVar = ReflectionSettings
    scope: ClassVar[Scope] = "completion"
    kind: ClassVar[Kind] = "shaping"
    examples: ClassVar = (
        Example(completion="2 + 2 is 5. Wait, counting on my fingers gives 4 instead. The answer is 4.", value=0.0),
        Example(completion="The sum is 4. " + "Wait, let me rethink. The sum is 4. " * 3, value=-0.4),
        Example(completion="The sum is 4. " + "Hmm, wait. " * 40, value=-1.0),
        Example(completion="", value=0.0),
    )

    async def score(self, rollouts: Sequence[Rollout]) -> Sequence[Score]:
        """One score per rollout."""
        return each(rollouts, self._judge)

    def _judge(self, rollout: Rollout) -> float:
        own = self.settings
        over = circling(scored_text(rollout), own.phrases, own.overlap) - own.allowed
        return own.penalty * min(1.0, max(0, over) / own.full_after) + 0.0

    def close(self) -> None:
        """Nothing to end."""
