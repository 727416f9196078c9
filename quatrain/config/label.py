"""The recipe of AI feedback: a judge labels answers of a model into a preference dataset."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from quatrain.config.base import NonNegative, Positive, Section
from quatrain.config.parts import ModelConfig, RolloutConfig, SourceConfig
from quatrain.errors import SettingError


class LabelJudgeConfig(Section):
    """Who compares: the verifier `judge` (an address) or `local_judge` (a model here), with its own settings."""

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)

    kind: Literal["judge", "local_judge"] = "local_judge"
    timeout_s: Annotated[float, Field(gt=0)] = Field(60.0, description="seconds of one question to an address")


class LabelRecipe(Section):
    """A whole labelling run. `output` is a folder with pairs.jsonl and, with `revise`, revisions.jsonl."""

    method: Literal["label"]
    model: Annotated[ModelConfig, BeforeValidator(lambda value: {"path": value} if isinstance(value, str) else value)]
    prompts: list[SourceConfig] = Field(min_length=1)
    limit: Positive | None = Field(None, description="prompts that are labelled; default: each once")
    rollout: RolloutConfig = Field(default_factory=lambda: RolloutConfig(group_size=2))
    pairs_per_prompt: Positive | None = Field(None, description="default: every pair of a prompt's answers")
    judge: LabelJudgeConfig = Field(default_factory=lambda: LabelJudgeConfig())
    constitution: list[str] = Field(
        default_factory=list,
        description="principles; each pair and each revision has one, drawn by the seed",
    )
    revise: bool = Field(False, description="also let the model criticise and rewrite its first answer by a principle")
    prompts_per_step: Positive = Field(8, description="prompts that are answered side by side")
    output: str = "runs/labels"
    seed: NonNegative = 0
    threads: NonNegative = Field(0, description="CPU threads; 0: as torch chooses")

    @model_validator(mode="after")
    def _consistent(self) -> "LabelRecipe":
        if self.rollout.group_size < 2:
            raise SettingError("rollout.group_size", self.rollout.group_size, "at least 2 answers to compare", "use 2")
        if self.rollout.temperature == 0:
            raise SettingError("rollout.temperature", 0, "a temperature above 0",
                               "greedy answers are all equal; use 1.0")  # fmt: skip
        if self.revise and not self.constitution:
            raise SettingError("revise", True, "a constitution", "write principles, or set revise=false")
        if self.constitution and "rubric" in (self.judge.model_extra or {}):
            raise SettingError("judge.rubric", "a text", "none beside a constitution",
                               "each principle takes the place of the rubric; remove one")  # fmt: skip
        return self

    @property
    def judge_settings(self) -> dict[str, Any]:
        """The judge's own settings."""
        return dict(self.judge.model_extra or {})
