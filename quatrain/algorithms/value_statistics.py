"""What is shown about a critic: how much of the returns it explains, and where it errs."""

from collections.abc import Sequence

import numpy as np

from quatrain.telemetry.metrics import Mean, Metric
from quatrain.types import Sample

EDGES = (0, 64, 128, 256, 512)  # trained-token positions; long completions are where values degrade

VALUE_DOCUMENTED: dict[str, str] = {
    "critic/explained_variance": "1 - Var(R - V) / Var(R) over the step's trained tokens: 1 perfect, 0 a constant.",
    "critic/value_mean": "Mean value of the trained tokens of judged completions during the update.",
    "critic/clip_fraction": "Share of these tokens whose value moved from the old one by more than critic.value_clip.",
    "critic/return_mean": "Mean return R = A + V of the trained tokens, with the values at sampling.",
    "critic/error": "Mean |R - V| over the step's trained tokens, with the values at sampling.",
    "critic/error/*": "The same over the tokens from this position of their completion on, up to the next such name.",
    "critic/loss": "Loss of a separate critic, coefficient included; of a value head it is part of train/loss.",
    "critic/grad_norm": "Norm of the critic's gradient before clipping.",
    "critic/learning_rate": "The critic's learning rate.",
    "critic/updates": "The critic's optimizer steps.",
    "critic/updates_skipped": "Updates of the critic left out because no completion was judged.",
    "critic/micro_batches": "Forward and backward passes of the critic.",
    "critic/tokens": "Trained tokens that the critic learned from.",
    "reward/seen_mean": "Mean of all scores seen so far (algorithm.reward.normalise is running).",
    "reward/seen_std": "Population deviation of all scores seen so far.",
}


def value_statistics(samples: Sequence[Sample]) -> dict[str, Metric]:
    """critic/...: of judged completions, whose trained tokens are counted from 0."""
    judged = [sample.streams for sample in samples if sample.streams["valued"].any()]
    if not judged:
        return {}
    returns = np.concatenate([streams["returns"] for streams in judged])
    errors = returns - np.concatenate([streams["values"] for streams in judged])
    places = np.concatenate([np.arange(len(streams["returns"])) for streams in judged])
    spread = float(returns.var())
    found: dict[str, Metric] = {
        "critic/return_mean": Mean(float(returns.sum()), len(returns)),
        "critic/error": Mean(float(np.abs(errors).sum()), len(errors)),
    }
    if spread > 1e-12 * float(np.square(returns).mean()):
        found["critic/explained_variance"] = Mean(1 - float(errors.var()) / spread, 1)
    for first, last in zip(EDGES, [*EDGES[1:], len(returns) + EDGES[-1]], strict=True):
        inside = (places >= first) & (places < last)
        if inside.any():
            found[f"critic/error/from_{first}"] = Mean(float(np.abs(errors[inside]).sum()), int(inside.sum()))
    return found
