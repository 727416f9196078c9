"""What a step tells about itself besides what the algorithm reports."""

import resource
import sys
import time
from collections.abc import Sequence

import numpy as np

from quatrain.telemetry.metrics import Last, Max, Mean, Metric, Sum
from quatrain.types import Rollout


class Stopwatch:
    """Seconds per phase of a step."""

    def __init__(self) -> None:
        self._start = self._lap = time.perf_counter()
        self._phases: dict[str, float] = {}

    def lap(self, phase: str) -> None:
        """The time since the last lap is added to `phase`."""
        now = time.perf_counter()
        self._phases[phase] = self._phases.get(phase, 0.0) + now - self._lap
        self._lap = now

    def metrics(self, rollouts: Sequence[Rollout]) -> dict[str, Metric]:
        """time/..., speed/... and memory/... of an online step."""
        tokens = sum(rollout.num_tokens for rollout in rollouts)
        rate = tokens / max(self._phases.get("rollout", time.perf_counter() - self._start), 1e-9)
        return {**self.metrics_of(tokens), "speed/rollout_tokens_per_s": Last(rate)}

    def metrics_of(self, tokens: int) -> dict[str, Metric]:
        """time/..., speed/... and memory/... of a step that trained on so many tokens."""
        total = time.perf_counter() - self._start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        return {
            **{f"time/{phase}_s": Last(seconds) for phase, seconds in self._phases.items()},
            "time/step_s": Last(total),
            "speed/tokens_per_s": Last(tokens / total),
            "memory/rss_peak_gib": Last(peak / 2**30),
        }


def rollout_metrics(rollouts: Sequence[Rollout]) -> dict[str, Metric]:
    """rollout/...: lengths and how completions ended."""
    lengths = [rollout.num_tokens for rollout in rollouts]
    prompts = {rollout.group: len(rollout.prompt.token_ids) for rollout in rollouts}
    kept = np.concatenate([t.kept_mass[t.trained] for rollout in rollouts for t in rollout.trajectories])
    count = len(rollouts)
    reasons = ("eos", "stop", "length", "aborted")
    return {
        "rollout/tokens": Sum(sum(lengths)),
        "rollout/prompt_tokens": Sum(sum(prompts.values())),
        "rollout/completions": Sum(count),
        "rollout/length": Mean(sum(lengths), count),
        "rollout/length_max": Max(max(lengths)),
        "rollout/truncated": Mean(sum(rollout.stop_reason == "length" for rollout in rollouts), count),
        **{f"rollout/stop_{r}": Mean(sum(rollout.stop_reason == r for rollout in rollouts), count) for r in reasons},
        "rollout/kept_mass": Mean(float(kept.sum()), len(kept)),
    }
