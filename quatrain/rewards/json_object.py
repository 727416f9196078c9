"""`json_object`: the completion is one JSON object that has the required keys."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

from pydantic import Field

from quatrain.config import Section
from quatrain.rewards.format import END_MARKERS, until_end
from quatrain.rewards.verifier import VERIFIERS, Example, Kind, Limits, Scope, each, scored_text
from quatrain.types import Rollout, Score


class JsonObjectSettings(Section):
    """Settings of `json_object`."""

    required: tuple[str, ...] = Field((), description="keys that the object must have")


def read_json(text: str) -> Any:
    """The value of a text that is JSON (RFC 8259), with or without one fence of back-ticks around it.

    Raises ValueError for anything else, also for NaN, for an object with a key twice and for nesting that is too deep.
    """
    text = until_end(text, END_MARKERS).strip()
    if text.startswith("```") and text.endswith("```") and "\n" in text:
        text = text.partition("\n")[2].removesuffix("```")
    try:
        return json.loads(text, parse_constant=_no_constant, object_pairs_hook=_no_key_twice)
    except RecursionError:
        raise ValueError("nested too deep") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return found


@VERIFIERS.register("json_object")
@dataclass(frozen=True)
class JsonObject:
    """1 when the whole text, with or without one fence of back-ticks around it, is a JSON object (RFC 8259)."""

    settings: JsonObjectSettings
    limits: Limits
    Settings: ClassVar = JsonObjectSettings
    scope: ClassVar[Scope] = "completion"
    kind: ClassVar[Kind] = "format"
    examples: ClassVar = (
        Example(completion='```json\n{"answer": 4}\n```', value=1.0),
        Example(completion='{"answer": 4,}', value=0.0),
        Example(completion='"hello"', value=0.0),
        Example(completion='{"answer": NaN}', value=0.0),
    )

    async def score(self, rollouts: Sequence[Rollout]) -> Sequence[Score]:
        """One score per rollout."""
        return each(rollouts, self._judge)

    def _judge(self, rollout: Rollout) -> float:
        try:
            value = read_json(scored_text(rollout))
        except ValueError:
            return 0.0
        return float(isinstance(value, dict) and all(key in value for key in self.settings.required))

    def close(self) -> None:
        """Nothing to end."""
