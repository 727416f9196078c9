"""The recipe: every setting of a run, validated before anything is loaded; importable without torch."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from quatrain.errors import SettingError, nearest


def _no_boolean(value: Any) -> Any:
    """YAML reads `yes` and `on` as true, which pydantic would take for 1."""
    if isinstance(value, bool):
        raise ValueError("a number, not true or false")
    return value


Positive = Annotated[int, Field(gt=0), BeforeValidator(_no_boolean)]
NonNegative = Annotated[int, Field(ge=0), BeforeValidator(_no_boolean)]
Fraction = Annotated[float, Field(gt=0, le=1)]


class Section(BaseModel):
    """A group of settings: unknown keys are errors, values are frozen after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class LoraConfig(Section):
    """Low-rank adapters (PEFT). With `adapter`, training continues from that saved adapter."""

    rank: Positive = 16
    alpha: Annotated[float, Field(gt=0)] = 32.0
    targets: str | list[str] = "all-linear"
    adapter: str | None = Field(None, description="folder of a saved adapter (for instance from SFT) to start from")


class ModelConfig(Section):
    """Which model, in which precision, on which device."""

    path: str = Field(description="smollm2-135m, a Hugging Face folder or an id")
    dtype: Literal["float32", "bfloat16", "float64"] = Field(
        "float32", description="arithmetic; trained weights always stay at least float32"
    )
    device: str = "auto"
    attention: Literal["sdpa", "eager"] = "sdpa"
    gradient_checkpointing: bool = False
    lora: LoraConfig | None = None


class SourceConfig(Section):
    """One source of prompts; several make a mixture by `weight`."""

    source: str = Field(description="FILE.jsonl, FILE.parquet, hf:NAME, reasoning-gym:TASK, or FILE.py:FUNCTION")
    name: str | None = Field(None, description="name in the metrics; default: taken from the source")
    options: dict[str, Any] = Field(default_factory=dict, description="passed to the task or the loader")
    prompt: str = Field("prompt", description="column with a string or a list of messages")
    template: str | None = Field(None, description="text around the columns, e.g. '{question} Answer with a number.'")
    system: str | None = Field(None, description="system message; default: the chat template's own")
    chat: bool | None = Field(None, description="apply the chat template; default: when the tokenizer has one")
    prefill: str = Field("", description="text that opens the answer, e.g. '<think>\\n'")
    columns: dict[str, str] = Field(
        default_factory=dict, description="verifier's name for a column: column in the data"
    )
    verifier: str | None = Field(None, description="verifier of these rows; default: the only one")
    verifier_column: str | None = Field(None, description="column that names each row's verifier")
    weight: Annotated[float, Field(gt=0)] = 1.0
    offset: NonNegative = 0
    limit: Positive | None = None


class VerifierConfig(Section):
    """One part of a rubric; keys beyond these are the verifier's own settings."""

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)

    kind: str = Field(description="a built-in verifier or FILE.py:FUNCTION")
    weight: float = 1.0
    timeout_s: Annotated[float, Field(gt=0)] | None = Field(
        None, description="default: the verifier's own (math, regex 0.5 s, json_schema 2 s, judge 60 s, otherwise 5 s)"
    )
    measures: Literal["correctness", "format", "shaping"] | None = Field(
        None, description="what the part counts as in evaluations; default: the verifier's own kind"
    )
    on_error: Literal["skip", "zero", "stop"] = Field("skip", description="skip: left out of the group and counted")


class SamplingConfig(Section):
    """How tokens are drawn."""

    temperature: Annotated[float, Field(ge=0)] = Field(1.0, description="0 is greedy")
    top_p: Fraction = 1.0
    top_k: NonNegative = Field(0, description="0 is off")
    min_p: Annotated[float, Field(ge=0, lt=1)] = 0.0
    max_tokens: Positive = 256
    stop: list[str] = Field(default_factory=list)


class RolloutConfig(SamplingConfig):
    """How completions are made for training."""

    engine: str = "in_process"
    group_size: Annotated[int, Field(ge=2)] = 8
    max_rows: Positive = Field(256, description="completions decoded side by side")
    max_context: Positive | None = Field(None, description="prompt + completion tokens; default: the model's positions")
    long_prompts: Literal["skip", "error"] = "skip"


