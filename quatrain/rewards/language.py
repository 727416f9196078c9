"""`language`: the completion stays in one language, that of its prompt or a given one."""

import importlib.util
from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from quatrain.config import Section
from quatrain.errors import SettingError
from quatrain.rewards.function import accepted
from quatrain.rewards.pool import Pool
from quatrain.rewards.verifier import VERIFIERS, Example, Kind, Limits, Scope, scored_text
from quatrain.types import Rollout, Score

COMMON = (
    "ar", "bg", "bn", "ca", "cs", "da", "de", "el", "en", "es", "fa", "fi", "fr", "he", "hi", "hr", "hu", "id", "it",
    "ja", "ko", "lt", "ms", "nl", "no", "pl", "pt", "ro", "ru", "sk", "sl", "sr", "sv", "ta", "te", "th", "tr", "uk",
    "ur", "vi", "zh",
)  # fmt: skip


class LanguageSettings(Section):
    """Settings of `language`."""

    language: str = Field("prompt", pattern=r"^(prompt|[a-z]{2})$", description="ISO 639-1 code; prompt: the prompt's")
    languages: Annotated[tuple[Annotated[str, Field(pattern=r"^[a-z]{2}$")], ...], Field(min_length=2)] = Field(
        COMMON, description="the languages told apart"
    )

    @model_validator(mode="after")
    def _known(self) -> "LanguageSettings":
        if self.language not in ("prompt", *self.languages):
            raise SettingError("language", self.language, "prompt or one of languages", "add it to languages")
        return self


@VERIFIERS.register("language")
class Language:
    """The share of the letters in sentences of the wanted language, in [0, 1] (arXiv:2501.12948, section 2.3.2).

    The paper counts words; sentences are told apart far better. Code in back-ticks, tags and $mathematics$ do not
    count, sentences of a few words are judged with their neighbours. A blank text scores 0; one with too few letters is
    not judged (abstained). Told apart by py3langid, whose model is in its package; nothing is fetched.
    """

    Settings: ClassVar[type[Section]] = LanguageSettings
    default_timeout_s: ClassVar[float] = 5.0
    scope: ClassVar[Scope] = "completion"
    kind: ClassVar[Kind] = "shaping"
    examples: ClassVar[tuple[Example, ...]] = (
        Example(prompt="How many apples does she have left?", completion="She has twelve apples left.", value=1.0),
        Example(prompt="How many apples does she have left?", completion="Il lui reste douze pommes.", value=0.0),
        Example(prompt="Combien de pommes lui reste-t-il ?", completion="Il lui reste douze pommes.", value=1.0),
        Example(prompt="How many apples does she have left?", completion=" ", value=0.0),
    )

    def __init__(self, settings: LanguageSettings, limits: Limits) -> None:
        if importlib.util.find_spec("py3langid") is None:
            raise SettingError(f"{limits.setting}.kind", "language", "py3langid to be installed",
                               "pip install 'quatrain[language]'")  # fmt: skip
        self._settings, self._limits = settings, limits
        self._pool = Pool("quatrain.rewards.language_worker:share", setting=limits.setting, timeout_s=limits.timeout_s)

    async def score(self, rollouts: Sequence[Rollout]) -> Sequence[Score]:
        """One score per rollout."""
        own = self._settings
        asked = {
            position: {"completion": scored_text(rollout), "prompt": rollout.prompt.question or rollout.prompt.text,
                       "language": own.language, "languages": own.languages}
            for position, rollout in enumerate(rollouts) if rollout.text.strip()
        }  # fmt: skip
        answers = await self._pool.call(list(asked.values())) if asked else []
        judged = accepted(answers, [rollouts[position] for position in asked], self._limits.name)
        found = dict(zip(asked, judged, strict=True))
        return [found.get(position, Score(value=0.0)) for position in range(len(rollouts))]

    def close(self) -> None:
        """End the worker processes."""
        self._pool.close()
