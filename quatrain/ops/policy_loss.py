"""Policy-gradient surrogates per trained token, to be minimised; rho = exp(logp - old)."""

from typing import Literal

import torch
from torch import Tensor

from quatrain.ops.segments import segment_count, segment_mean, segment_sum

RatioLevel = Literal["token", "sequence", "sequence_sum"]
WeightLevel = Literal["token", "sequence"]


def policy_ratio(
    logprobs_N: Tensor, old_N: Tensor, sample_N: Tensor, num_samples: int, level: RatioLevel = "token"
) -> Tensor:
    """rho of every token, differentiable in `logprobs_N`.

    token          exp(logp_t - old_t)
    sequence       exp(mean_t (logp - old)): Zheng et al. 2025 (GSPO), arXiv:2507.18071
    sequence_sum   exp(sum_t (logp - old)): the sequence as one action; see `once_per_sequence`

    A sequence's ratio is written `stopgrad(rho) * exp(c (logp_t - stopgrad(logp_t)))`, the token form of GSPO, with
    c = 1, or the number of tokens for the sum. Value and gradient are those of the plain ratio when the advantage is
    the same on all tokens, and each token follows its own advantage when it is not.
    """
    difference_N = logprobs_N - old_N
    if level == "token":
        return difference_N.exp()
    pool = segment_mean if level == "sequence" else segment_sum
    ratio_N = pool(difference_N.detach(), sample_N, num_samples).exp()[sample_N]
    own_N = logprobs_N - logprobs_N.detach()
    if level == "sequence_sum":
        own_N = own_N * segment_count(sample_N, num_samples, logprobs_N)[sample_N]
    return ratio_N * own_N.exp()


def once_per_sequence(values_N: Tensor, sample_N: Tensor, num_samples: int) -> Tensor:
    """values / tokens of the sequence: with `sequence_sum` a sequence is one action and its term counts once.

    The gradient at rho = 1 is then the same as with the other levels: A times the gradient of every logprob.
    """
    return values_N / segment_count(sample_N, num_samples, values_N)[sample_N]


def clipped_loss(
    ratio_N: Tensor, advantages_N: Tensor, clip_low: float, clip_high: float, dual_clip: float | None = None
) -> Tensor:
    """-min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A): Schulman et al. 2017, arXiv:1707.06347 eq. 7.

    With `dual_clip` = c > 1 (Ye et al. 2019, arXiv:1912.09729) the loss of a token with A < 0 is at most -c A.
    """
    clipped_N = ratio_N.clamp(1 - clip_low, 1 + clip_high)
    loss_N = -torch.minimum(ratio_N * advantages_N, clipped_N * advantages_N)
    if dual_clip is None:
        return loss_N
    return torch.where(advantages_N < 0, torch.minimum(loss_N, -dual_clip * advantages_N), loss_N)


def detached_cap_loss(ratio_N: Tensor, logprobs_N: Tensor, advantages_N: Tensor, clip_high: float) -> Tensor:
    """-stopgrad(min(rho, 1 + clip_high)) A logp: MiniMax 2025 (CISPO), arXiv:2506.13585."""
    return -ratio_N.detach().clamp(max=1 + clip_high) * advantages_N * logprobs_N


def importance_ratio(
    old_N: Tensor, sampler_N: Tensor, sample_N: Tensor, num_samples: int, level: WeightLevel = "token"
) -> Tensor:
    """exp(old - sampler), by token, or of the whole sample as the product over its tokens; no gradient.

    The product grows with length (a mean difference of 0.015 gives 3.3 over 80 tokens, 1.6e5 over 800), so a cap or
    mask at sequence level bears mostly on long samples; the token level does not.
    """
    difference_N = (old_N - sampler_N).detach()
    if level == "sequence":
        difference_N = segment_sum(difference_N, sample_N, num_samples)[sample_N]
    return difference_N.exp()


def importance_weight(
    ratio_N: Tensor, truncate: float | None, mask_below: float | None = None, mask_above: float | None = None
) -> Tensor:
    """min(ratio, truncate), or 1 when `truncate` is None; 0 where the ratio lies outside [mask_below, mask_above]."""
    weight_N = torch.ones_like(ratio_N) if truncate is None else ratio_N.clamp(max=truncate)
    return torch.where(outside(ratio_N, mask_below, mask_above), 0, weight_N)


def outside(ratio_N: Tensor, below: float | None, above: float | None) -> Tensor:
    """True where the ratio lies outside [below, above]; None is no bound."""
    result = torch.zeros_like(ratio_N, dtype=torch.bool)
    if below is not None:
        result = result | (ratio_N < below)
    return result if above is None else result | (ratio_N > above)
