"""What an algorithm is: credit (what each completion deserves) and loss (how weights follow), one file each.

An objective is what one role minimises in an update. An online algorithm is the policy's objective, with credit before
it and perhaps a critic's objective beside it. A new one is a class with these members, registered here; the contract
suite then runs on it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

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
    values: bool = False  # of the value head on the policy, in the policy's loss
    whole_groups: bool = False  # samples of a group stay in one micro-batch


@dataclass(frozen=True, kw_only=True, slots=True)
class LossSums:
    """Loss terms as sums over the micro-batch; the learner divides each by its denominator of the whole update."""

    terms: Mapping[str, Tensor]
    statistics: Mapping[str, Metric] = field(default_factory=dict)


class Objective(Protocol):
    """What a role minimises. Nothing here knows how the batch was laid out, split or sharded."""

    role: str  # policy, critic, or reward
    needs: Needs

    def prepare(self, samples: Sequence[Sample]) -> list[Sample]:
        """The samples of an update, with what enters the loss non-linearly and needs all of them (whitening)."""
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


class Algorithm(Objective, Protocol):
    """The policy's objective of an online method, with credit before it."""

    critic: Objective | None  # of a separate value model

    def credit(self, groups: Sequence[Group]) -> tuple[list[Sample], dict[str, Metric]]:
        """Samples with their `advantages` stream (and whatever else the loss reads), and named statistics."""
        ...

    def finish_step(self, samples: Sequence[Sample]) -> dict[str, Metric]:
        """Let controllers and normalisers follow the step that is done; returns what they show."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Controllers and normalisers, as plain JSON."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken; an empty one begins anew."""
        ...


class Beside(Protocol):
    """Samples that are not trained on but that the statistics of an update need (KTO's mismatched answers)."""

    def samples(self, samples: Sequence[Sample]) -> list[Sample]:
        """Those that go with the samples of an update."""
        ...

    def apply(self, samples: Sequence[Sample], others: Sequence[Sample]) -> list[Sample]:
        """The samples with what follows from `others`, which have old and reference logprobs by now."""
        ...


class OfflineAlgorithm(Objective, Protocol):
    """The objective of an offline method."""

    data: Literal["sft", "pairs", "labelled", "scores"]  # what it trains on
    uses_ties: bool  # whether a comparison without a winner has a loss
    beside: Beside | None


ALGORITHMS: Registry = Registry("algorithm", ["quatrain.algorithms.grpo", "quatrain.algorithms.ppo"])
OFFLINE_ALGORITHMS: Registry = Registry(
    "offline algorithm",
    ["quatrain.algorithms.sft", "quatrain.algorithms.preference", "quatrain.algorithms.reward_model"],
)

__all__ = [
    "ALGORITHMS",
    "OFFLINE_ALGORITHMS",
    "Algorithm",
    "Beside",
    "Group",
    "LossSums",
    "Needs",
    "Objective",
    "OfflineAlgorithm",
    "Outputs",
]
