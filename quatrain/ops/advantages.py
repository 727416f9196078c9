"""Advantages from scores, in float64 numpy: group statistics never see a smaller type."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Baseline = Literal["group_mean", "leave_one_out", "none"]
Scale = Literal["group", "batch", "none"]
Std = Literal["population", "sample"]

UNIFORM = 1e-8


def spread(values: Floats, std: Std = "population") -> float:
    """sqrt(mean (v - mean v)^2), or with divisor count - 1 for `sample`; 0 below two values."""
    return float(np.std(values, ddof=1 if std == "sample" else 0)) if len(values) > 1 else 0.0


def is_uniform(values: Floats) -> bool:
    """True when max - min < 1e-8 or the population deviation is < 1e-8: rounding must not become a signal."""
    if not len(values):
        return True
    return bool(np.ptp(values) < UNIFORM or spread(values) < UNIFORM)


def group_advantages(
    values_G: Floats,
    *,
    baseline: Baseline = "group_mean",
    scale: Scale = "group",
    std: Std = "population",
    epsilon: float = 1e-4,
    batch_spread: float | None = None,
) -> Floats:
    """A_i = (r_i - b_i) / (sigma + epsilon), over the usable values of one group; exactly 0.0 below two values.

    `group_mean`: Shao et al. 2024 (DeepSeekMath), arXiv:2402.03300; without the division, Liu et al. 2025 (Dr. GRPO),
    arXiv:2503.20783. `leave_one_out`: b_i is the mean of the others, Ahmadian et al. 2024, arXiv:2402.14740.
    A uniform group is exactly 0.0 wherever the group's own mean or deviation enters.
    sigma is the group's deviation, or `batch_spread` for scale `batch`.
    """
    values = np.asarray(values_G, dtype=np.float64)
    relative = baseline != "none" or scale == "group"
    if relative and (len(values) < 2 or is_uniform(values)):
        return np.zeros_like(values)
    centred = values - _baseline(values, baseline)
    if scale == "none":
        return centred
    if scale == "batch":
        if batch_spread is None:
            raise ValueError("batch_spread: got None, need the batch's deviation for scale 'batch'")
        return centred / (batch_spread + epsilon)
    return centred / (spread(values, std) + epsilon)


def _baseline(values: Floats, baseline: Baseline) -> Floats:
    if baseline == "none":
        return np.zeros_like(values)
    if baseline == "group_mean":
        return np.full_like(values, values.mean())
    return (values.sum() - values) / (len(values) - 1)


def normalise(values: Floats, *, std: Std = "population", epsilon: float = 1e-4) -> Floats:
    """(v - mean v) / (sigma + epsilon) over all values given; exactly 0.0 when they are uniform."""
    if is_uniform(values):
        return np.zeros_like(values)
    return (values - values.mean()) / (spread(values, std) + epsilon)


def return_to_go(rewards_T: Floats, gamma: float = 1.0) -> Floats:
    """R_t = r_t + gamma R_{t+1}; the token's own reward is included."""
    returns = np.array(rewards_T, dtype=np.float64)
    for position in range(len(returns) - 2, -1, -1):
        returns[position] += gamma * returns[position + 1]
    return returns
