"""KL estimators on sampled tokens (J. Schulman, "Approximating KL Divergence", 2020), d = logp_ref - logp.

Deviation: k3 saturates. d is cut at `SATURATION` before the exponential, so that value and gradient are finite in
every dtype (cutting after it gives 0 * inf = NaN in the backward pass); saturated tokens carry no k3 gradient.
"""

from collections.abc import Callable

import torch
from torch import Tensor

SATURATION = 10.0  # nats; e^10 = 22026 still fits into float16, whose largest number is 65504


def log_ratio(logprobs_N: Tensor, reference_N: Tensor) -> Tensor:
    """d = logp_ref - logp in float32 at least."""
    if logprobs_N.dtype == torch.float64 or reference_N.dtype == torch.float64:
        return reference_N.double() - logprobs_N.double()
    return reference_N.float() - logprobs_N.float()


def saturated(d_N: Tensor) -> Tensor:
    """True where k3 is cut."""
    return d_N > SATURATION


def k1(d_N: Tensor) -> Tensor:
    """-d: unbiased, signed; its expected gradient as a loss is zero."""
    return -d_N


def k2(d_N: Tensor) -> Tensor:
    """d^2 / 2: biased, never negative; as an on-policy loss its gradient is that of the KL."""
    return d_N.square() / 2


def k3(d_N: Tensor) -> Tensor:
    """exp(d) - d - 1 >= 0, unbiased, as `expm1(d) - d` with d cut before the exponential.

    f(r) = r - ln r - 1 is strictly convex with minimum 0 at r = 1. As a loss its gradient is not the KL's; weighted
    with the differentiable ratio it is.
    """
    cut_N = d_N.clamp(max=SATURATION)
    return torch.expm1(cut_N) - cut_N


def absolute(d_N: Tensor) -> Tensor:
    """|d|."""
    return d_N.abs()


ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3, "abs": absolute}


def kl_estimate(name: str, logprobs_N: Tensor, reference_N: Tensor) -> Tensor:
    """Per-token estimate of KL(policy || reference) by the estimator's name (k1, k2, k3, abs)."""
    if name not in ESTIMATORS:
        raise ValueError(f"estimator: got {name!r}, need one of {sorted(ESTIMATORS)} (full needs the logits)")
    return ESTIMATORS[name](log_ratio(logprobs_N, reference_N))
