"""The recipe of an offline run: examples with their answers, no sampling (SFT, reward model, preferences)."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from quatrain.config.base import NonNegative, Positive, Section
from quatrain.config.parts import CheckpointConfig, DataConfig, LogConfig, ModelConfig, OptimizerConfig
from quatrain.errors import SettingError


class SFTConfig(Section):
    """Supervised fine-tuning: the negative log-probability of the answers' tokens."""

    name: Literal["sft"]
    aggregate: Literal["token", "sequence"] = Field(
        "token", description="mean over all trained tokens, or over examples of each one's mean"
    )


class RewardModelConfig(Section):
    """A Bradley-Terry reward model on pairs and rankings, with one head per attribute."""

    name: Literal["reward_model"]
    ties: Literal["half", "discard"] = Field("half", description="pairs without a winner: half a win each, or left out")
    centering: Annotated[float, Field(ge=0)] = Field(0.0, description="c of the term c (r_w + r_l)^2")
    attributes: dict[str, float] = Field(
        default_factory=dict, description="heads by attribute with their weights in the score; none: one head"
    )
    normalise: Literal["none", "standard", "zero_mean"] = Field(
        "standard", description="of the scores on held-out (else training) answers: mean 0 and deviation 1, or "
        "mean 0 on the chosen ones"
    )  # fmt: skip


class PreferenceConfig(Section):
    """Preference methods on pairs (dpo, ipo, orpo, simpo) or on labelled answers (kto)."""

    name: Literal["dpo", "ipo", "kto", "orpo", "simpo"]
    beta: Annotated[float, Field(gt=0)] | None = Field(None, description="default: 0.1; simpo 2.0")
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = Field(0.0, description="dpo: share of wrong labels, e")
    robust: bool = Field(False, description="dpo: the unbiased form for wrong labels in place of the conservative one")
    average_logprobs: bool = Field(False, description="ipo: mean in place of summed log-probabilities")
    desirable_weight: Annotated[float, Field(gt=0)] = 1.0
    undesirable_weight: Annotated[float, Field(gt=0)] = 1.0
    odds_weight: Annotated[float, Field(gt=0)] = Field(0.1, description="orpo: lambda, the odds-ratio term's weight")
    margin: Annotated[float, Field(ge=0)] = Field(1.0, description="simpo: gamma, the target margin")

    @model_validator(mode="after")
    def _own_settings(self) -> "PreferenceConfig":
        owner = {"label_smoothing": "dpo", "robust": "dpo", "average_logprobs": "ipo", "desirable_weight": "kto",
                 "undesirable_weight": "kto", "odds_weight": "orpo", "margin": "simpo"}  # fmt: skip
        for name in sorted(self.model_fields_set & set(owner)):
            value, default = getattr(self, name), type(self).model_fields[name].default
            if owner[name] != self.name and value != default:
                raise SettingError(f"algorithm.{name}", value, f"algorithm.name {owner[name]}", "remove it")
        if self.beta is not None and self.name == "orpo":
            raise SettingError("algorithm.beta", self.beta, "null for orpo", "set algorithm.odds_weight")
        if self.robust and not self.label_smoothing:
            raise SettingError("algorithm.robust", True, "a label_smoothing above 0", "set the share of wrong labels")
        return self

    @property
    def strength(self) -> float:
        """beta, with the method's default where none is set."""
        return self.beta if self.beta is not None else 2.0 if self.name == "simpo" else 0.1

    @property
    def reads_reference(self) -> bool:
        """True for the methods that compare with a reference."""
        return self.name in ("dpo", "ipo", "kto")


OFFLINE = ("sft", "reward_model", "dpo", "ipo", "kto", "orpo", "simpo")
OfflineAlgorithm = Annotated[SFTConfig | RewardModelConfig | PreferenceConfig, Field(discriminator="name")]


class OfflineTrainConfig(OptimizerConfig):
    """Length of the run, batch arithmetic and the optimizer."""

    epochs: Annotated[float, Field(gt=0)] = Field(1.0, description="passes over the examples, where steps is null")
    steps: Positive | None = Field(None, description="default: as many as `epochs` needs")
    examples_per_step: Positive = Field(16, description="rows (a pair is one row) of an update")


class OfflineEvalConfig(Section):
    """Evaluation on the held-out examples: the loss without gradient, and accuracy where there are pairs."""

    every: NonNegative = Field(0, description="steps between evaluations; 0: only before and after")


class LengthConfig(Section):
    """How long an example may be."""

    max_tokens: Positive | None = Field(None, description="prompt + answer; default: the model's positions")
    max_completion_tokens: Positive | None = Field(None, description="each answer by itself; default: no limit")
    too_long: Literal["cut", "skip"] = Field("cut", description="answers are cut at their end, or the row is left out")


class OfflineRecipe(Section):
    """A whole offline run."""

    method: Literal["offline"]
    model: Annotated[ModelConfig, BeforeValidator(lambda value: {"path": value} if isinstance(value, str) else value)]
    data: list[DataConfig] = Field(min_length=1)
    held_out: list[DataConfig] = Field(default_factory=list)
    held_out_share: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="share of the data's prompts that is held out, where held_out is empty"
    )
    overlap: Literal["error", "drop"] = Field(
        "error", description="training prompts that are held out too: an error, or left out of training and counted"
    )
    length: LengthConfig = Field(default_factory=LengthConfig)
    algorithm: OfflineAlgorithm
    train: OfflineTrainConfig = Field(default_factory=OfflineTrainConfig)
    evaluation: OfflineEvalConfig = Field(default_factory=OfflineEvalConfig)
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    log: LogConfig = Field(default_factory=LogConfig)
    output: str = "runs/unnamed"
    seed: NonNegative = 0
    threads: NonNegative = Field(0, description="CPU threads of the trainer; 0: as torch chooses")

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, data: Any) -> Any:
        """`algorithm: dpo` is short for `algorithm: {name: dpo}`."""
        if isinstance(data, dict) and isinstance(data.get("algorithm"), str):
            return {**data, "algorithm": {"name": data["algorithm"]}}
        return data

    @model_validator(mode="after")
    def _consistent(self) -> "OfflineRecipe":
        if self.held_out and self.held_out_share:
            raise SettingError("held_out_share", self.held_out_share, "0 beside held_out", "remove one of them")
        if self.evaluation.every and not (self.held_out or self.held_out_share):
            raise SettingError("evaluation.every", self.evaluation.every, "held_out data or a held_out_share",
                               "set one of them, or every=0")  # fmt: skip
        if self.checkpoint.keep_best and not self.evaluation.every:
            raise SettingError("checkpoint.keep_best", self.checkpoint.keep_best, "evaluation.every above 0",
                               "set it, or keep_best=0")  # fmt: skip
        return self
