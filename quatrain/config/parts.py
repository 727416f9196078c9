"""The sections that recipes of both methods share: model, sampling, optimizer, checkpoints, log."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from quatrain.config.base import Fraction, NonNegative, Positive, Section
from quatrain.errors import SettingError


class LoraConfig(Section):
    """Low-rank adapters (PEFT). With `adapter`, training continues from that saved adapter."""

    rank: Positive = 16
    alpha: Annotated[float, Field(gt=0)] = 32.0
    targets: str | list[str] = "all-linear"
    quantise: Literal["nf4"] | None = Field(
        None, description="QLoRA: the frozen base in 4 bits (NF4); needs the extra `qlora` (bitsandbytes)"
    )
    adapter: str | None = Field(None, description="folder of a saved adapter (for instance from SFT) to start from")


class ReferenceConfig(Section):
    """The frozen copy of a model that is trained whole: how it is stored, and where between its forwards."""

    dtype: Literal["float32", "bfloat16", "float64"] | None = Field(
        None, description="null: that of the weights it is a copy of, so that the KL starts at exactly 0"
    )
    offload: bool = Field(False, description="kept in host memory, and on the device only while it is read")


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
    reference: ReferenceConfig = Field(default_factory=ReferenceConfig)

    @model_validator(mode="after")
    def _quantised(self) -> "ModelConfig":
        if self.lora is not None and self.lora.quantise is not None and self.dtype == "float64":
            raise SettingError("model.lora.quantise", self.lora.quantise, "model.dtype float32 or bfloat16",
                               "change one of them")  # fmt: skip
        return self

    @model_validator(mode="after")
    def _reference_of_adapters(self) -> "ModelConfig":
        if self.lora is not None and self.reference != ReferenceConfig():
            raise SettingError("model.reference", self.reference.model_dump(), "no such section with model.lora",
                               "the reference is then the base with its adapter off; remove it")  # fmt: skip
        return self


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
    group_size: Positive = 8
    max_rows: Positive = Field(256, description="completions decoded side by side")
    max_context: Positive | None = Field(None, description="prompt + completion tokens; default: the model's positions")
    long_prompts: Literal["skip", "error"] = "skip"


class OptimizerConfig(Section):
    """Micro-batches and the optimizer."""

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


class TrainConfig(OptimizerConfig):
    """Steps, batch arithmetic and the optimizer of an online run."""

    steps: Positive = 100
    prompts_per_step: Positive = 16
    updates_per_step: Positive = Field(1, description="optimizer updates that a rollout batch is split into")
    epochs: Positive = Field(1, description="passes over a rollout batch")
    empty_steps: Positive = Field(10, description="steps in a row without any training signal before the run stops")


class DataConfig(Section):
    """One source of examples; several make a mixture by `weight`."""

    source: str = Field(description="FILE.jsonl, FILE.parquet, hf:NAME, or FILE.py:FUNCTION")
    name: str | None = Field(None, description="name in the metrics; default: taken from the source")
    options: dict[str, Any] = Field(default_factory=dict, description="passed to the loader")
    format: Literal["auto", "completion", "messages", "preference", "ranking", "labelled", "transcript", "text"] = (
        Field("auto", description="what a row is; auto: told from its columns")
    )
    columns: dict[str, str] = Field(default_factory=dict, description="our name for a column: column in the data")
    system: str | None = Field(None, description="system message; default: the chat template's own")
    chat: bool | None = Field(None, description="apply the chat template; default: when the tokenizer has one")
    weight: Annotated[float, Field(gt=0)] = 1.0
    offset: NonNegative = 0
    limit: Positive | None = None


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
