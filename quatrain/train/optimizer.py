"""AdamW with a schedule that is a function of the step, so that nothing about it needs saving."""

import math

import torch
from torch import nn

from quatrain.config import TrainConfig


def build_optimizer(module: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
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


def learning_rate(config: TrainConfig, step: int) -> float:
    """Rate of step 1, 2, ...: linear warm-up, then constant, or down to 0 after the last step (linear, cosine)."""
    if step <= config.warmup_steps:
        return config.learning_rate * step / config.warmup_steps
    progress = (step - 1 - config.warmup_steps) / max(1, config.steps - config.warmup_steps)
    if config.schedule == "linear":
        return config.learning_rate * (1 - progress)
    if config.schedule == "cosine":
        return config.learning_rate * 0.5 * (1 + math.cos(math.pi * progress))
    return config.learning_rate
