"""What a tracker is: somewhere besides `metrics.jsonl` that curves are sent to."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from quatrain.registry import Registry


class Tracker(Protocol):
    """Receives the values of a step. Logging the same step again after a resume replaces what came after it."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record named values, non-finite ones included."""
        ...

    def close(self) -> None:
        """Flush; the tracker is not used again."""
        ...


class TrackerFactory(Protocol):
    """What is registered: called with the run folder and the first step that will be logged (1 for a new run)."""

    def __call__(self, folder: Path, first_step: int) -> Tracker:
        """Open the tracker."""
        ...


TRACKERS: Registry[TrackerFactory] = Registry("tracker")
