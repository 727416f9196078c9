"""Length, repetition and script: what shapes a completion whatever its answer."""

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from quatrain.config import NonNegative, Positive, Section
from quatrain.errors import SettingError, VerifierError
from quatrain.rewards.verifier import VERIFIERS, Example, Kind, Limits, Scope, each, label, scored_text
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


class RepetitionSettings(Section):
    """Settings of `repetition`."""

    n: Positive = 3
    penalty: Annotated[float, Field(le=0)] = Field(-1.0, description="score of a text that is one n-gram throughout")
    unit: Literal["token", "word"] = "token"


# scripts written without spaces: each character is a unit of its own
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+")


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
        units: Sequence[Hashable]
        if self.settings.unit == "token":
            units = completion_tokens(rollout, self.limits.name)
        else:
            units = _WORD.findall(rollout.text.casefold())
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
        letters = _LETTER.findall(_CODE.sub(" ", scored_text(rollout)))
        wanted = re.compile("[" + "".join(SCRIPTS[name] for name in self.settings.scripts) + "]")
        return len(wanted.findall("".join(letters))) / len(letters) if letters else None

    def close(self) -> None:
        """Nothing to end."""
