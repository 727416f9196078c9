"""A metric is a value with its reduction, so that merging micro-batches or ranks can never average averages."""

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mean:
    """sum / count; NaN when nothing was counted. `Mean(sum=3.0, count=2)` reads 1.5."""

    sum: float
    count: float

    def merge(self, other: "Mean") -> "Mean":
        """Mean over both."""
        return Mean(self.sum + other.sum, self.count + other.count)

    @property
    def value(self) -> float:
        """The mean."""
        return self.sum / self.count if self.count else math.nan


@dataclass(frozen=True, slots=True)
class Sum:
    """A total."""

    value: float

    def merge(self, other: "Sum") -> "Sum":
        """Total of both."""
        return Sum(self.value + other.value)


@dataclass(frozen=True, slots=True)
class Max:
    """A maximum; NaN wins, so that it is seen."""

    value: float

    def merge(self, other: "Max") -> "Max":
        """The larger one."""
        return self if math.isnan(self.value) or self.value >= other.value else other


@dataclass(frozen=True, slots=True)
class Min:
    """A minimum; NaN wins, so that it is seen."""

    value: float

    def merge(self, other: "Min") -> "Min":
        """The smaller one."""
        return self if math.isnan(self.value) or self.value <= other.value else other


@dataclass(frozen=True, slots=True)
class Last:
    """The latest reading."""

    value: float

    def merge(self, other: "Last") -> "Last":
        """The later one."""
        return other


Metric = Mean | Sum | Max | Min | Last


def merge_metrics(*parts: Mapping[str, Metric]) -> dict[str, Metric]:
    """All parts in one mapping; equal names must have equal reductions."""
    merged: dict[str, Metric] = {}
    for part in parts:
        for name, metric in part.items():
            old = merged.get(name)
            if old is not None and type(old) is not type(metric):
                raise TypeError(f"metric {name}: got {type(metric).__name__}, need {type(old).__name__}")
            merged[name] = metric if old is None else old.merge(metric)  # type: ignore[arg-type]
    return merged
