"""Log-probabilities, exact entropy and exact KL from logits at a sampling temperature, in nats.

Everything is computed in float32 at least: half-precision logits are raised before the first exponential.
Without gradient the vocabulary is walked in chunks of rows, so that no second N x V array is ever held.
"""

from collections.abc import Callable

import torch
from torch import Tensor

CHUNK_ELEMENTS = 1 << 24  # float32 elements that one chunk of rows may hold when no gradient is wanted (64 MiB)


def scaled(logits_NV: Tensor, temperature: float) -> Tensor:
    """logits / T in float32 at least. Raises ValueError unless T > 0."""
    if not temperature > 0:
        raise ValueError(f"temperature: got {temperature}, need a number above 0 (greedy has no distribution)")
    wide = logits_NV if logits_NV.dtype == torch.float64 else logits_NV.float()
    return wide if temperature == 1 else wide / temperature


def gather_logprobs(logits_NV: Tensor, target_N: Tensor, temperature: float = 1.0) -> Tensor:
    """log_softmax(logits / T)[target] as `z[target] - logsumexp(z)`, without the N x V log-softmax."""
    if logits_NV.ndim != 2 or target_N.shape != logits_NV.shape[:1]:
        raise ValueError(f"logits, target: got {tuple(logits_NV.shape)}, {tuple(target_N.shape)}, need (N, V), (N,)")
    scaled_NV = scaled(logits_NV, temperature)
    return scaled_NV.gather(1, target_N[:, None])[:, 0] - scaled_NV.logsumexp(dim=1)


def entropy(logits_NV: Tensor, temperature: float = 1.0) -> Tensor:
    """H_N = -sum_v p_v ln p_v of softmax(logits / T), over the whole vocabulary; differentiable."""
    return _by_chunks(lambda logits: _entropy(scaled(logits, temperature)), logits_NV)


def full_kl(logits_NV: Tensor, reference_logits_NV: Tensor, temperature: float = 1.0) -> Tensor:
    """KL_N = sum_v p_v (ln p_v - ln q_v), p from `logits` and q from `reference_logits`, both at T; differentiable.

    A token that the policy can draw and the reference cannot makes it infinite, and it is shown so.
    """
    if logits_NV.shape != reference_logits_NV.shape:
        raise ValueError(f"reference_logits: got {tuple(reference_logits_NV.shape)}, need {tuple(logits_NV.shape)}")

    def chunk(logits: Tensor, reference: Tensor) -> Tensor:
        log_p = scaled(logits, temperature).log_softmax(dim=1)
        log_q = scaled(reference, temperature).log_softmax(dim=1)
        return _expected(log_p, log_p - log_q)

    return _by_chunks(chunk, logits_NV, reference_logits_NV)


def _entropy(scaled_NV: Tensor) -> Tensor:
    log_p = scaled_NV.log_softmax(dim=1)
    return -_expected(log_p, log_p)


def _expected(log_p_NV: Tensor, values_NV: Tensor) -> Tensor:
    """sum_v p_v values_v where 0 x infinity counts as 0 (a forbidden token has probability 0)."""
    probability = log_p_NV.exp()
    return (probability * torch.where(probability > 0, values_NV, 0)).sum(dim=1)


def _by_chunks(function: Callable[..., Tensor], *tensors_NV: Tensor) -> Tensor:
    """`function` over chunks of rows when no gradient is recorded, over all rows at once when it is."""
    recording = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors_NV)
    rows = max(1, CHUNK_ELEMENTS // max(1, tensors_NV[0].shape[1]))
    if recording or len(tensors_NV[0]) <= rows:
        return function(*tensors_NV)
    chunks = zip(*(tensor.split(rows) for tensor in tensors_NV), strict=True)
    return torch.cat([function(*chunk) for chunk in chunks])
