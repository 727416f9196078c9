"""A language model's parameters, tensor by tensor; importable without torch.

`planner/architecture.py` makes these from Hugging Face configs.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from quatrain.errors import SettingError

FUSED_EXPERTS = frozenset({"mixtral", "qwen3_moe", "glm4_moe", "deepseek_v2", "deepseek_v3"})
Role = Literal["embedding", "attention", "mlp", "expert", "router", "norm", "head"]


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor of d_in x d_out (and a bias of d_out) that the model holds `count` times.

    `used` of them take part in one token: all, or the chosen experts. `name` is the module's, as in `lora.targets`.
    """

    role: Role
    name: str
    d_in: int
    d_out: int
    count: int = 1
    used: int = 1
    bias: bool = False
    blocks: int = 0  # blocks that hold it; 0 for what stands before and behind them

    @property
    def parameters(self) -> int:
        """Parameters of all `count` tensors."""
        return self.count * self.d_out * (self.d_in + self.bias)

    @property
    def active(self) -> int:
        """Parameters that one token uses."""
        return self.used * self.d_out * (self.d_in + self.bias)

    @property
    def adaptable(self) -> bool:
        """True for what `all-linear` adapts: linear layers inside the blocks (fused experts and routers are not)."""
        return self.role in ("attention", "mlp")


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """What a plan reads of a model. Widths are in numbers, not bytes."""

    name: str
    family: str
    hidden: int
    layers: int
    vocabulary: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int  # width of the dense MLP, or of all experts that one token uses together
    gated: bool
    kv_width: int  # numbers cached per token and layer
    positions: int
    window: int | None
    tied: bool
    weights: tuple[Weight, ...]

    @cached_property
    def parameters(self) -> int:
        """All parameters; tied embeddings count once."""
        return sum(weight.parameters for weight in self.weights)

    @cached_property
    def active(self) -> int:
        """Parameters that one token uses."""
        return sum(weight.active for weight in self.weights)

    @cached_property
    def experts(self) -> int:
        """Parameters of the routed experts."""
        return self.role("expert")

    def role(self, role: Role) -> int:
        """Parameters of one role."""
        return sum(weight.parameters for weight in self.weights if weight.role == role)

    @cached_property
    def largest_layer(self) -> int:
        """Parameters of the largest block: what sharded training gathers at a time."""
        inside = [weight for weight in self.weights if weight.blocks]
        sparse = any(weight.role == "expert" for weight in inside)
        return sum(weight.parameters // weight.blocks for weight in inside
                   if not sparse or weight.role != "mlp" or weight.name.startswith("shared"))  # fmt: skip

    def lora(self, rank: int, targets: str | list[str] = "all-linear") -> int:
        """r (d_in + d_out) for every adapted linear layer, as PEFT 0.21 adapts them: with all-linear also every routed
        expert of a fused mixture and the router, but not the dense MLPs beside them.

        Raises SettingError when nothing matches `targets`.
        """
        chosen = self.all_linear if targets == "all-linear" else [w for w in self.weights if targeted(w, targets)]
        if not chosen:
            names = sorted({weight.name for weight in self.weights if weight.adaptable})
            raise SettingError("model.lora.targets", targets, f"names of linear layers ({', '.join(names)})",
                               "choose among them or use all-linear")  # fmt: skip
        twice = "experts.gate_up_proj" if targets == "all-linear" else ""  # two matrices by their names in checkpoints
        return sum(w.count * rank * (2 if w.name == twice else 1) * (w.d_in + w.d_out) for w in chosen)

    @cached_property
    def all_linear(self) -> list[Weight]:
        """What PEFT's all-linear adapts."""
        if self.family in FUSED_EXPERTS:
            return [weight for weight in self.weights if weight.role in ("attention", "expert", "router")]
        return [weight for weight in self.weights if weight.adaptable or weight.name == "shared_expert_gate"]


def targeted(weight: Weight, targets: str | list[str]) -> bool:
    """True when `targets` name the layer, by its whole name or the last part of it."""
    if targets == "all-linear":
        return weight.adaptable
    wanted = [targets] if isinstance(targets, str) else targets
    return weight.name in wanted or weight.name.rpartition(".")[2] in wanted
