"""`format`: the completion is built of tagged blocks, such as <think>...</think> and then the answer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from quatrain.config import Section
from quatrain.rewards.verifier import VERIFIERS, Example, Kind, Limits, Scope, each, scored_text
from quatrain.types import Rollout, Score

END_MARKERS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>")


class FormatSettings(Section):
    """Settings of `format`."""

    tags: Annotated[tuple[Annotated[str, Field(pattern=r"^\w+$")], ...], Field(min_length=1)] = ("think",)
    end_markers: tuple[str, ...] = Field(END_MARKERS, description="the text is scored up to the first of these")


@dataclass(frozen=True, slots=True)
class Tag:
    """One tag in a text: `<name>` or `</name>` at [start, end)."""

    name: str
    opens: bool
    start: int
    end: int


def tags_of(text: str, names: Sequence[str]) -> Iterator[Tag]:
    """The tags of these names, in order; anything else between < and > is text."""
    known = {f"<{name}>": (name, True) for name in names} | {f"</{name}>": (name, False) for name in names}
    longest = max(map(len, known))
    position = text.find("<")
    while position >= 0:
        end = text.find(">", position, position + longest) + 1
        if end and (tag := known.get(text[position:end])):
            yield Tag(tag[0], tag[1], position, end)
        position = text.find("<", position + 1)


def well_formed(text: str, names: Sequence[str]) -> bool:
    """True for the blocks of `names`, each once, in order and not blank, with white space alone around them.

    With a single name the answer is the text after its block, which must not be blank; with several the last block
    is the answer and nothing follows it.
    """
    found = list(tags_of(text, names))
    if [(tag.name, tag.opens) for tag in found] != [(name, opens) for name in names for opens in (True, False)]:
        return False
    edges = [0, *(edge for tag in found for edge in (tag.start, tag.end)), len(text)]
    filled = [bool(text[start:end].strip()) for start, end in zip(edges[::2], edges[1::2], strict=True)]
    outside, inside, rest = filled[:-1:2], filled[1::2], filled[-1]
    return not any(outside) and all(inside) and rest == (len(names) == 1)


def until_end(text: str, markers: Sequence[str]) -> str:
    """The text before the first end marker."""
    return text[: min((found for marker in markers if (found := text.find(marker)) >= 0), default=len(text))]


@VERIFIERS.register("format")
@dataclass(frozen=True)
class Format:
    """1 when the completion has exactly the blocks of `tags` in order (see `well_formed`), else 0."""

    settings: FormatSettings
    limits: Limits
    Settings: ClassVar = FormatSettings
    scope: ClassVar[Scope] = "completion"
    kind: ClassVar[Kind] = "format"
    examples: ClassVar = (
        Example(completion="<think>Two and two make four.</think>The answer is 4.", value=1.0),
        Example(completion="<think>Two and two make four. The answer is 4.", value=0.0),
        Example(completion="<think> </think>The answer is 4.", value=0.0),
        Example(completion="<think>a</think><think>b</think>4", value=0.0),
    )

    async def score(self, rollouts: Sequence[Rollout]) -> Sequence[Score]:
        """One score per rollout."""
        return each(rollouts, self._judge)

    def _judge(self, rollout: Rollout) -> float:
        text = until_end(scored_text(rollout), self.settings.end_markers)
        return float(well_formed(text, self.settings.tags))

    def close(self) -> None:
        """Nothing to end."""
