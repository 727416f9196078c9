"""The recipe of an online run: prompts, completions, scores, updates."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from quatrain.config.algorithm import AlgorithmConfig
from quatrain.config.base import NonNegative, Section
from quatrain.config.parts import (
    CheckpointConfig,
    CurriculumConfig,
    EvalConfig,
    LogConfig,
    ModelConfig,
    RolloutConfig,
    SourceConfig,
    TrainConfig,
    VerifierConfig,
)
from quatrain.errors import SettingError, nearest


class Recipe(Section):
    """A whole run. `quatrain train --schema` prints this as JSON Schema."""

    method: Literal["online"] = "online"
    model: Annotated[ModelConfig, BeforeValidator(lambda value: {"path": value} if isinstance(value, str) else value)]
    prompts: list[SourceConfig] = Field(min_length=1)
    held_out: list[SourceConfig] = Field(default_factory=list)
    overlap: Literal["error", "drop"] = Field(
        "error", description="training prompts that are held out too: an error, or left out of training and counted"
    )
    verifiers: dict[str, dict[str, VerifierConfig]] = Field(min_length=1)
    rollout: RolloutConfig = Field(default_factory=RolloutConfig)
    algorithm: AlgorithmConfig = Field(default_factory=lambda: AlgorithmConfig.model_validate({}))
    train: TrainConfig = Field(default_factory=TrainConfig)
    curriculum: CurriculumConfig = Field(default_factory=CurriculumConfig)
    evaluation: EvalConfig = Field(default_factory=EvalConfig)
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    log: LogConfig = Field(default_factory=LogConfig)
    output: str = "runs/unnamed"
    seed: NonNegative = 0
    threads: NonNegative = Field(0, description="CPU threads of the trainer; 0: as torch chooses")

    @model_validator(mode="after")
    def _consistent(self) -> "Recipe":
        check_recipe(self)
        return self

    @property
    def rubrics(self) -> dict[str, dict[str, VerifierConfig]]:
        """The verifiers, with the length penalty of `algorithm.soft_overlong` as a part of each when it is set."""
        share, longest = self.algorithm.soft_overlong, self.rollout.max_tokens
        if share is None:
            return self.verifiers
        slope = {"kind": "soft_overlong", "max_tokens": longest, "cache_tokens": max(1, round(share * longest))}
        return {name: {**parts, "soft_overlong": VerifierConfig.model_validate(slope)}
                for name, parts in self.verifiers.items()}  # fmt: skip


def check_recipe(recipe: Recipe) -> None:
    """Conditions between settings; raises SettingError."""
    train, rollout, algorithm = recipe.train, recipe.rollout, recipe.algorithm
    if train.prompts_per_step % train.updates_per_step:
        raise SettingError(
            "train.updates_per_step", train.updates_per_step,
            f"a divisor of train.prompts_per_step = {train.prompts_per_step} (groups stay whole)",
            f"use one of {[n for n in range(1, train.prompts_per_step + 1) if train.prompts_per_step % n == 0]}",
        )  # fmt: skip
    if rollout.group_size < 2 and (algorithm.baseline in ("group_mean", "leave_one_out") or algorithm.scale == "group"):
        raise SettingError("rollout.group_size", rollout.group_size, "at least 2 for a group baseline",
                           "a completion is compared with the others of its prompt; use 8")  # fmt: skip
    if rollout.temperature == 0:
        raise SettingError("rollout.temperature", 0, "a temperature above 0 for training",
                           "greedy completions of a group are all equal; use 1.0")  # fmt: skip
    if algorithm.kl.ema is not None and recipe.model.lora is not None:
        raise SettingError("algorithm.kl.ema", algorithm.kl.ema, "null with model.lora",
                           "means of A and of B are not the mean of B A; use algorithm.kl.refresh_every")  # fmt: skip
    if algorithm.kl.ema is not None and recipe.model.reference.dtype == "bfloat16":
        raise SettingError("model.reference.dtype", "bfloat16", "null, float32 or float64 with algorithm.kl.ema",
                           "small moves of an average are lost to its rounding; use kl.refresh_every")  # fmt: skip
    most = train.prompts_per_step * rollout.group_size * 0.2
    if algorithm.kl.target is not None and algorithm.kl.horizon <= most:
        raise SettingError("algorithm.kl.horizon", algorithm.kl.horizon, f"more than {most:g}, a fifth of a step's "
                           "completions", "one step could take the coefficient to 0; use 10000")  # fmt: skip
    targets = recipe.model.lora.targets if recipe.model.lora else []
    heads = {"lm_head", "embed_out"} & {*([targets] if isinstance(targets, str) else targets)}
    if heads and algorithm.kl.active and algorithm.kl.estimator == "full":
        raise SettingError("algorithm.kl.estimator", "full", "an output head without an adapter",
                           "leave the head out of model.lora.targets, or use k3")  # fmt: skip
    curriculum = recipe.curriculum
    if curriculum.retry_after and not (curriculum.skip_right or curriculum.skip_wrong):
        raise SettingError("curriculum.retry_after", curriculum.retry_after, "0 without skip_right and skip_wrong",
                           "set one of them: only what is passed over can be tried again")  # fmt: skip
    if recipe.checkpoint.keep_best and not (recipe.held_out and recipe.evaluation.every):
        raise SettingError("checkpoint.keep_best", recipe.checkpoint.keep_best,
                           "held_out prompts and evaluation.every above 0", "set them, or keep_best=0")  # fmt: skip
    if algorithm.kl.placement == "score" and algorithm.parts == "normalised":
        raise SettingError("algorithm.parts", "normalised", "sum when algorithm.kl.placement is score",
                           "place the KL in the reward instead")  # fmt: skip
    for index, source in enumerate([*recipe.prompts, *recipe.held_out]):
        section = "prompts" if index < len(recipe.prompts) else "held_out"
        place = f"{section}[{index if section == 'prompts' else index - len(recipe.prompts)}]"
        if source.verifier is not None and source.verifier not in recipe.verifiers:
            raise SettingError(f"{place}.verifier", source.verifier, "a name under verifiers",
                               nearest(source.verifier, recipe.verifiers))  # fmt: skip
        if source.verifier is None and source.verifier_column is None and len(recipe.verifiers) > 1:
            raise SettingError(f"{place}.verifier", None, "a name, since there are several verifiers",
                               f"one of {sorted(recipe.verifiers)}, or a verifier_column")  # fmt: skip
    for name, parts in recipe.verifiers.items():
        if not parts:
            raise SettingError(f"verifiers.{name}", {}, "at least one part", "e.g. correct: {kind: math}")
        if "soft_overlong" in parts and algorithm.soft_overlong is not None:
            raise SettingError("algorithm.soft_overlong", algorithm.soft_overlong,
                               f"null when verifiers.{name} has a part of that name",
                               "remove one of them, or the length is penalised twice")  # fmt: skip
        if "truncation" in parts and algorithm.truncated == "penalise":
            raise SettingError("algorithm.truncated", "penalise", f"another name for verifiers.{name}.truncation",
                               "the penalty's own part has that name; rename yours")  # fmt: skip


def batch_arithmetic(recipe: Recipe) -> str:
    """The line printed at the start of a run."""
    train, group = recipe.train, recipe.rollout.group_size
    completions = train.prompts_per_step * group
    updates = train.updates_per_step * train.epochs
    return (
        f"{train.prompts_per_step} prompts x {group} completions = {completions} completions a step; "
        f"{completions} / {completions // train.updates_per_step} per update x {train.epochs} epoch(s) = "
        f"{updates} update(s) a step; {train.tokens_per_micro_batch} tokens per micro-batch"
    )
