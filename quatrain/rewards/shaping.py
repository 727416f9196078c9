"""Length, repetition and script: what shapes a completion whatever its answer."""

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from quatrain.config import NonNegative, Positive, Section
from quatrain.errors import SettingError, VerifierError
from quatrain.rewards.verifier import VERIFIERS, Example, Kind, Limits, Scope, each, label, missing_column, scored_text
from quatrain.types import Rollout, Score


def completion_tokens(rollout: Rollout, name: str) -> list[int]:
    """The ids of the trained tokens; VerifierError for a text that comes without its tokens."""
    if rollout.text and not rollout.trajectories:
        raise VerifierError(f"{name}: {label(rollout)} has text but no token ids, need the tokens; give `token_ids`")
    return [int(token) for part in rollout.trajectories for token in part.token_ids[part.trained]]


class SoftOverlongSettings(Section):
    """Settings of `soft_overlong`."""

    max_tokens: Positive = 256
    cache_tokens: NonNegative = Field(32, description="length of the slope before max_tokens")

    @model_validator(mode="after")
    def _slope_fits(self) -> "SoftOverlongSettings":
        if self.cache_tokens > self.max_tokens:
            raise SettingError("cache_tokens", self.cache_tokens, f"at most max_tokens = {self.max_tokens}", "lower it")
        return self


@VERIFIERS.register("soft_overlong")
@dataclass(frozen=True)
class SoftOverlong:
    """The soft length penalty of DAPO (arXiv:2503.14476, eq. 13), with L tokens, maximum M and slope C.

    0 for L <= M - C;  (M - C - L) / C for M - C < L <= M;  -1 for L > M.
    """

    settings: SoftOverlongSettings
    limits: Limits
    Settings: ClassVar = SoftOverlongSettings
    scope: ClassVar[Scope] = "completion"
    kind: ClassVar[Kind] = "shaping"
    examples: ClassVar = (
        Example(completion="short", tokens=(5,) * 224, value=0.0),
        Example(completion="long", tokens=(5,) * 240, value=-0.5),
        Example(completion="too long", tokens=(5,) * 300, value=-1.0),
    )

    async def score(self, rollouts: Sequence[Rollout]) -> Sequence[Score]:
        """One score per rollout."""
        return each(rollouts, self._judge)

    def _judge(self, rollout: Rollout) -> float:
        length = len(completion_tokens(rollout, self.limits.name))
        maximum, slope = self.settings.max_tokens, self.settings.cache_tokens
        if length > maximum:
            return -1.0
        return min(0.0, (maximum - slope - length) / slope) if slope else 0.0

    def close(self) -> None:
        """Nothing to end."""


class TargetLengthSettings(Section):
    """Settings of `target_length`."""

    target_tokens: Positive | None = Field(None, description="null: the row's own, in target_column")
    target_column: str = Field("target_tokens", description="column with the row's target")
    mode: Literal["exact", "at_most"] = Field("exact", description="at_most: a shorter completion costs nothing")
    slope_tokens: Positive = Field(256, description="distance from the target at which the whole penalty is due")


@VERIFIERS.register("target_length")
@dataclass(frozen=True)
class TargetLength:
    """-min(1, |L - target| / slope) for L tokens; with `at_most`, L - target where that is positive.

    The length term of L1 (arXiv:2503.04697, eq. 1: alpha |n_target - n|) with alpha = 1 / slope, bounded at -1.
    """

    settings: TargetLengthSettings
    limits: Limits
    Settings: ClassVar = TargetLengthSettings
    scope: ClassVar[Scope] = "completion"
    kind: ClassVar[Kind] = "shaping"
    examples: ClassVar = (
        Example(completion="as asked", tokens=(5,) * 64, columns={"target_tokens": 64}, value=0.0),
        Example(completion="long", tokens=(5,) * 192, columns={"target_tokens": 64}, value=-0.5),
        Example(completion="short", tokens=(5,) * 4, columns={"target_tokens": 68}, value=-0.25),
        Example(completion="far too long", tokens=(5,) * 400, columns={"target_tokens": 64}, value=-1.0),
    )

    async def score(self, rollouts: Sequence[Rollout]) -> Sequence[Score]:
        """One score per rollout; VerifierError for a row without a target."""
        return each(rollouts, self._judge)

    def _judge(self, rollout: Rollout) -> float:
        over = len(completion_tokens(rollout, self.limits.name)) - self._target(rollout)
        distance = max(0, over) if self.settings.mode == "at_most" else abs(over)
        return -min(1.0, distance / self.settings.slope_tokens) + 0.0

    def _target(self, rollout: Rollout) -> int:
        if self.settings.target_tokens is not None:
            return self.settings.target_tokens
        column, name = self.settings.target_column, self.limits.name
        if column not in rollout.prompt.columns:
            raise missing_column(name, rollout, column, "set target_tokens or target_column")
        target = rollout.prompt.columns[column]
        if isinstance(target, bool) or not isinstance(target, int) or target < 1:
            raise VerifierError(f"{name}: {label(rollout)}: column {column!r} is {target!r}, need a number of tokens")
        return target

    def close(self) -> None:
        """Nothing to end."""


