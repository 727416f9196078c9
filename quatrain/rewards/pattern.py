"""`regex`: the completion matches a regular expression, under a deadline."""

import re
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from quatrain.config import Section
from quatrain.errors import SettingError, VerifierError
from quatrain.rewards.format import END_MARKERS, until_end
from quatrain.rewards.function import accepted
from quatrain.rewards.pool import Pool
from quatrain.rewards.verifier import VERIFIERS, Example, Kind, Limits, Scope, label, missing_column, scored_text
from quatrain.types import Rollout, Score


class RegexSettings(Section):
    """Settings of `regex`."""

    pattern: str | None = Field(None, description="Python regular expression; null: the row's, in pattern_column")
    pattern_column: str = Field("pattern", description="column with the row's pattern")
    match: Literal["full", "search"] = Field("full", description="the whole stripped text, or anywhere in it")
    ignore_case: bool = False
    dot_all: bool = Field(True, description="the dot matches line ends too")


def matches(pattern: str, text: str, full: bool, flags: int) -> bool:
    """Python's own `re`; runs in a worker process that is killed at its deadline."""
    compiled = re.compile(pattern, flags)
    return bool(compiled.fullmatch(text) if full else compiled.search(text))


@VERIFIERS.register("regex")
class Regex:
    """1 when the stripped completion matches, else 0; a blank one never does.

    Matching runs in worker processes: a pattern that backtracks without end is an error (by `on_error`) at `timeout_s`.
    """

    Settings: ClassVar[type[Section]] = RegexSettings
    default_timeout_s: ClassVar[float] = 0.5
    scope: ClassVar[Scope] = "completion"
    kind: ClassVar[Kind] = "format"
    examples: ClassVar[tuple[Example, ...]] = (
        Example(completion=" 2024-05-17\n", columns={"pattern": r"\d{4}-\d{2}-\d{2}"}, value=1.0),
        Example(completion="on 2024-05-17", columns={"pattern": r"\d{4}-\d{2}-\d{2}"}, value=0.0),
        Example(completion=" ", columns={"pattern": ".*"}, value=0.0),
    )

    def __init__(self, settings: RegexSettings, limits: Limits) -> None:
        self._settings, self._limits = settings, limits
        self._flags = (re.IGNORECASE if settings.ignore_case else 0) | (re.DOTALL if settings.dot_all else 0)
        if settings.pattern is not None and (fault := self._fault(settings.pattern)):
            raise SettingError(f"{limits.setting}.pattern", settings.pattern, "a regular expression", fault)
        self._pool = Pool("quatrain.rewards.pattern:matches", setting=limits.setting, timeout_s=limits.timeout_s)

    def _fault(self, pattern: str) -> str:
        try:
            re.compile(pattern, self._flags)
        except (re.error, RecursionError, OverflowError) as error:
            return str(error)
        return ""

    async def score(self, rollouts: Sequence[Rollout]) -> Sequence[Score]:
        """One score per rollout; VerifierError for a row without a usable pattern."""
        scores = [Score(value=0.0)] * len(rollouts)
        asked = {position: one for position, rollout in enumerate(rollouts) if (one := self._given(rollout))["text"]}
        answers = await self._pool.call(list(asked.values())) if asked else []
        judged = accepted(answers, [rollouts[position] for position in asked], self._limits.name)
        for position, score in zip(asked, judged, strict=True):
            scores[position] = score
        return scores

    def _given(self, rollout: Rollout) -> dict[str, Any]:
        pattern = self._settings.pattern
        if pattern is None:
            column = self._settings.pattern_column
            if column not in rollout.prompt.columns:
                raise missing_column(self._limits.name, rollout, column, "set pattern or pattern_column")
            pattern = str(rollout.prompt.columns[column])
            if fault := self._fault(pattern):
                raise VerifierError(f"{self._limits.name}: {label(rollout)}: column {column!r} is {pattern[:60]!r}, "
                                    f"need a regular expression: {fault}")  # fmt: skip
        text = until_end(scored_text(rollout), END_MARKERS).strip()
        return {"pattern": pattern, "text": text, "full": self._settings.match == "full", "flags": int(self._flags)}

    def close(self) -> None:
        """End the worker processes."""
        self._pool.close()
