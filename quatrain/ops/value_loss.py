"""The critic's loss per trained token, and how much of the returns it explains."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from quatrain.ops.precision import wide


def value_loss(values_N: Tensor, old_values_N: Tensor, returns_N: Tensor, clip: float | None) -> Tensor:
    """0.5 max((V - R)^2, (clip(V, V_old - eps, V_old + eps) - R)^2) per token; 0.5 (V - R)^2 when `clip` is None.

    eps = `clip`, in reward units. A value that has moved by more than eps towards its return gets no gradient; one
    that has moved away from it keeps its own. `old_values_N` and `returns_N` carry none.
    """
    values, old, returns = wide(values_N), wide(old_values_N), wide(returns_N)
    squared_N = (values - returns).square()
    if clip is not None:
        clipped = values.clamp(old - clip, old + clip)
        squared_N = torch.maximum(squared_N, (clipped - returns).square())
    return squared_N / 2


def explained_variance_sums(values_N: Tensor, returns_N: Tensor) -> Tensor:
    """[count, sum R, sum R^2, sum E, sum E^2], E = R - V, float64, no gradient; add them over micro-batches, ranks."""
    returns = returns_N.detach().double()
    errors = returns - values_N.detach().double()
    count = returns.new_tensor(float(returns.numel()))
    return torch.stack([count, returns.sum(), returns.square().sum(), errors.sum(), errors.square().sum()])


def explained_variance(sums: Sequence[float] | Tensor) -> float:
    """1 - Var(R - V) / Var(R) from the five sums (population variances): 1 perfect, 0 no better than a constant.

    NaN when nothing was counted or the returns do not differ (beyond the rounding of the sums).
    """
    count, returns, returns_squared, errors, errors_squared = (float(value) for value in sums)
    if not count:
        return math.nan
    spread = returns_squared / count - (returns / count) ** 2
    if spread <= 1e-12 * returns_squared / count:
        return math.nan
    return 1 - max(errors_squared / count - (errors / count) ** 2, 0.0) / spread
