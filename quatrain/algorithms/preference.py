"""Preference methods on pairs and labels, without sampling and without a reward model.

    DPO    -log sigmoid(beta Delta),  Delta = (logp_w - ref_w) - (logp_l - ref_l)     (arXiv:2305.18290 eq. 7)
    IPO    (Delta - 1 / (2 beta))^2                                                   (arXiv:2310.12036 eq. 17)
    KTO    lambda (1 - sigmoid(+-beta (logratio - z0)))                               (arXiv:2402.01306)
    ORPO   -mean logp_w + lambda -log sigmoid(log odds_w - log odds_l)                (arXiv:2403.07691)
    SimPO  -log sigmoid(beta (mean logp_w - mean logp_l) - gamma)                     (arXiv:2405.14734 eq. 6)

A loss is a mean over pairs (KTO: answers). A pair without a winner counts half each way in DPO and is left out of the
others. Deviation: ORPO's first term is the mean of each chosen answer's own mean, so that a pair is the unit of both.
"""

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from quatrain.algorithms import OFFLINE_ALGORITHMS, LossSums, Needs, Outputs
from quatrain.algorithms.pairs import Pairs, difference_metrics, groups_of, pairs_of, sample_values, without_ties
from quatrain.algorithms.statistics import Reading, reduce_readings
from quatrain.batch import TrainBatch
from quatrain.config import PreferenceConfig
from quatrain.ops.preference import dpo, ipo, kto, kto_baseline, orpo, simpo
from quatrain.ops.segments import segment_count, segment_sum
from quatrain.telemetry.metrics import Mean
from quatrain.types import Sample

ROUNDING = 16  # units in the last place of the log-probabilities within which two implicit rewards are equal

DOCUMENTED: dict[str, str] = {
    "preference/accuracy": "Share of the pairs that differ whose chosen answer has the higher implicit reward.",
    "preference/equal": "Share of the pairs whose implicit rewards are equal up to rounding: neither right nor wrong.",
    "preference/margin": "Mean difference of the implicit rewards, chosen less rejected (beta times Delta).",
    "preference/chosen_reward": "Mean implicit reward of the chosen (kto: desirable) answers.",
    "preference/rejected_reward": "Mean implicit reward of the rejected (kto: undesirable) answers.",
    "preference/chosen_logprob": "Mean summed log-probability of the chosen (kto: desirable) answers (nats).",
    "preference/rejected_logprob": "Mean summed log-probability of the rejected (kto: undesirable) answers (nats).",
    "preference/chosen_drift": "Mean logp - ref of the chosen answers (nats): below 0 they became less likely.",
    "preference/rejected_drift": "Mean logp - ref of the rejected answers (nats).",
    "preference/nll": "Mean negative log-probability per token of the chosen answers (nats).",
    "preference/z0": "KTO's baseline: the mean logratio of mismatched answers, at least 0 (nats).",
}