Unit = Literal["token", "word"]


class RepetitionSettings(Section):
    """Settings of `repetition`."""

    n: Positive = 3
    penalty: Annotated[float, Field(le=0)] = Field(-1.0, description="score of a text that is one n-gram throughout")
    unit: Unit = "token"


# scripts written without spaces: each character is a unit of its own
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+")


def words(text: str) -> list[str]:
    """Words without regard to case; in scripts without spaces, characters."""
    return _WORD.findall(text.casefold())


def units_of(rollout: Rollout, unit: Unit, name: str) -> Sequence[Hashable]:
    """The completion's token ids or its words."""
    return completion_tokens(rollout, name) if unit == "token" else words(rollout.text)


@VERIFIERS.register("repetition")
@dataclass(frozen=True)
class Repetition:
    """penalty * (1 - distinct / all) over n-grams of tokens or words; 0 for a text shorter than n (arXiv:2502.03373).

    The share of repeated n-grams is taken over the whole text; the paper places its penalty at each repeated token.
    """

    settings: RepetitionSettings
    limits: Limits
    Settings: ClassVar = RepetitionSettings
    scope: ClassVar[Scope] = "completion"
    kind: ClassVar[Kind] = "shaping"
    examples: ClassVar = (
        Example(completion="a b c d e", tokens=(1, 2, 3, 4, 5), value=0.0),
        Example(completion="aaaaaaaaaaaa", tokens=(7,) * 12, value=-0.9),
    )

    async def score(self, rollouts: Sequence[Rollout]) -> Sequence[Score]:
        """One score per rollout."""
        return each(rollouts, self._judge)

    def _judge(self, rollout: Rollout) -> float:
        units = units_of(rollout, self.settings.unit, self.limits.name)
        count = len(units) - self.settings.n + 1
        if count < 1:
            return 0.0
        grams = set(zip(*(units[shift : shift + count] for shift in range(self.settings.n)), strict=True))
        return self.settings.penalty * (1 - len(grams) / count) + 0.0

    def close(self) -> None:
        """Nothing to end."""


SCRIPTS = {
    "latin": "A-Za-z\u00aa\u00ba\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u1e00-\u1eff",
    "greek": "\u0370-\u03ff\u1f00-\u1fff",
    "cyrillic": "\u0400-\u052f",
    "hebrew": "\u0590-\u05ff",
    "arabic": "\u0600-\u06ff\u0750-\u077f",
    "devanagari": "\u0900-\u097f",
    "thai": "\u0e00-\u0e7f",
    "hangul": "\u1100-\u11ff\uac00-\ud7af",
    "kana": "\u3040-\u30ff",
    "han": "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff",
}


class ScriptSettings(Section):
    """Settings of `script`."""

    scripts: Annotated[tuple[Literal["latin", "greek", "cyrillic", "hebrew", "arabic", "devanagari", "thai", "hangul",
                                     "kana", "han"], ...], Field(min_length=1)] = ("latin",)  # fmt: skip


_CODE = re.compile(r"```[^`]*```|`[^`\n]*`|</?\w+>|\$[^$\n]*\$")
_LETTER = re.compile(r"[^\W\d_]")


def without_code(text: str) -> str:
    """A text without code in back-ticks, tags and $mathematics$."""
    return _CODE.sub(" ", text)


def letters(text: str) -> list[str]:
    """The letters of a text, of any script."""
    return _LETTER.findall(text)


@VERIFIERS.register("script")
@dataclass(frozen=True)
class Script:
    """Share of the letters that belong to the wanted scripts: a guard against mixing languages.

    It tells English from Chinese, not English from French. Code in back-ticks, tags and $mathematics$ are not counted.
    A blank text scores 0; a text without any letter is not judged (abstained).
    """

    settings: ScriptSettings
    limits: Limits
    Settings: ClassVar = ScriptSettings
    scope: ClassVar[Scope] = "completion"
    kind: ClassVar[Kind] = "shaping"
    examples: ClassVar = (
        Example(completion="Run `x = sum(v)`. The answer is 4.", value=1.0),
        Example(completion="four 四四四四", value=0.5),
        Example(completion="", value=0.0),
    )

    async def score(self, rollouts: Sequence[Rollout]) -> Sequence[Score]:
        """One score per rollout."""
        return each(rollouts, self._judge)

    def _judge(self, rollout: Rollout) -> float | None:
        if not rollout.text.strip():
            return 0.0
        found = letters(without_code(scored_text(rollout)))
        wanted = re.compile("[" + "".join(SCRIPTS[name] for name in self.settings.scripts) + "]")
        return len(wanted.findall("".join(found))) / len(found) if found else None

    def close(self) -> None:
        """Nothing to end."""
