"""A reference that moves: it becomes the policy every few steps, or follows it as a moving average.

    refresh_every: k    after steps k, 2k, ...   reference = policy
    ema: a              after every step         reference = a reference + (1 - a) policy

The average is taken in the dtype of the stored copy: that of trained weights, float32 (also with `dtype: bfloat16`) or
float64, unless `model.reference.dtype` says otherwise. In float32 a distance of less than about 6e-8 / (1 - a) of a
weight's size is rounded away.
"""

from collections.abc import Iterable

import torch

from quatrain.config import KLConfig
from quatrain.models.load import LanguageModel
from quatrain.models.lora import adapter_pairs
from quatrain.telemetry.metrics import Last, Metric


@torch.no_grad()
def move_reference(policy: LanguageModel, frozen: LanguageModel | None, kl: KLConfig, step: int) -> dict[str, Metric]:
    """Move the reference after `step`: the frozen copy, or without one the reference's adapter (refresh only)."""
    if kl.ema is not None:
        for reference, weight in _pairs(policy, frozen):
            reference.lerp_(weight.to(reference), 1 - kl.ema)
        return {}
    if step % kl.refresh_every == 0:
        for reference, weight in _pairs(policy, frozen):
            reference.copy_(weight)
    return {"kl/reference_age": Last((step - 1) % kl.refresh_every)}


def _pairs(policy: LanguageModel, frozen: LanguageModel | None) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
    if frozen is None:
        return adapter_pairs(policy.module)
    own = dict(policy.module.named_parameters())  # a value head among them has no place in the reference
    return [(weight, own[name]) for name, weight in frozen.module.named_parameters()]
