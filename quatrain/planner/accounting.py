"""Model states alone, from a bare parameter count: bytes per parameter times parameters. No activations, no allowances.

    trained   weights + gradients + master copy + moments      2 + 2 + 4 + 8 = 16 bytes a parameter (mixed, AdamW)
    frozen    weights                                          2 bytes

Four-model PPO trains the actor and the critic and keeps the reference and the reward model: 2 x 16 + 2 x 2 = 36; GRPO
trains one and keeps one: 18. GB are 1e9 bytes, and a device counts with the memory it is sold with.
"""

import math
from dataclasses import dataclass

from quatrain.errors import SettingError
from quatrain.planner.hardware import GB, Device
from quatrain.planner.job import MOMENTS, PRECISIONS, Method, Optimizer, Precision

ROLES: dict[Method, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "ppo": (("actor", "critic"), ("reference", "reward model")),
    "ppo_shared": (("actor and critic",), ("reference", "reward model")),
    "grpo": (("policy",), ("reference",)),
    "dpo": (("policy",), ("reference",)),
    "sft": (("policy",), ()),
    "reward_model": (("reward model",), ()),
}
FROZEN = 2  # bytes a parameter of a frozen model in 16 bits


@dataclass(frozen=True, slots=True)
class States:
    """Bytes of all model states by component, over all devices, and the device they are counted in."""

    components: dict[str, float]
    device: Device
    devices: int = 1

    @property
    def total(self) -> float:
        """Bytes over all devices."""
        return sum(self.components.values())

    @property
    def per_gpu(self) -> float:
        """Bytes per device, divided evenly (ZeRO stage 3)."""
        return self.total / self.devices

    @property
    def gpus_needed(self) -> int:
        """Devices whose memory, as sold, holds the states; nothing else is counted."""
        return max(1, math.ceil(self.total / (self.device.memory_gb * GB) - 1e-12))

    @property
    def fits(self) -> bool:
        """True when each device's share is within its memory as sold."""
        return self.devices >= self.gpus_needed


def model_states(
    parameters: float, method: Method, device: Device, devices: int = 1, *, precision: Precision = "mixed",
    optimizer: Optimizer = "adamw", reference: bool = True, frozen_bytes: float = FROZEN,
) -> States:  # fmt: skip
    """States of `method` with equal models of `parameters`. Raises SettingError for a count that is not positive."""
    if not (math.isfinite(parameters) and parameters >= 1):
        raise SettingError("--params", parameters, "a number of parameters of at least 1", "for example 7.24e9")
    width, parts = PRECISIONS[precision], dict[str, float]()
    moments = MOMENTS[optimizer] * (width.weights / 4 if precision in ("bf16", "fp64") and optimizer == "adamw" else 1)
    trained, frozen = ROLES[method]
    for role in trained:
        parts |= {
            f"{role} weights": width.weights * parameters, f"{role} gradients": width.gradients * parameters,
            f"{role} master weights": width.master * parameters, f"{role} optimizer moments": moments * parameters,
        }  # fmt: skip
    kept = [role for role in frozen if reference or role != "reference"]
    parts |= {f"{role} weights": frozen_bytes * parameters for role in kept}
    return States({name: value for name, value in parts.items() if value}, device, devices)
