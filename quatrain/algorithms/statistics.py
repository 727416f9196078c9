"""What is shown about scores and advantages, and what every name means."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from quatrain.algorithms import Group
from quatrain.algorithms.credit import Credit, Verdict
from quatrain.ops.advantages import spread
from quatrain.telemetry.catalogue import part_name
from quatrain.telemetry.metrics import Max, Mean, Metric, Min, Sum

STATISTICS: dict[str, str] = {
    "reward/mean": "Mean score of the completions that the verifier could judge.",
    "reward/min": "Lowest score.",
    "reward/max": "Highest score.",
    "reward/std_within_group": "Population deviation of the scores within a group, mean over groups with two scores.",
    "reward/std_across_batch": "Population deviation of all scores of the batch, whatever their group.",
    "reward/*": "Mean of this part of the rubric before its weight, over the completions that have it.",
    "scores/abstained": "Completions that were not the verifier's to judge; they get no advantage.",
    "scores/errors": "Completions that the verifier failed on; they get no advantage and are not zeros.",
    "groups/zero_variance": "Share of groups whose scores do not differ, and which therefore teach nothing.",
    "groups/all_right": "Share of groups without variance in which every completion is right.",
    "groups/all_wrong": "Share of groups without variance in which every completion is wrong.",
    "groups/all_equal": "Share of groups without variance that are neither all right nor all wrong.",
    "groups/too_few_scores": "Share of groups with fewer than two scores, which cannot be compared.",
    "advantage/mean": "Mean advantage of the trained tokens.",
    "advantage/std": "Population deviation of the advantages over the trained tokens.",
    "advantage/max_abs": "Largest absolute advantage.",
    "completion/length_mean": "Trained tokens of a completion.",
    "completion/length_min": "Trained tokens of the shortest completion.",
    "completion/length_max": "Trained tokens of the longest completion.",
    "completion/truncated": "Share of completions that were cut at the token limit.",
    "completion/left_out": "Completions that were cut and do not train (algorithm.truncated is mask).",
    "kl/penalty": "KL penalty in the reward or score, coefficient included, mean over trained tokens (nats).",
    "policy/entropy": "Exact entropy of the policy over the vocabulary at the sampling temperature (nats).",
    "policy/ratio_mean": "Mean of rho, the probability now over that at sampling, at the chosen level; 1 on-policy.",
    "policy/ratio_min": "Smallest rho.",
    "policy/ratio_max": "Largest rho.",
    "policy/clip_fraction_low": "Share of tokens with A < 0 whose rho is below 1 - clip_low: no policy gradient.",
    "policy/clip_fraction_high": "Share of tokens whose rho is cut at 1 + clip_high (two-sided: only where A > 0).",
    "policy/clip_fraction_dual": "Share of tokens with A < 0 whose loss the dual clip bounds.",
    "kl/old_k3": "k3 estimate of KL(policy at sampling || policy now), mean over tokens (nats).",
    "kl/reference_k1": "k1 estimate of KL(policy || reference), mean over tokens; signed (nats).",
    "kl/reference_k3": "k3 estimate of KL(policy || reference), mean over tokens (nats).",
    "kl/reference_k3_min": "Smallest k3 of a token; below 0 only through a fault.",
    "kl/improbable_share": "Share of the summed k3 on tokens with a reference probability below 0.01: high means that "
    "the policy has left what the reference knows, and the reference is stale (algorithm.kl.refresh_every, ema).",
    "kl/reference_full": "Exact KL(policy || reference) over the vocabulary, mean over tokens (nats).",
    "kl/saturated": "Share of tokens whose k3 is cut because the reference is e^10 times more probable or beyond.",
    "mismatch/kl": "k3 estimate of KL(sampler || trainer under the same weights), mean over tokens (nats).",
    "mismatch/logprob_gap_max": "Largest difference of a token's logprob between sampler and trainer (nats).",
    "mismatch/weight_mean": "Mean importance weight that corrects for the sampler.",
    "mismatch/truncated": "Share of tokens whose importance weight is cut.",
    "mismatch/masked": "Share of tokens without a policy term because their importance weight is out of bounds.",
}


def credit_statistics(groups: Sequence[Group], credits: Sequence[Credit]) -> dict[str, Metric]:
    """Statistics of a batch of groups by their names in `STATISTICS`."""
    verdicts = [credit.verdict for credit in credits]
    return {
        **_rewards(groups, verdicts),
        **_groups(groups, verdicts),
        **_advantages(credits),
        **_completions(groups, verdicts),
    }


def mean(values: Iterable[float]) -> Mean:
    """Mean of plain numbers."""
    array = np.fromiter(values, dtype=np.float64)
    return Mean(float(array.sum()), len(array))


Reading = tuple[str, type[Mean] | type[Min] | type[Max], Tensor]


def reduce_readings(readings: Sequence[Reading]) -> dict[str, Metric]:
    """Metrics from (name, reduction, values of the N tokens): one transfer from the device for all of them."""
    if not readings or not len(readings[0][2]):
        return {}
    reduced = []
    for _, reduction, values_N in readings:
        wide_N = values_N.detach().double()
        reduced.append(wide_N.sum() if reduction is Mean else wide_N.amin() if reduction is Min else wide_N.amax())
    numbers = torch.stack(reduced).tolist()
    return {
        name: Mean(number, len(values_N)) if reduction is Mean else reduction(number)  # type: ignore[call-arg]
        for (name, reduction, values_N), number in zip(readings, numbers, strict=True)
    }


def _rewards(groups: Sequence[Group], verdicts: Sequence[Verdict]) -> dict[str, Metric]:
    scores = np.concatenate([np.zeros(0), *(verdict.scores[verdict.usable] for verdict in verdicts)])
    statuses = [score.status for group in groups for score in group.scores]
    metrics: dict[str, Metric] = {
        "reward/mean": mean(scores),
        "reward/std_within_group": mean(spread(v.scores[v.usable]) for v in verdicts if v.enough),
        "scores/abstained": Sum(float(statuses.count("abstained"))),
        "scores/errors": Sum(float(statuses.count("error"))),
    }
    if len(scores):
        metrics["reward/std_across_batch"] = Mean(spread(scores), 1)
        metrics["reward/min"], metrics["reward/max"] = Min(float(scores.min())), Max(float(scores.max()))
    for name in sorted({name for verdict in verdicts for name in verdict.parts}):
        values = np.concatenate([verdict.parts[name] for verdict in verdicts if name in verdict.parts])
        metrics[f"reward/{part_name(name)}"] = mean(values[~np.isnan(values)])
    sources = sorted({group.prompt.source for group in groups})
    for source in sources if len(sources) > 1 else ():
        own = [v.scores[v.usable] for g, v in zip(groups, verdicts, strict=True) if g.prompt.source == source]
        metrics[f"source/{source}/reward/mean"] = mean(np.concatenate(own))
    return metrics


def _groups(groups: Sequence[Group], verdicts: Sequence[Verdict]) -> dict[str, Metric]:
    kinds = [_kind(group, verdict) for group, verdict in zip(groups, verdicts, strict=True)]
    return {
        "groups/zero_variance": mean(verdict.uniform for verdict in verdicts),
        "groups/too_few_scores": mean(not verdict.enough for verdict in verdicts),
        **{f"groups/{name}": mean(kind == name for kind in kinds) for name in ("all_right", "all_wrong", "all_equal")},
    }


def _kind(group: Group, verdict: Verdict) -> str:
    """Where nobody can tell right from wrong, a score of at least 1 is right and one of 0 or less wrong."""
    if not verdict.uniform:
        return "informative"
    judged = [score for score in group.scores if score.usable]
    if all(score.correct for score in judged):
        return "all_right"
    return "all_wrong" if all(score.wrong for score in judged) else "all_equal"


def _advantages(credits: Sequence[Credit]) -> dict[str, Metric]:
    kept = [own for c in credits for own, kept in zip(c.advantages, c.verdict.kept, strict=True) if kept]
    values = np.concatenate([np.zeros(0), *kept])
    if not len(values):
        return {}
    return {
        "advantage/mean": mean(values),
        "advantage/std": Mean(float(values.std()), 1),
        "advantage/max_abs": Max(float(np.abs(values).max())),
    }


def _completions(groups: Sequence[Group], verdicts: Sequence[Verdict]) -> dict[str, Metric]:
    lengths = [float(sum(sample.num_tokens for sample in samples)) for group in groups for samples in group.samples]
    if not lengths:
        return {}
    penalties = np.concatenate([penalty for verdict in verdicts for penalty in verdict.penalties])
    metrics: dict[str, Metric] = {
        "completion/length_mean": mean(lengths),
        "completion/length_min": Min(min(lengths)),
        "completion/length_max": Max(max(lengths)),
        "completion/truncated": mean(cut for group in groups for cut in group.truncated),
        "completion/left_out": Sum(float(sum((~verdict.kept).sum() for verdict in verdicts))),
    }
    return {**metrics, "kl/penalty": mean(penalties)} if penalties.any() else metrics
