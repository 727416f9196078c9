"""`json_object`: the completion is one JSON object that has the required keys."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NoReturn

from pydantic import Field

from quatrain.config import Section
from quatrain.rewards.format import END_MARKERS, until_end
from quatrain.rewards.verifier import VERIFIERS, Example, Kind, Limits, Scope, each, scored_text
from quatrain.types import Rollout, Score


class JsonObjectSettings(Section):
    """Settings of `json_object`."""

    required: tuple[str, ...] = Field((), description="keys that the object must have")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


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
        text = until_end(scored_text(rollout), END_MARKERS).strip()
        if text.startswith("```") and text.endswith("```") and "\n" in text:
            text = text.partition("\n")[2].removesuffix("```")
        try:
            value = json.loads(text, parse_constant=_no_constant)
        except (ValueError, RecursionError):
            return 0.0
        return float(isinstance(value, dict) and all(key in value for key in self.settings.required))

    def close(self) -> None:
        """Nothing to end."""
