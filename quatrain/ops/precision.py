"""The type in which a loss is computed."""

import torch
from torch import Tensor


def wide(values: Tensor) -> Tensor:
    """`values` in float32 at least: half precision is raised, float64 stays."""
    return values if values.dtype == torch.float64 else values.float()
