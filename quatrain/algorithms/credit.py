"""Credit of the group-relative family: what every trained token of a batch of groups deserves.

Scores, statistics and advantages are float64. Three questions are kept apart:
    usable   the verifier judged the completion; only such scores enter a mean or deviation, all others get A = 0
    uniform  the verifier's own scores of the group do not differ; the group's relative advantage is exactly 0.0
    active   the completion takes part in the loss terms besides the policy's (KL and entropy)
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from quatrain.algorithms import Group
from quatrain.config import AlgorithmConfig, KLConfig
from quatrain.errors import SettingError
from quatrain.ops.advantages import Floats, Scale, group_advantages, is_uniform, normalise, return_to_go, spread
from quatrain.ops.kl import kl_estimate
from quatrain.types import Sample, Score

Flags = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What a group's scores say, before any advantage. Arrays have one entry per completion (G)."""

    scores: Floats  # the verifier's, less the penalty of a cut completion; NaN where there is none
    values: Floats  # what the statistics are made of: the score, less the KL when that is placed in the score
    parts: dict[str, Floats]  # what each part of the score said, NaN where a completion has no such part
    weights: dict[str, float]  # of the parts
    penalties: list[Floats]  # beta * KL of every trained token, zeros when the KL is in the loss or absent
    usable: Flags
    policy: Flags  # True where the completion can have a policy term
    kept: Flags  # False where the completion was cut and is left out
    uniform: bool
    active: bool

    @property
    def enough(self) -> bool:
        """True with at least two scores to compare."""
        return int(self.usable.sum()) >= 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Credit:
    """A group's verdict with the advantages of every completion: `advantages[i]` has one per trained token."""

    verdict: Verdict
    advantages: list[Floats]


def assign_credit(groups: Sequence[Group], config: AlgorithmConfig, beta: float) -> list[Credit]:
    """The credit of every group; groups meet only in a batch-wide deviation or normalisation. `beta`: of the KL."""
    verdicts = [judge(group, config, beta) for group in groups]
    outcomes = _outcomes(verdicts, config)
    advantages = [_over_tokens(*pair, config) for pair in zip(verdicts, outcomes, strict=True)]
    if config.baseline == "none" and config.scale == "batch":
        advantages = _normalised_over_batch(verdicts, advantages, config)
    return [Credit(verdict=v, advantages=a) for v, a in zip(verdicts, advantages, strict=True)]


def credited_samples(group: Group, credit: Credit) -> list[Sample]:
    """The group's samples with the streams `advantages`, `completion_tokens` and `active`.

    Completions that were cut at the limit are left out with `truncated: mask`: they are in no numerator and no
    denominator, though their scores still count in their group's mean.
    """
    result = []
    for samples, advantages, kept in zip(group.samples, credit.advantages, credit.verdict.kept, strict=True):
        if not kept:
            continue
        ends = np.cumsum([sample.num_tokens for sample in samples])
        for sample, own in zip(samples, np.split(advantages, ends[:-1]), strict=True):
            tokens = np.full(sample.num_tokens, float(ends[-1]))
            active = np.full(sample.num_tokens, float(credit.verdict.active))
            result.append(sample.with_streams(advantages=own, completion_tokens=tokens, active=active))
    return result


def judge(group: Group, config: AlgorithmConfig, beta: float) -> Verdict:
    """Which completions of a group count, and the values that its statistics are made of."""
    _check(group, config)
    usable = np.array([score.usable for score in group.scores], dtype=bool)
    scores = np.array([score.value if score.usable else np.nan for score in group.scores], dtype=np.float64)
    parts, weights = _parts(group.scores)
    cut = np.array(group.truncated, dtype=bool)
    if config.truncated == "penalise" and config.truncation_penalty:
        scores -= config.truncation_penalty * cut
        parts["truncation"], weights["truncation"] = np.where(usable, -1.0 * cut, np.nan), config.truncation_penalty
    penalties = [kl_penalties(samples, config.kl, beta) for samples in group.samples]
    in_score = config.kl.active and config.kl.placement == "score"
    uniform = int(usable.sum()) >= 2 and is_uniform(scores[usable])
    if config.parts == "normalised":
        paid = [values[~np.isnan(values)] for name, values in parts.items() if weights[name]]
        uniform = uniform and all(map(is_uniform, paid))
    least = 1 if config.baseline in ("none", "critic") and config.scale != "group" else 2
    active = int(usable.sum()) >= least and not (uniform and config.uniform_groups == "drop")
    return Verdict(
        scores=scores,
        values=scores - np.array([penalty.sum() for penalty in penalties]) if in_score else scores,
        parts=parts,
        weights=weights,
        penalties=penalties,
        usable=usable,
        policy=usable & active,
        kept=~(cut & (config.truncated == "mask")),
        uniform=uniform,
        active=active,
    )


