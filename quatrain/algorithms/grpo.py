"""The group-relative policy-gradient family, GRPO first (Shao et al. 2024, DeepSeekMath, arXiv:2402.03300).

    A_i  = (r_i - mean_G r) / (std_G r + eps)                      on every trained token of completion i
    rho  = exp(logp - old)
    loss = mean_i 1/|o_i| sum_t [ -min(rho A_i, clip(rho, 1 - eps_low, 1 + eps_high) A_i) + beta k3(logp, ref) ]

Dr. GRPO, GSPO, CISPO, RLOO and REINFORCE++ are other choices of the same settings (`quatrain.config.PRESETS`). On the
first update after sampling rho is 1, so the policy term reads about 0 while its gradient does not: that is normal.

Deviations from the papers: a group whose scores do not differ gets advantages of exactly 0.0; k3 saturates
(`quatrain.ops.kl`). A sequence-level ratio or weight is that of one trajectory, the unit of every aggregate is the
completion, which may have several.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from quatrain.algorithms import ALGORITHMS, Group, LossSums, Needs, Outputs
from quatrain.algorithms.control import CONTROL_DOCUMENTED, build_controller, steer
from quatrain.algorithms.credit import assign_credit, credited_samples
from quatrain.algorithms.pretraining import PRETRAINING, is_pretraining
from quatrain.algorithms.statistics import STATISTICS, Reading, credit_statistics, reduce_readings
from quatrain.batch import TrainBatch
from quatrain.config import AlgorithmConfig, KLConfig
from quatrain.ops.kl import k1, k3, kl_estimate, log_ratio, saturated
from quatrain.ops.policy_loss import (
    clipped_loss,
    detached_cap_loss,
    importance_ratio,
    importance_weight,
    once_per_sequence,
    outside,
    policy_ratio,
)
from quatrain.telemetry.metrics import Max, Mean, Metric, Min
from quatrain.types import Sample

DOCUMENTED: dict[str, str] = STATISTICS | CONTROL_DOCUMENTED
IMPROBABLE = "kl/improbable_share"


@ALGORITHMS.register("grpo")
class GRPO:
    """Credit and loss for every combination of the choices in `AlgorithmConfig`.

    `max_tokens` is the longest completion that sampling allows; `aggregate: constant` divides by it.
    """

    role = "policy"
    critic = None

    def __init__(self, config: AlgorithmConfig, max_tokens: int) -> None:
        self.config, self.max_tokens = config, max_tokens
        self.controller = build_controller(config.kl)
        self.kl_in_loss = config.kl.active and config.kl.placement == "loss"
        self.needs = Needs(
            streams=_streams(config.kl),
            entropy=config.entropy_coefficient > 0,
            full_kl=self.kl_in_loss and config.kl.estimator == "full",
        )
        if config.kl.active and config.kl.placement != "loss" and config.kl.estimator in ("k2", "k3"):
            warnings.warn(
                f"algorithm.kl.estimator: {config.kl.estimator} is biased in the {config.kl.placement}; "
                "k1, abs or full are meant for it",
                stacklevel=2,
            )

    def credit(self, groups: Sequence[Group]) -> tuple[list[Sample], dict[str, Metric]]:
        """Samples with the streams `advantages`, `completion_tokens` and `active`; statistics of the whole batch."""
        credits = assign_credit(groups, self.config, self.controller.coefficient)
        samples = [
            sample
            for group, credit in zip(groups, credits, strict=True)
            for sample in credited_samples(group, credit)
        ]  # fmt: skip
        return samples, credit_statistics(groups, credits)

    def prepare(self, samples: Sequence[Sample]) -> list[Sample]:
        """The samples as they are: nothing of this loss is taken over a whole update but its denominators."""
        return list(samples)

    def contributes(self, sample: Sample) -> bool:
        """False without advantage, unless another term of the loss acts on the sample all the same."""
        beside_policy = self.kl_in_loss or self.config.entropy_coefficient > 0
        own = sample.streams["advantages"].any() or (beside_policy and sample.streams["active"].any())
        return bool(own or is_pretraining(sample))

    def denominators(self, samples: Sequence[Sample]) -> dict[str, float]:
        """Trained tokens for `aggregate: token`, else completions; uniform, unscored and skipped samples included.

        The pre-training term has the tokens of its own samples, which count nowhere else.
        """
        own = [sample for sample in samples if not is_pretraining(sample)]
        if self.config.aggregate == "token":
            count = sum(sample.num_tokens for sample in own)
        else:
            count = len({sample.completion for sample in own})
        others = sum(sample.num_tokens for sample in samples if is_pretraining(sample))
        return {name: float(max(others if name == PRETRAINING else count, 1)) for name in self._terms()}

    def finish_step(self, samples: Sequence[Sample]) -> dict[str, Metric]:
        """Steer the KL coefficient by the KL of the step's samples, and show it where both sides of it are at hand."""
        known = {"old_logprobs", "reference_logprobs"} <= self.needs.streams
        return steer(self.controller, self.config.kl, samples) if known else {}

    def state_dict(self) -> dict[str, Any]:
        """The KL coefficient, where it moves."""
        return {"kl": self.controller.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the coefficient of `state`."""
        if state.get("kl"):
            self.controller.load_state_dict(state["kl"])

    def loss(self, batch: TrainBatch, outputs: Outputs) -> LossSums:
        """Sums of `policy`, `kl` (coefficient included) and `entropy` (-c_e H) over the trained tokens."""
        logprobs_N = outputs.logprobs_N
        streams = {name: stream.to(logprobs_N) for name, stream in batch.streams.items()}
        old_N = streams.get("old_logprobs", logprobs_N.detach())
        weight_N = self._token_weights(streams["completion_tokens"])
        policy_N, readings = self._policy(batch, logprobs_N, old_N, streams)
        terms = {"policy": (weight_N * policy_N).sum()}
        if self.kl_in_loss:
            kl_N = self._kl(outputs, old_N, streams)
            terms["kl"] = self.controller.coefficient * (weight_N * streams["active"] * kl_N).sum()
        if self.config.entropy_coefficient > 0:
            entropy = (weight_N * streams["active"] * outputs.entropy_N).sum()
            terms["entropy"] = -self.config.entropy_coefficient * entropy
        if self.config.pretraining is not None:
            own_N = streams[PRETRAINING]
            terms[PRETRAINING] = -self.config.pretraining.coefficient * (own_N * logprobs_N).sum()
        readings += _kl_readings(outputs, old_N, streams)
        if PRETRAINING in streams:
            readings = [(name, kind, values_N[streams[PRETRAINING] == 0]) for name, kind, values_N in readings]
        return LossSums(terms=terms, statistics=_with_share(reduce_readings(readings)))

    def _terms(self) -> list[str]:
        entropy = self.config.entropy_coefficient > 0
        optional = {"kl": self.kl_in_loss, "entropy": entropy, PRETRAINING: self.config.pretraining is not None}
        return ["policy", *(name for name, wanted in optional.items() if wanted)]

    def _token_weights(self, completion_tokens_N: Tensor) -> Tensor:
        """What a token counts in the sum, so that after division by the denominator the aggregate is right."""
        if self.config.aggregate == "sequence":
            return 1 / completion_tokens_N
        if self.config.aggregate == "constant":
            return torch.full_like(completion_tokens_N, 1 / self.max_tokens)
        return torch.ones_like(completion_tokens_N)

    def _policy(
        self, batch: TrainBatch, logprobs_N: Tensor, old_N: Tensor, streams: dict[str, Tensor]
    ) -> tuple[Tensor, list[Reading]]:
        """The policy term per token, weighted for the sampler's mismatch, and what to show of it."""
        config, advantages_N = self.config, streams["advantages"]
        ratio_N = policy_ratio(logprobs_N, old_N, batch.sample_N, batch.num_samples, config.ratio)
        if config.clip == "detached_cap":
            loss_N = detached_cap_loss(ratio_N, logprobs_N, advantages_N, config.clip_high)
        else:
            loss_N = clipped_loss(ratio_N, advantages_N, config.clip_low, config.clip_high, config.dual_clip)
            if config.ratio == "sequence_sum":
                loss_N = once_per_sequence(loss_N, batch.sample_N, batch.num_samples)
        readings = self._ratio_readings(ratio_N.detach(), advantages_N)
        if "sampler_logprobs" not in streams:
            return loss_N, readings
        weight_N, mismatch = self._mismatch(batch, old_N, streams["sampler_logprobs"])
        return weight_N * loss_N, readings + mismatch

    def _kl(self, outputs: Outputs, old_N: Tensor, streams: dict[str, Tensor]) -> Tensor:
        """The KL term per token, with the differentiable ratio before it when `ratio_weighted`."""
        kl = self.config.kl
        if kl.estimator == "full":
            if outputs.full_kl_N is None:
                raise ValueError("full_kl_N: got none, need the exact KL that `needs.full_kl` asks for")
            return outputs.full_kl_N
        kl_N = kl_estimate(kl.estimator, outputs.logprobs_N, streams["reference_logprobs"])
        return (outputs.logprobs_N - old_N).exp() * kl_N if kl.ratio_weighted else kl_N

    def _mismatch(self, batch: TrainBatch, old_N: Tensor, sampler_N: Tensor) -> tuple[Tensor, list[Reading]]:
        """Importance weight of every token for what the sampler saw otherwise than the trainer."""
        config = self.config.mismatch
        ratio_N = importance_ratio(old_N, sampler_N, batch.sample_N, batch.num_samples, config.level)
        weight_N = importance_weight(ratio_N, config.truncate, config.mask_below, config.mask_above)
        gap_N = log_ratio(sampler_N, old_N).detach()
        readings: list[Reading] = [("mismatch/kl", Mean, k3(gap_N)), ("mismatch/logprob_gap_max", Max, gap_N.abs())]
        masks = config.mask_below is not None or config.mask_above is not None
        if config.truncate is not None:
            readings.append(("mismatch/truncated", Mean, ratio_N > config.truncate))
        if masks:
            readings.append(("mismatch/masked", Mean, outside(ratio_N, config.mask_below, config.mask_above)))
        if masks or config.truncate is not None:
            readings.append(("mismatch/weight_mean", Mean, weight_N))
        return weight_N, readings

    def _ratio_readings(self, ratio_N: Tensor, advantages_N: Tensor) -> list[Reading]:
        """Where rho stands, and which tokens the clip takes the gradient from."""
        config = self.config
        readings: list[Reading] = [
            ("policy/ratio_mean", Mean, ratio_N),
            ("policy/ratio_min", Min, ratio_N),
            ("policy/ratio_max", Max, ratio_N),
        ]
        above, below = ratio_N > 1 + config.clip_high, ratio_N < 1 - config.clip_low
        if config.clip == "detached_cap":
            return [*readings, ("policy/clip_fraction_high", Mean, above)]
        readings.append(("policy/clip_fraction_low", Mean, below & (advantages_N < 0)))
        readings.append(("policy/clip_fraction_high", Mean, above & (advantages_N > 0)))
        if config.dual_clip is not None:
            readings.append(("policy/clip_fraction_dual", Mean, (ratio_N > config.dual_clip) & (advantages_N < 0)))
        return readings


def _streams(kl: KLConfig) -> frozenset[str]:
    """What the learner must compute for the KL before credit is assigned."""
    measured = {"old_logprobs", "reference_logprobs"} if kl.target is not None or kl.measure else set()
    if not kl.active:
        return frozenset(measured)
    if kl.estimator == "full":
        return frozenset(measured | (set() if kl.placement == "loss" else {"old_logprobs", "reference_kl"}))
    return frozenset(measured | {"reference_logprobs"} | ({"old_logprobs"} if kl.placement != "loss" else set()))


def _with_share(statistics: dict[str, Metric]) -> dict[str, Metric]:
    """The k3 on improbable tokens as a share of all of it; left out while there is none."""
    part, whole = statistics.pop(IMPROBABLE, None), statistics.get("kl/reference_k3")
    if isinstance(part, Mean) and isinstance(whole, Mean) and whole.sum:
        statistics[IMPROBABLE] = Mean(part.sum, whole.sum)
    return statistics


def _kl_readings(outputs: Outputs, old_N: Tensor, streams: dict[str, Tensor]) -> list[Reading]:
    """Entropy, and the distances to the sampling weights and to the reference."""
    logprobs_N = outputs.logprobs_N.detach()
    readings: list[Reading] = [
        ("policy/entropy", Mean, outputs.entropy_N),
        ("kl/old_k3", Mean, k3(log_ratio(old_N, logprobs_N))),
    ]
    if outputs.full_kl_N is not None:
        readings.append(("kl/reference_full", Mean, outputs.full_kl_N))
    if "reference_logprobs" in streams:
        d_N = log_ratio(logprobs_N, streams["reference_logprobs"])
        k3_N = k3(d_N)
        readings += [
            ("kl/reference_k1", Mean, k1(d_N)),
            ("kl/reference_k3", Mean, k3_N),
            ("kl/reference_k3_min", Min, k3_N),
            ("kl/saturated", Mean, saturated(d_N)),
            (IMPROBABLE, Mean, k3_N * (streams["reference_logprobs"] < math.log(0.01))),
        ]
    return readings
