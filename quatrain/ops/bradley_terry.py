"""Reward-model losses per pair under P(y_w > y_l | x) = sigmoid(r_w - r_l), in float32 at least."""

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from quatrain.ops.precision import wide


class RankedPairs(NamedTuple):
    """The pairs of one prompt's K completions, as indices among them.

    `weight` is 1 / (K choose 2): the weighted losses of all pairs add up to one prompt's share, whatever K.
    """

    chosen_P: Tensor
    rejected_P: Tensor
    tie_P: Tensor
    weight: float


def bradley_terry(
    chosen_P: Tensor,
    rejected_P: Tensor,
    margin_P: Tensor | float = 0.0,
    confidence_P: Tensor | None = None,
    tie_P: Tensor | None = None,
) -> Tensor:
    """-p log sigmoid(d - m) - (1 - p) log sigmoid(-d - m), d = r_w - r_l; with p = 1 Ouyang et al. 2022 eq. 1.

    `margin_P` m: what the winner must be ahead by (Touvron et al. 2023, arXiv:2307.09288 eq. 2), whichever side wins.
    `confidence_P` p in [0, 1]: the probability that the chosen one is better. `tie_P` (True: equally good) means
    p = 1/2 and m = 0, whatever the other two say; its minimum is at d = 0. Scores in, shape P; a constant added to
    every score changes nothing.
    """
    difference_P = wide(chosen_P) - wide(rejected_P)
    p = torch.ones_like(difference_P) if confidence_P is None else confidence_P.to(difference_P)
    m = margin_P if isinstance(margin_P, Tensor) else torch.full_like(difference_P, margin_P)
    if tie_P is not None:
        p, m = p.masked_fill(tie_P, 0.5), m.masked_fill(tie_P, 0.0)
    return -p * logsigmoid(difference_P - m) - (1 - p) * logsigmoid(-difference_P - m)


def centering(chosen_P: Tensor, rejected_P: Tensor) -> Tensor:
    """(r_w + r_l)^2 per pair: times a small coefficient it fixes the constant that the pairs leave open.

    Eisenstein et al. 2023, arXiv:2312.09244.
    """
    return (wide(chosen_P) + wide(rejected_P)).square()


def ranking_pairs(ranks: Sequence[float]) -> RankedPairs:
    """All pairs of one prompt's K ranked completions (1 the best), equal ranks as ties: Ouyang et al. 2022 eq. 1.

    Leaving ties out keeps the weight: a pair that says nothing still counts in K choose 2.
    Raises ValueError for fewer than two completions.
    """
    if len(ranks) < 2:
        raise ValueError(f"ranks: got {len(ranks)} completions, need at least 2")
    pairs = [(i, j) if ranks[i] <= ranks[j] else (j, i) for i, j in combinations(range(len(ranks)), 2)]
    chosen, rejected = torch.tensor(pairs).unbind(1)
    tie_P = torch.tensor([ranks[i] == ranks[j] for i, j in pairs])
    return RankedPairs(chosen, rejected, tie_P, 1 / len(pairs))
