"""What an algorithm is: credit (what each completion deserves) and loss (how weights follow), one file each.

A new one is a class with these five members, registered here; the contract suite then runs on it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from quatrain.batch import Outputs, TrainBatch
from quatrain.registry import Registry
from quatrain.telemetry.metrics import Metric
from quatrain.types import Prompt, Sample, Score


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """The completions of one prompt: scores, and for each completion its samples (one per trajectory)."""

    prompt: Prompt
    scores: tuple[Score, ...]
    samples: tuple[tuple[Sample, ...], ...]
    truncated: tuple[bool, ...]  # True where the completion was cut at max_tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class Needs:
    """What an algorithm asks of the learner before credit is assigned, and of every forward of the loss."""

    streams: frozenset[str] = frozenset()  # old_logprobs, reference_logprobs, reference_kl (full, per token)
    entropy: bool = False  # exact entropy with gradient in the loss
    full_kl: bool = False  # exact KL to the reference with gradient in the loss


@dataclass(frozen=True, kw_only=True, slots=True)
class LossSums:
    """Loss terms as sums over the micro-batch; the learner divides each by its denominator of the whole update."""

    terms: Mapping[str, Tensor]
    statistics: Mapping[str, Metric] = field(default_factory=dict)


class Algorithm(Protocol):
    """Credit and loss. Nothing here knows how the batch was laid out, split or sharded."""

    needs: Needs

    def credit(self, groups: Sequence[Group]) -> tuple[list[Sample], dict[str, Metric]]:
        """Samples with their `advantages` stream (and whatever else the loss reads), and named statistics."""
        ...

    def contributes(self, sample: Sample) -> bool:
        """False when no loss term of the sample can have a gradient, so that its forward can be left out."""
        ...

    def denominators(self, samples: Sequence[Sample]) -> dict[str, float]:
        """One positive number per loss term, counted over every sample of the update before its first forward."""
        ...

    def loss(self, batch: TrainBatch, outputs: Outputs) -> LossSums:
        """Sums to be minimised after division by the denominators."""
        ...


ALGORITHMS: Registry = Registry("algorithm", ["quatrain.algorithms.grpo"])

__all__ = ["ALGORITHMS", "Algorithm", "Group", "LossSums", "Needs", "Outputs"]
