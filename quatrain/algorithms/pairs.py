"""Which samples of a batch are compared with which: chosen and rejected, by group and rank."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quatrain.batch import TrainBatch
from quatrain.ops.bradley_terry import ranking_pairs
from quatrain.telemetry.metrics import Mean, Metric
from quatrain.types import Sample


@dataclass(frozen=True, kw_only=True, slots=True)
class Pairs:
    """P comparisons as positions in the batch's samples; `weight_P` is 1 for a pair, 1 / (K choose 2) in a ranking."""

    chosen_P: Tensor
    rejected_P: Tensor
    tie_P: Tensor
    weight_P: Tensor

    @property
    def decided(self) -> "Pairs":
        """Those with a winner: of a tie nobody is chosen and nobody rejected."""
        kept_P = ~self.tie_P
        return Pairs(chosen_P=self.chosen_P[kept_P], rejected_P=self.rejected_P[kept_P], tie_P=self.tie_P[kept_P],
                     weight_P=self.weight_P[kept_P])  # fmt: skip


def pairs_of(batch: TrainBatch) -> Pairs:
    """All comparisons within the groups of a batch, in the order of their first samples.

    Raises ValueError for a group with one sample: its other side is in another micro-batch.
    """
    columns: list[list[Tensor]] = [[], [], [], []]
    for places in groups_of(batch.samples).values():
        ranks = [sample_value(batch.samples[place], "rank") for place in places]
        found = ranking_pairs(ranks)
        index = torch.tensor(places)
        weights = torch.full((len(found.chosen_P),), found.weight, dtype=torch.float64)
        for column, values in zip(
            columns, (index[found.chosen_P], index[found.rejected_P], found.tie_P, weights), strict=True
        ):
            column.append(values)
    device = batch.sample_N.device
    chosen, rejected, tie, weight = (torch.cat(column).to(device) for column in columns)
    return Pairs(chosen_P=chosen, rejected_P=rejected, tie_P=tie, weight_P=weight)


def groups_of(samples: Sequence[Sample]) -> dict[int, list[int]]:
    """Positions of the samples by group."""
    groups: dict[int, list[int]] = {}
    for place, sample in enumerate(samples):
        groups.setdefault(sample.group, []).append(place)
    return groups


def without_ties(samples: Sequence[Sample]) -> list[Sample]:
    """The samples of the groups in which something is preferred."""
    decided = {group for group, places in groups_of(samples).items()
               if len({sample_value(samples[place], "rank") for place in places}) > 1}  # fmt: skip
    return [sample for sample in samples if sample.group in decided]


def difference_metrics(prefix: str, pairs: Pairs, values_S: Tensor, rounding_S: Tensor) -> dict[str, Metric]:
    """Of the pairs with a winner: `accuracy` where both sides differ by more than rounding, the share of `equal` ones.

    Those are neither right nor wrong: at the start of DPO every difference is rounding and nothing else.
    """
    chosen_P, rejected_P = pairs.decided.chosen_P, pairs.decided.rejected_P
    difference_P = values_S[chosen_P] - values_S[rejected_P]
    count, equal_P = len(difference_P), difference_P.abs() <= rounding_S[chosen_P] + rounding_S[rejected_P]
    equal = int(equal_P.sum())
    found: dict[str, Metric] = {f"{prefix}/equal": Mean(equal, count)} if count else {}
    if count > equal:
        found[f"{prefix}/accuracy"] = Mean(int(((difference_P > 0) & ~equal_P).sum()), count - equal)
    return found


def sample_value(sample: Sample, stream: str, default: float | None = None) -> float:
    """A stream that is constant over a sample. Raises ValueError where it is missing and has no default."""
    if stream in sample.streams:
        return float(sample.streams[stream][0])
    if default is None:
        raise ValueError(
            f"stream {stream} of {sample.label or 'a sample'}: got none, need one number per trained token"
        )
    return default


def sample_values(batch: TrainBatch, stream: str, default: float | None = None) -> Tensor:
    """The same of every sample of the batch, (S,), float64."""
    values = [sample_value(sample, stream, default) for sample in batch.samples]
    return torch.tensor(values, dtype=torch.float64, device=batch.sample_N.device)