class KLConfig(Section):
    """The KL penalty towards the reference: estimator, where it acts, and how strongly."""

    placement: Literal["none", "loss", "reward", "score"] = "loss"
    estimator: Literal["k1", "k2", "k3", "abs", "full"] = "k3"
    coefficient: Annotated[float, Field(ge=0)] = 0.04
    ratio_weighted: bool = Field(False, description="loss placement: rho * estimator with the differentiable ratio")
    refresh_every: NonNegative = Field(0, description="steps after which the reference becomes the policy; 0: never")
    ema: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="after every step, reference = ema * reference + (1 - ema) * policy"
    )

    @model_validator(mode="after")
    def _k1_in_the_loss(self) -> "KLConfig":
        if self.placement == "loss" and self.estimator == "k1" and not self.ratio_weighted:
            raise SettingError(
                "algorithm.kl.estimator",
                "k1",
                "k2, k3, abs or full for kl.placement loss",
                "k1 has zero expected gradient there; or set algorithm.kl.ratio_weighted=true",
            )
        if self.ratio_weighted and self.estimator == "full":
            raise SettingError("algorithm.kl.ratio_weighted", True, "an estimator on sampled tokens",
                               "full is already exact; remove it")  # fmt: skip
        if self.ratio_weighted and self.placement != "loss":
            raise SettingError("algorithm.kl.ratio_weighted", True, "kl.placement loss", "remove it")
        return self

    @property
    def active(self) -> bool:
        """True when a reference is needed."""
        return self.placement != "none" and self.coefficient > 0

    @property
    def moves(self) -> bool:
        """True when the reference does not stay the model at the start."""
        return self.refresh_every > 0 or self.ema is not None


class MismatchConfig(Section):
    """Correction for the difference between the sampler's probabilities and the trainer's."""

    truncate: Annotated[float, Field(gt=0)] | None = Field(None, description="weight min(exp(old - sampler), this)")
    level: Literal["token", "sequence"] = "token"
    mask_below: Annotated[float, Field(ge=0)] | None = Field(None, description="drop tokens whose weight is below")
    mask_above: Annotated[float, Field(gt=0)] | None = Field(None, description="drop tokens whose weight is above")


class AlgorithmConfig(Section):
    """The group-relative family as orthogonal choices; `preset` fills in a row of the table."""

    name: str = Field("grpo", description="a registered algorithm or FILE.py:CLASS")
    preset: str = "grpo"
    baseline: Literal["group_mean", "leave_one_out", "none"] = "group_mean"
    scale: Literal["group", "batch", "none"] = "group"
    std: Literal["population", "sample"] = "population"
    std_epsilon: Annotated[float, Field(gt=0)] = 1e-4
    parts: Literal["sum", "normalised"] = Field("sum", description="weighted sum, or each part normalised in its group")
    uniform_groups: Literal["keep", "drop"] = "keep"
    truncated: Literal["as_scored", "mask", "penalise"] = Field(
        "as_scored", description="completions cut at max_tokens: scored like others, left out of the loss, or penalised"
    )
    truncation_penalty: Annotated[float, Field(ge=0)] = Field(
        1.0, description="truncated penalise: subtracted from the score of a completion that was cut"
    )
    soft_overlong: Fraction | None = Field(
        None, description="length of DAPO's penalty slope before rollout.max_tokens, as a share of it; null: no penalty"
    )
    refill_rounds: NonNegative = Field(
        0, description="dynamic sampling: how often uniform groups are replaced by those of further prompts; 0: never"
    )
    ratio: Literal["token", "sequence", "sequence_sum"] = "token"
    clip: Literal["two_sided", "detached_cap"] = "two_sided"
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    clip_high: Annotated[float, Field(gt=0)] = 0.2
    dual_clip: Annotated[float, Field(gt=1)] | None = None
    aggregate: Literal["sequence", "token", "constant", "sequence_sum"] = "sequence"
    entropy_coefficient: Annotated[float, Field(ge=0)] = 0.0
    kl: KLConfig = Field(default_factory=KLConfig)
    mismatch: MismatchConfig = Field(default_factory=MismatchConfig)

    @model_validator(mode="after")
    def _consistent(self) -> "AlgorithmConfig":
        if self.kl.refresh_every and self.kl.ema is not None:
            raise SettingError("algorithm.kl.ema", self.kl.ema, "null with algorithm.kl.refresh_every",
                               "a reference is either replaced or averaged; remove one of them")  # fmt: skip
        if not self.kl.active and (self.kl.refresh_every or self.kl.ema is not None):
            raise SettingError("algorithm.kl.placement", self.kl.placement, "a KL penalty, for a moving reference",
                               "set kl.placement and kl.coefficient, or remove refresh_every and ema")  # fmt: skip
        if self.parts == "normalised" and (self.baseline == "none" or self.scale != "group"):
            raise SettingError("algorithm.parts", "normalised", "a group baseline and algorithm.scale group",
                               "each part is centred and scaled within its group")  # fmt: skip
        return self

    @model_validator(mode="before")
    @classmethod
    def _fill_preset(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        preset = data.get("preset", "grpo")
        if not isinstance(preset, str) or preset not in PRESETS:
            raise SettingError("algorithm.preset", preset, "a known preset", nearest(str(preset), PRESETS))
        kl, without = data.get("kl"), PRESETS[preset]["kl"]["placement"] == "none"
        if without and isinstance(kl, Mapping) and kl.get("coefficient") and "placement" not in kl:
            raise SettingError("algorithm.kl.coefficient", kl["coefficient"],
                               f"a kl.placement beside it: the preset {preset} has no KL",
                               "add kl.placement=loss, reward or score")  # fmt: skip
        return merge(PRESETS[preset], data)


# The preset table of the family, one row of data each; keys not named keep AlgorithmConfig's defaults.
PRESETS: dict[str, dict[str, Any]] = {
    "grpo": {"kl": {"placement": "loss", "estimator": "k3", "coefficient": 0.04}},
    "dapo": {"clip_high": 0.28, "aggregate": "token", "kl": {"placement": "none"}, "refill_rounds": 3,
             "soft_overlong": 0.2},
    "dr_grpo": {"scale": "none", "aggregate": "constant", "kl": {"placement": "none"}},
    "gspo": {"ratio": "sequence", "clip_low": 3e-4, "clip_high": 4e-4, "kl": {"placement": "none"}},
    "cispo": {"clip": "detached_cap", "aggregate": "token", "kl": {"placement": "none"}},
    "rloo": {"baseline": "leave_one_out", "scale": "none", "ratio": "sequence_sum", "aggregate": "sequence_sum",
             "kl": {"placement": "score", "estimator": "k1", "coefficient": 0.05}},
    "reinforce_pp": {"baseline": "none", "scale": "batch", "aggregate": "token",
                     "kl": {"placement": "reward", "estimator": "k1", "coefficient": 0.01}},
}  # fmt: skip


class TrainConfig(Section):
    """Steps, batch arithmetic and the optimizer."""

    steps: Positive = 100
    prompts_per_step: Positive = 16
    updates_per_step: Positive = Field(1, description="optimizer updates that a rollout batch is split into")
    epochs: Positive = Field(1, description="passes over a rollout batch")
    tokens_per_micro_batch: Positive = 4096
    builder: Literal["padded", "packed", "shared"] = Field(
        "shared", description="shared: a group's prompt is computed once for all its completions"
    )
    learning_rate: Annotated[float, Field(gt=0)] = 1e-5
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: NonNegative = 0
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    adam_betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.999)
    adam_epsilon: Annotated[float, Field(gt=0)] = 1e-8
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    empty_steps: Positive = Field(10, description="steps in a row without any training signal before the run stops")


