"""What a plan is asked about: model, method, machine and the choices that cost memory. No torch."""

from dataclasses import dataclass, field
from typing import Literal

from quatrain.errors import SettingError
from quatrain.planner.architecture import Architecture
from quatrain.planner.constants import DEFAULTS, Constants
from quatrain.planner.hardware import Device

Method = Literal["sft", "dpo", "reward_model", "grpo", "ppo", "ppo_shared"]
Precision = Literal["mixed", "master", "bf16", "fp32", "fp64"]
Optimizer = Literal["adamw", "adamw_8bit", "adafactor", "sgd_momentum", "sgd"]
Attention = Literal["fused", "repeated", "masked", "eager"]
Engine = Literal["none", "in_process", "colocated", "apart"]
ONLINE = ("grpo", "ppo", "ppo_shared")


@dataclass(frozen=True, slots=True)
class Bytes:
    """Bytes per trainable parameter: compute weights, gradients, float32 master copy."""

    weights: int
    gradients: int
    master: int
    compute: int  # width of activations


# mixed: 16-bit weights and gradients beside a float32 master copy (Megatron, DeepSpeed): 16 with AdamW
# master: float32 weights and gradients, 16-bit arithmetic (FSDP 2, Quatrain with dtype bfloat16): 16 with AdamW
# bf16: everything in 16 bits: 8 with AdamW; fp32: everything in 32 bits: 16 with AdamW; fp64: for checks
PRECISIONS: dict[Precision, Bytes] = {
    "mixed": Bytes(2, 2, 4, 2),
    "master": Bytes(4, 4, 0, 2),
    "bf16": Bytes(2, 2, 0, 2),
    "fp32": Bytes(4, 4, 0, 4),
    "fp64": Bytes(8, 8, 0, 8),
}
# Bytes of moments per trainable parameter; 8-bit: two codes and a float32 scale of each per block of 256. Adafactor
# keeps a row and a column of each matrix, which is less than 0.1 % of it.
MOMENTS: dict[Optimizer, float] = {
    "adamw": 8.0, "adamw_8bit": 2.0 + 2 * 4 / 256, "adafactor": 0.0, "sgd_momentum": 4.0, "sgd": 0.0
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Lora:
    """Adapters: rank, which layers, bytes of an adapter's weight (PEFT keeps float32 unless told otherwise)."""

    rank: int
    targets: str | list[str] = "all-linear"
    adapter_bytes: int = 4
    dropout: float = 0.0
    slots: int = 1  # adapters of this size that are trained at once
    frozen_copies: int = 0  # further adapters that are kept and not trained: a reference that is no bare base


@dataclass(frozen=True, slots=True)
class Batch:
    """Positions that one device holds in one forward and backward pass, and how many passes make an update."""

    tokens: int = 4096
    trained: int | None = None  # of these, positions whose logits are needed; None: all
    sequence: int = 1024  # longest sequence; the square of it counts for eager and masked attention
    passes: int = 1

    @property
    def logits(self) -> int:
        """Positions whose logits are needed."""
        return self.tokens if self.trained is None else self.trained


@dataclass(frozen=True, slots=True)
class Rollout:
    """Sampling on one device: how many completions at once, and how long."""

    engine: Engine = "none"
    rows: int = 64  # completions decoded side by side
    group: int = 8  # completions that share their prompt's cache
    prompt: int = 256
    completion: int = 256
    block: int = 16  # tokens of a cache block
    share: float = 0.5  # of a device's memory that a colocated engine reserves while awake
    tensor_parallel: int = 1
    cache_bytes: int = 0  # of a number in the cache; 0: as wide as activations


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A whole plan's question. Raises SettingError for choices that contradict each other."""

    model: Architecture
    method: Method
    device: Device
    devices: int = 1
    nodes: int = 1
    precision: Precision = "mixed"
    optimizer: Optimizer = "adamw"
    foreach: bool = False  # the step makes a copy of all weights (torch's default on a GPU; fused does not)
    step_in_backward: bool = False  # each weight is stepped as soon as its gradient is there, which is then dropped
    lora: Lora | None = None
    base_bits: Literal[4, 16, 32, 64] = 16  # of a frozen base
    rest_bytes: int = 2  # of what a 4-bit base leaves unpacked (PEFT's kbit preparation makes it float32: 4)
    double_quant: bool = False
    packs_experts: bool = True  # of a 4-bit base; fused experts are no linear layers, and some leave them as they are
    sharding: Literal[0, 1, 2, 3] = 0
    sharding_unit: Literal["block", "model"] = "block"  # what stage 3 gathers at a time
    expert_parallel: int = 1
    tensor_parallel: int = 1
    offload_optimizer: bool = False
    offload_frozen: bool = False  # reference and reward wait in host memory between their phases
    offload_activations: bool = False  # checkpoints wait in host memory
    checkpointing: bool | Literal["selective"] = False  # selective: matrix products are kept, every other one of them
    attention: Attention = "fused"
    compiled: bool = False
    chunked_head: bool = False
    logit_bytes: float | None = None  # of a logit with its gradient, where the head is not this library's
    reference: bool = True  # a KL penalty needs one; with LoRA it is the base with the adapter off
    learned_reward: bool | None = None  # a reward model scores; None: with PPO it does, else it does not
    reward_models: int = 1  # where one scores: how many there are, each as large as `reward`
    frozen_bytes: int | None = None  # of a frozen model's parameter; None: as wide as activations
    batch: Batch = field(default_factory=Batch)
    rollout: Rollout = field(default_factory=Rollout)
    critic: Architecture | None = None  # None: as large as the policy
    reward: Architecture | None = None
    constants: Constants = DEFAULTS

    def __post_init__(self) -> None:
        positive = {"devices": self.devices, "nodes": self.nodes, "batch.tokens": self.batch.tokens,
                    "batch.sequence": self.batch.sequence, "batch.passes": self.batch.passes,
                    "rollout.rows": self.rollout.rows, "rollout.group": self.rollout.group,
                    "expert_parallel": self.expert_parallel, "tensor_parallel": self.tensor_parallel,
                    "rollout.tensor_parallel": self.rollout.tensor_parallel}  # fmt: skip
        for name, value in positive.items():
            if value < 1:
                raise SettingError(name, value, "at least 1", "raise it")
        for name, ways in (("expert_parallel", self.expert_parallel), ("tensor_parallel", self.tensor_parallel)):
            if self.devices % ways:
                raise SettingError(name, ways, f"a divisor of {self.devices} devices", "change one of them")
        if self.expert_parallel > 1 and not self.model.experts:
            raise SettingError("expert_parallel", self.expert_parallel, "a mixture of experts", "use 1")
        if self.base_bits == 4 and self.lora is None:
            raise SettingError("base_bits", 4, "LoRA (a 4-bit base is not trained itself)", "add --lora-rank")
        if self.lora is not None and self.lora.rank < 1:
            raise SettingError("lora.rank", self.lora.rank, "at least 1", "raise it, or leave LoRA out")

    @property
    def online(self) -> bool:
        """True for methods that sample."""
        return self.method in ONLINE

    @property
    def has_reward(self) -> bool:
        """True when a reward model is in memory."""
        return self.learned_reward if self.learned_reward is not None else self.method in ("ppo", "ppo_shared")

    @property
    def bytes(self) -> Bytes:
        """Bytes per trainable parameter."""
        return PRECISIONS[self.precision]

    @property
    def moments(self) -> float:
        """Bytes of optimizer moments per trainable parameter; 16-bit ones beside 16-bit weights."""
        as_wide = self.optimizer in ("adamw", "sgd_momentum")
        return MOMENTS[self.optimizer] * (self._trained_bytes / 4 if as_wide else 1)

    @property
    def _trained_bytes(self) -> int:
        """Bytes of what the optimizer steps."""
        if self.lora is not None:
            return self.lora.adapter_bytes
        return self.bytes.master or self.bytes.weights

    @property
    def replicas(self) -> int:
        """Devices that sharding divides over: all that do not share a layer by tensor parallelism."""
        return self.devices // self.tensor_parallel
