"""Preference losses per pair (P) or per single completion (S), to be minimised, in float32 at least.

`delta_P` = (logp_w - ref_w) - (logp_l - ref_l) on summed completion log-probabilities, w chosen and l rejected; it is
0 for two identical completions, where DPO reads ln 2 and the gradients of both sides cancel.
Every -log sigmoid is `logsigmoid`, so that value and gradient stay finite for any finite argument.
"""

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from quatrain.ops.precision import wide

SATURATION = 1e-4  # nats from probability 1; the slope of log odds there, 1e4, still fits into float16


def dpo(
    delta_P: Tensor, beta: float, label_smoothing: float = 0.0, robust: bool = False, confidence_P: Tensor | None = None
) -> Tensor:
    """-q log sigmoid(beta delta) - (1 - q) log sigmoid(-beta delta), q the probability that the chosen one is better.

    plain           q = 1: Rafailov et al. 2023, arXiv:2305.18290 eq. 7
    conservative    q = 1 - e, e = `label_smoothing` the share of wrong labels (Mitchell 2023, "A note on DPO with noisy
                    preferences"); its minimum lies at beta delta = ln((1 - e) / e)
    robust          q = (1 - e) / (1 - 2 e): unbiased when labels flip with probability e; not bounded below
                    (Chowdhury et al. 2024, arXiv:2403.00409)

    `confidence_P` p in [0, 1] stands for the label 1 and is smoothed as it would be: q = p (1 - e) + (1 - p) e, or
    (p - e) / (1 - 2 e) when robust. Raises ValueError unless 0 <= e < 0.5.
    """
    e = label_smoothing
    if not 0 <= e < 0.5:
        raise ValueError(f"label_smoothing: got {e}, need 0 <= e < 0.5 (at 0.5 a label says nothing)")
    p = 1.0 if confidence_P is None else wide(confidence_P)
    q = (p - e) / (1 - 2 * e) if robust else p * (1 - e) + (1 - p) * e
    scaled_P = beta * wide(delta_P)
    return -q * logsigmoid(scaled_P) - (1 - q) * logsigmoid(-scaled_P)


def ipo(delta_P: Tensor, beta: float) -> Tensor:
    """(delta - 1 / (2 beta))^2: Azar et al. 2023, arXiv:2310.12036 eq. 17, their tau written beta.

    With `delta_P` of average instead of summed log-probabilities it is the form of several libraries.
    """
    return (wide(delta_P) - 1 / (2 * beta)).square()


def kto(
    logratio_S: Tensor, z0: Tensor | float, desirable_S: Tensor, beta: float,
    weight_desirable: float = 1.0, weight_undesirable: float = 1.0,
) -> Tensor:  # fmt: skip
    """Ethayarajh et al. 2024, arXiv:2402.01306, per completion, logratio = logp - ref summed over its tokens:

        desirable     lambda_D (1 - sigmoid(beta (logratio - z0)))
        undesirable   lambda_U (1 - sigmoid(beta (z0 - logratio)))

    `desirable_S`: bool. `z0`: `kto_baseline`, no gradient. 1 - sigmoid(x) is computed as sigmoid(-x).
    """
    margin_S = beta * (wide(logratio_S) - z0)
    desirable = weight_desirable * torch.sigmoid(-margin_S)
    return torch.where(desirable_S, desirable, weight_undesirable * torch.sigmoid(margin_S))


def kto_baseline(mismatched_logratio_S: Tensor) -> Tensor:
    """z0 = max(0, mean logratio of completions put to other prompts), over the whole update, without gradient.

    It estimates KL(policy || reference), which is never negative; 0 when there is nothing to estimate it from.
    """
    logratio_S = wide(mismatched_logratio_S.detach())
    return logratio_S.mean().clamp(min=0) if len(logratio_S) else logratio_S.new_zeros(())


def log_odds(mean_logprob_P: Tensor) -> Tensor:
    """ln(p / (1 - p)) of p = exp(mean_logprob), as x - ln(-expm1(x)).

    Deviation: above x = -`SATURATION`, where it runs to infinity, it goes on along its tangent. So value and gradient
    are finite at x = 0 in every dtype, and a completion of probability 1 can still be pushed down.
    """
    x = wide(mean_logprob_P)
    below = x.clamp(max=-SATURATION)
    slope = -1 / torch.expm1(below.new_tensor(-SATURATION))
    return below - torch.log(-torch.expm1(below)) + slope * (x - below)


def orpo(mean_logprob_w: Tensor, mean_logprob_l: Tensor) -> Tensor:
    """-log sigmoid(log odds_w - log odds_l), the odds-ratio term alone: Hong et al. 2024, arXiv:2403.07691.

    The full loss is the chosen completion's NLL plus lambda times this. Both sides are average log-probabilities per
    token (<= 0), shape P; see `log_odds` for the end at 0.
    """
    return -logsigmoid(log_odds(mean_logprob_w) - log_odds(mean_logprob_l))


def simpo(mean_logprob_w: Tensor, mean_logprob_l: Tensor, beta: float, gamma: float) -> Tensor:
    """-log sigmoid(beta (mean_w - mean_l) - gamma): Meng et al. 2024, arXiv:2405.14734 eq. 6.

    Average log-probabilities per token, no reference. gamma is the margin of the rewards beta * mean; libraries that
    ask for gamma / beta mean the margin of the averages.
    """
    return -logsigmoid(beta * (wide(mean_logprob_w) - wide(mean_logprob_l)) - gamma)
