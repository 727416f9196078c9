"""Bradley-Terry reward models (Ouyang et al. 2022, arXiv:2203.02155 eq. 1).

    loss = mean over prompts of 1 / (K choose 2) sum over pairs of -log sigmoid(r_w - r_l - margin)
           + c (r_w + r_l)^2

The score is read at the last real token. With several heads every row says which attribute it compares; the heads'
weights make one number of them when the model is used.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from quatrain.algorithms import OFFLINE_ALGORITHMS, LossSums, Needs, Outputs
from quatrain.algorithms.pairs import difference_metrics, groups_of, pairs_of, sample_values, without_ties
from quatrain.algorithms.statistics import Reading, reduce_readings
from quatrain.batch import TrainBatch
from quatrain.config import RewardModelConfig
from quatrain.ops.bradley_terry import bradley_terry, centering
from quatrain.telemetry.metrics import Mean
from quatrain.types import Sample

DOCUMENTED: dict[str, str] = {
    "reward_model/accuracy": "Share of the pairs whose chosen answer has the higher score, among those that differ.",
    "reward_model/equal": "Share of the pairs whose scores are equal; they count neither as right nor as wrong.",
    "reward_model/margin": "Mean score of the chosen answers less that of the rejected ones.",
    "reward_model/chosen": "Mean score of the chosen answers.",
    "reward_model/rejected": "Mean score of the rejected answers.",
    "reward_model/ties": "Share of the pairs that have no winner in the data.",
}


@OFFLINE_ALGORITHMS.register("reward_model")
class RewardModel:
    """The loss on pairs and rankings; all answers to a prompt stay in one micro-batch."""

    role = "reward"
    data = "scores"
    beside = None
    needs = Needs(whole_groups=True)

    def __init__(self, config: RewardModelConfig) -> None:
        self.config, self.uses_ties = config, config.ties == "half"

    def prepare(self, samples: Sequence[Sample]) -> list[Sample]:
        """With `ties: discard`, without the groups in which nothing is preferred."""
        return list(samples) if self.uses_ties else without_ties(samples)

    def contributes(self, sample: Sample) -> bool:
        """Every answer does."""
        return sample.num_tokens > 0

    def denominators(self, samples: Sequence[Sample]) -> dict[str, float]:
        """Prompts (a pair is one)."""
        count = float(max(len(groups_of(samples)), 1))
        return {"pairs": count, **({"centering": count} if self.config.centering else {})}

    def loss(self, batch: TrainBatch, outputs: Outputs) -> LossSums:
        """Sums of `pairs` and `centering` (coefficient included)."""
        pairs, scores_S = pairs_of(batch), self.scores(batch, outputs)
        chosen_P, rejected_P = scores_S[pairs.chosen_P], scores_S[pairs.rejected_P]
        weight_P = pairs.weight_P.to(scores_S)
        if not self.uses_ties:
            weight_P = weight_P * ~pairs.tie_P
        margin_P = sample_values(batch, "margin", 0.0)[pairs.chosen_P].to(scores_S)
        confidence_P = sample_values(batch, "confidence", 1.0)[pairs.chosen_P].to(scores_S)
        loss_P = bradley_terry(chosen_P, rejected_P, margin_P, confidence_P, pairs.tie_P)
        terms = {"pairs": (weight_P * loss_P).sum()}
        if self.config.centering:
            terms["centering"] = self.config.centering * (weight_P * centering(chosen_P, rejected_P)).sum()
        kept_P = ~pairs.tie_P
        readings: list[Reading] = [
            ("reward_model/margin", Mean, (chosen_P - rejected_P)[kept_P]),
            ("reward_model/chosen", Mean, chosen_P[kept_P]),
            ("reward_model/rejected", Mean, rejected_P[kept_P]),
        ]
        ties = reduce_readings([("reward_model/ties", Mean, pairs.tie_P)])
        compared = difference_metrics("reward_model", pairs, scores_S, torch.zeros_like(scores_S))
        return LossSums(terms=terms, statistics={**reduce_readings(readings), **ties, **compared})

    def scores(self, batch: TrainBatch, outputs: Outputs) -> Tensor:
        """The score of every sample by the head that its row compares (the first where it names none)."""
        if outputs.values_NK is None:
            raise ValueError("values_NK: got none, need the heads' scores at the read-out positions")
        heads_S = sample_values(batch, "head", 0.0).long()
        return outputs.values_NK.gather(1, heads_S[:, None])[:, 0]