@OFFLINE_ALGORITHMS.register("dpo")
@OFFLINE_ALGORITHMS.register("ipo")
@OFFLINE_ALGORITHMS.register("orpo")
@OFFLINE_ALGORITHMS.register("simpo")
class PairLoss:
    """The methods on pairs; both sides of a pair stay in one micro-batch."""

    role = "policy"
    data = "pairs"
    beside = None

    def __init__(self, config: PreferenceConfig) -> None:
        self.config, self.uses_ties = config, config.name == "dpo"
        streams = frozenset({"reference_logprobs"}) if config.reads_reference else frozenset()
        self.needs = Needs(streams=streams, whole_groups=True)
        self.averages = config.name in ("orpo", "simpo") or config.average_logprobs

    def prepare(self, samples: Sequence[Sample]) -> list[Sample]:
        """Without the groups in which nothing is preferred, where the method has no use for them."""
        return list(samples) if self.uses_ties else without_ties(samples)

    def contributes(self, sample: Sample) -> bool:
        """Every answer does."""
        return sample.num_tokens > 0

    def denominators(self, samples: Sequence[Sample]) -> dict[str, float]:
        """Pairs (rankings count as one)."""
        count = float(max(len(groups_of(samples)), 1))
        return {"preference": count, **({"nll": count} if self.config.name == "orpo" else {})}

    def loss(self, batch: TrainBatch, outputs: Outputs) -> LossSums:
        """The sum of `preference`; of ORPO also of `nll`, the chosen answers' mean negative log-probability."""
        pairs, config = pairs_of(batch), self.config
        summed_S = segment_sum(outputs.logprobs_N, batch.sample_N, batch.num_samples)
        count_S = segment_count(batch.sample_N, batch.num_samples, summed_S)
        logratio_S = summed_S
        if config.reads_reference:
            reference_N = batch.streams["reference_logprobs"].to(summed_S)
            logratio_S = summed_S - segment_sum(reference_N, batch.sample_N, batch.num_samples)
        compared_S = logratio_S / count_S if self.averages else logratio_S
        weight_P = pairs.weight_P.to(summed_S)
        if not self.uses_ties:
            weight_P = weight_P * ~pairs.tie_P
        loss_P = self._per_pair(batch, pairs, compared_S)
        terms = {"preference": (weight_P * loss_P).sum()}
        if config.name == "orpo":
            terms["preference"] = config.odds_weight * terms["preference"]
            terms["nll"] = -(weight_P * compared_S[pairs.chosen_P]).sum()
        readings = self._readings(pairs.decided, compared_S, logratio_S, summed_S, count_S)
        size_S = ROUNDING * torch.finfo(summed_S.dtype).eps * (summed_S / count_S if self.averages else summed_S).abs()
        compared = difference_metrics("preference", pairs, compared_S, size_S)
        return LossSums(terms=terms, statistics={**reduce_readings(readings), **compared})

    def _per_pair(self, batch: TrainBatch, pairs: Pairs, compared_S: Tensor) -> Tensor:
        config = self.config
        chosen_P, rejected_P = compared_S[pairs.chosen_P], compared_S[pairs.rejected_P]
        if config.name == "orpo":
            return orpo(chosen_P, rejected_P)
        if config.name == "simpo":
            return simpo(chosen_P, rejected_P, config.strength, config.margin)
        if config.name == "ipo":
            return ipo(chosen_P - rejected_P, config.strength)
        confidence_P = sample_values(batch, "confidence", 1.0)[pairs.chosen_P]
        confidence_P = torch.where(pairs.tie_P, 0.5, confidence_P).to(compared_S)
        return dpo(chosen_P - rejected_P, config.strength, config.label_smoothing, config.robust, confidence_P)

    def _readings(
        self, pairs: Pairs, compared_S: Tensor, logratio_S: Tensor, summed_S: Tensor, count_S: Tensor
    ) -> list[Reading]:
        """Implicit rewards, log-probabilities and their drift, by side."""
        beta = 1.0 if self.config.name == "orpo" else self.config.strength
        sides = {"chosen": pairs.chosen_P, "rejected": pairs.rejected_P}
        readings: list[Reading] = [
            ("preference/margin", Mean, beta * (compared_S[pairs.chosen_P] - compared_S[pairs.rejected_P])),
            ("preference/nll", Mean, -(summed_S / count_S)[pairs.chosen_P]),
        ]
        for side, places in sides.items():
            readings.append((f"preference/{side}_reward", Mean, beta * compared_S[places]))
            readings.append((f"preference/{side}_logprob", Mean, summed_S[places]))
            if self.config.reads_reference:
                readings.append((f"preference/{side}_drift", Mean, logratio_S[places]))
        return readings


