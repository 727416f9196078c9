"""What a run tells: metrics with their reductions, the run's own log, the console, and trackers."""

from quatrain.telemetry import tensorboard
from quatrain.telemetry.tracker import TRACKERS, Tracker, TrackerFactory

__all__ = ["TRACKERS", "Tracker", "TrackerFactory", "tensorboard"]