class EvalConfig(SamplingConfig):
    """Held-out evaluation during a run."""

    temperature: Annotated[float, Field(ge=0)] = 0.0
    max_tokens: Positive | None = Field(None, description="default: the rollout's")  # type: ignore[assignment]
    every: NonNegative = Field(0, description="steps between evaluations; 0: only before and after")
    samples: Positive = Field(1, description="completions per prompt")


class CheckpointConfig(Section):
    """When the state is saved and how much is kept."""

    every: NonNegative = Field(20, description="steps between checkpoints; 0: only at the end")
    keep_last: Positive = 2
    keep_best: NonNegative = Field(0, description="also keep the evaluated steps with the highest best_metric, so many")
    best_metric: str = Field("eval/accuracy", description="metric of the held-out evaluation that keep_best compares")


class CurriculumConfig(Section):
    """Which prompts are passed over, by what the run saw of them."""

    skip_right: NonNegative = Field(
        0, description="groups in a row with every completion right after which a prompt is passed over; 0: never"
    )
    skip_wrong: NonNegative = Field(
        0, description="groups in a row with every completion wrong after which a prompt is passed over; 0: never"
    )
    retry_after: NonNegative = Field(0, description="steps after which a passed-over prompt is tried again; 0: never")


class LogConfig(Section):
    """What is written beside metrics.jsonl."""

    tensorboard: bool = True
    trackers: list[str] = Field(
        default_factory=list, description="further trackers: FILE.py:CLASS or the names of entry points"
    )
    rollouts_every: NonNegative = Field(1, description="steps between saved rollouts; 0: never")


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
    if rollout.temperature == 0:
        raise SettingError("rollout.temperature", 0, "a temperature above 0 for training",
                           "greedy completions of a group are all equal; use 1.0")  # fmt: skip
    if algorithm.kl.ema is not None and recipe.model.lora is not None:
        raise SettingError("algorithm.kl.ema", algorithm.kl.ema, "null with model.lora",
                           "means of A and of B are not the mean of B A; use algorithm.kl.refresh_every")  # fmt: skip
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


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` laid on `base`, mapping by mapping; neither is changed."""
    result = dict(base)
    for key, value in over.items():
        old = result.get(key)
        result[key] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return result