class Mismatched:
    """Answers put to other prompts, on which KTO's baseline is estimated (arXiv:2402.01306, section 4.1).

    Which answer meets which prompt depends on the samples of the update alone, not on their order.
    """

    def samples(self, samples: Sequence[Sample]) -> list[Sample]:
        """Every prompt with the next answer to another prompt, in an order by digest; none where there is no other.

        They are cut to the longest sample of the update, so that no limit on the length is passed.
        """
        order = sorted(samples, key=lambda one: hashlib.blake2b(one.token_ids.tobytes()).digest())
        longest = max(len(sample.token_ids) for sample in samples)
        found = []
        for place, one in enumerate(order):
            following = itertools.chain(order[place + 1 :], order[:place])
            other = next((other for other in following if asked(other) != asked(one)), None)
            if other is not None:
                found.append(mismatched(one, other, longest))
        return [one for one in found if one.num_tokens]

    def apply(self, samples: Sequence[Sample], others: Sequence[Sample]) -> list[Sample]:
        """The samples with z0, taken over the whole update and without gradient."""
        gaps = [float((one.streams["old_logprobs"] - one.streams["reference_logprobs"]).sum()) for one in others]
        z0 = float(kto_baseline(torch.tensor(gaps, dtype=torch.float64)))
        return [sample.with_streams(z0=np.full(sample.num_tokens, z0)) for sample in samples]


@OFFLINE_ALGORITHMS.register("kto")
class KTO:
    """The loss on single labelled answers, against a baseline from mismatched ones."""

    role = "policy"
    data = "labelled"
    uses_ties = False
    needs = Needs(streams=frozenset({"reference_logprobs"}))

    def __init__(self, config: PreferenceConfig) -> None:
        self.config, self.beside = config, Mismatched()

    def prepare(self, samples: Sequence[Sample]) -> list[Sample]:
        """The samples as they are: z0 is on them already."""
        return list(samples)

    def contributes(self, sample: Sample) -> bool:
        """Every answer does."""
        return sample.num_tokens > 0

    def denominators(self, samples: Sequence[Sample]) -> dict[str, float]:
        """Answers."""
        return {"preference": float(len(samples))}

    def loss(self, batch: TrainBatch, outputs: Outputs) -> LossSums:
        """The sum of `preference` over answers."""
        config = self.config
        summed_S = segment_sum(outputs.logprobs_N, batch.sample_N, batch.num_samples)
        reference_N = batch.streams["reference_logprobs"].to(summed_S)
        logratio_S = summed_S - segment_sum(reference_N, batch.sample_N, batch.num_samples)
        desirable_S = sample_values(batch, "desirable") > 0.5
        z0_S = sample_values(batch, "z0").to(summed_S)
        loss_S = kto(logratio_S, z0_S, desirable_S, config.strength, config.desirable_weight, config.undesirable_weight)
        readings: list[Reading] = [("preference/z0", Mean, z0_S)]
        for side, places in (("chosen", desirable_S), ("rejected", ~desirable_S)):
            readings.append((f"preference/{side}_reward", Mean, config.strength * logratio_S[places]))
            readings.append((f"preference/{side}_logprob", Mean, summed_S[places]))
            readings.append((f"preference/{side}_drift", Mean, logratio_S[places]))
        found = [reduce_readings([reading]) for reading in readings if len(reading[2])]
        return LossSums(terms={"preference": loss_S.sum()}, statistics={k: v for one in found for k, v in one.items()})


def asked(sample: Sample) -> bytes:
    """The prompt of a sample."""
    return sample.token_ids[: sample.prompt_length].tobytes()


def mismatched(prompt: Sample, answer: Sample, longest: int) -> Sample:
    """The prompt of one sample with what follows the prompt of another, cut to `longest` tokens."""
    head, cut = prompt.token_ids[: prompt.prompt_length], answer.prompt_length
    return replace(
        answer,
        token_ids=np.concatenate([head, answer.token_ids[cut:]])[:longest],
        trained=np.concatenate([np.zeros(len(head), dtype=bool), answer.trained[cut:]])[:longest],
        prompt_length=len(head),
        label=f"{answer.label}, put to another prompt",
        streams={},
    )
