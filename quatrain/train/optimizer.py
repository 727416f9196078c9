"""AdamW with a schedule that is a function of the step, so that nothing about it needs saving."""

import math

import torch
from torch import nn

from quatrain.config import OfflineTrainConfig, OptimizerConfig, TrainConfig


def build_optimizer(module: nn.Module, config: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW over the trainable parameters; vectors (norms, biases) get no weight decay."""
    trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trainable if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in trainable if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=config.learning_rate,
        betas=config.adam_betas,
        eps=config.adam_epsilon,
        fused=True,
    )


def learning_rate(config: TrainConfig | OfflineTrainConfig, step: int, peak: float | None = None) -> float:
    """Rate of step 1, 2, ...: linear warm-up, then constant, or down to 0 after the last step (linear, cosine).

    `peak` is the rate at full height, `config.learning_rate` unless a role has its own.
    """
    peak = config.learning_rate if peak is None else peak
    if step <= config.warmup_steps:
        return peak * step / config.warmup_steps
    if config.schedule == "constant":
        return peak
    assert config.steps is not None  # settled before the first step
    progress = (step - 1 - config.warmup_steps) / max(1, config.steps - config.warmup_steps)
    return peak * (1 - progress) if config.schedule == "linear" else peak * 0.5 * (1 + math.cos(math.pi * progress))