def _check(group: Group, config: AlgorithmConfig) -> None:
    """Refuse what would otherwise be trained on wrongly."""
    if config.baseline != "critic" and any(score.placed for score in group.scores):
        raise SettingError(
            "algorithm.name", config.name, "scores without rewards at token positions",
            "let the verifier return one value per completion, or use an algorithm with a critic",
        )  # fmt: skip
    lengths = {len(group.scores), len(group.samples), len(group.truncated)}
    if len(lengths) != 1 or not all(group.samples):
        raise ValueError(f"Group: got lengths {sorted(lengths)}, need a score, samples and a flag for every completion")


def _parts(scores: Sequence[Score]) -> tuple[dict[str, Floats], dict[str, float]]:
    """Each part over the group, NaN where a completion has no such part; and the weights of the parts."""
    judged = [score if score.usable else Score(status="abstained") for score in scores]
    names = sorted({name for score in judged for name in score.parts})
    parts = {name: np.array([score.parts.get(name, np.nan) for score in judged], dtype=np.float64) for name in names}
    given = {name: weight for score in judged for name, weight in score.weights.items()}
    return parts, {name: given.get(name, 1.0) for name in names}


def kl_penalties(samples: Sequence[Sample], kl: KLConfig, beta: float) -> Floats:
    """beta * KL estimate of every trained token of a completion, under the weights that sampled it."""
    if not kl.active or kl.placement == "loss":
        return np.zeros(sum(sample.num_tokens for sample in samples))
    if kl.estimator == "full":
        return beta * np.concatenate([stream_of(sample, "reference_kl") for sample in samples])
    old = torch.tensor(np.concatenate([stream_of(sample, "old_logprobs") for sample in samples]))
    reference = torch.tensor(np.concatenate([stream_of(sample, "reference_logprobs") for sample in samples]))
    return beta * kl_estimate(kl.estimator, old, reference).numpy()


def stream_of(sample: Sample, name: str) -> Floats:
    """A stream, or a ValueError that names what the learner left out."""
    if name not in sample.streams:
        raise ValueError(f"stream {name} of {sample.label or 'a sample'}: got none, need one value per trained token")
    return sample.streams[name]


def _outcomes(verdicts: Sequence[Verdict], config: AlgorithmConfig) -> list[Floats]:
    """A_i of every completion of every group."""
    scale: Scale = config.scale
    if config.baseline == "none" and scale == "batch":
        scale = "none"  # the batch is then normalised token by token, after the penalty
    everything = np.concatenate([np.zeros(0), *(verdict.values[verdict.policy] for verdict in verdicts)])
    return [_outcome(verdict, config, scale, spread(everything, config.std)) for verdict in verdicts]


def _outcome(verdict: Verdict, config: AlgorithmConfig, scale: Scale, batch_spread: float) -> Floats:
    """A_i of one group; 0.0 where there is no usable score and, for relative advantages, when the group is uniform."""
    result = np.zeros(len(verdict.scores))
    if verdict.uniform and (config.baseline != "none" or scale == "group"):
        return result
    columns = [(1.0, verdict.values)]
    if config.parts == "normalised":
        columns = [(verdict.weights[name], values) for name, values in verdict.parts.items()]
    for weight, values in columns:
        present = verdict.policy & ~np.isnan(values)
        result[present] += weight * group_advantages(
            values[present], baseline="none" if config.baseline == "critic" else config.baseline, scale=scale,
            std=config.std, epsilon=config.std_epsilon, batch_spread=batch_spread,
        )  # fmt: skip
    return result


def _over_tokens(verdict: Verdict, outcome: Floats, config: AlgorithmConfig) -> list[Floats]:
    """A_t: the outcome on every token; with the KL in the reward, less the penalties from that token on.

    The penalty per token is that of Ouyang et al. 2022, arXiv:2203.02155; it never enters the group's statistics.
    """
    in_reward = config.kl.active and config.kl.placement == "reward"
    advantages = []
    for penalty, own, counts in zip(verdict.penalties, outcome, verdict.policy, strict=True):
        returns = np.full(len(penalty), own)
        advantages.append(returns - return_to_go(penalty) if in_reward and counts else returns)
    return advantages


def _normalised_over_batch(
    verdicts: Sequence[Verdict], advantages: list[list[Floats]], config: AlgorithmConfig
) -> list[list[Floats]]:
    """(A_t - mean) / (sigma + eps) over all trained tokens of the batch: Hu 2025 (REINFORCE++), arXiv:2501.03262."""
    chosen = [verdict.policy & verdict.kept for verdict in verdicts]
    pairs = [pair for group, flags in zip(advantages, chosen, strict=True) for pair in zip(group, flags, strict=True)]
    together = [own for own, flag in pairs if flag]
    normal = normalise(np.concatenate([np.zeros(0), *together]), std=config.std, epsilon=config.std_epsilon)
    pieces = iter(np.split(normal, np.cumsum([len(own) for own in together])))
    return [
        [next(pieces) if flag else np.zeros(len(own)) for own, flag in zip(group, flags, strict=True)]
        for group, flags in zip(advantages, chosen, strict=True)
    ]
