"""What PPO adapts between updates: the KL coefficient and the moments of the reward. Plain Python, no torch.

Every object has `state_dict()` (plain JSON) and `load_state_dict()`; a resumed run continues bit for bit.
"""

import math
from collections.abc import Iterable
from typing import Any, Protocol

LARGEST_ERROR = 0.2  # Ziegler et al. 2019: a single reading counts as at most 20 % off the target


class KLController(Protocol):
    """The coefficient beta of the KL penalty, and how it answers a measured KL."""

    @property
    def coefficient(self) -> float:
        """beta of the next step."""

    @property
    def restarts(self) -> int:
        """How often a spike has put beta back."""

    def update(self, kl: float, completions: int, kl_per_token: float | None = None) -> None:
        """Take in the KL (nats) of a step of so many completions."""

    def state_dict(self) -> dict[str, Any]:
        """All that changes, as plain JSON."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken."""


class FixedKL:
    """beta stays as set; it has no state."""

    restarts = 0

    def __init__(self, coefficient: float) -> None:
        self.coefficient = coefficient

    def update(self, kl: float, completions: int, kl_per_token: float | None = None) -> None:
        """Nothing follows from a measured KL."""

    def state_dict(self) -> dict[str, Any]:
        """Empty."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to load."""


class AdaptiveKL:
    """beta as a log-space proportional controller: Ziegler et al. 2019, arXiv:1909.08593 section 2.2.

        e = clip(KL / target - 1, -0.2, 0.2)        beta <- beta (1 + K e)        K = completions / horizon

    `target`: nats, in the unit of the readings (per token or per sequence; the caller names it). `horizon`:
    completions; the smaller, the faster. Addition to the paper: a reading above `spike` (nats per token; None: never)
    puts beta back to `initial` (never below where it stands) instead and is counted in `restarts`.
    """

    def __init__(self, initial: float, target: float, horizon: float, spike: float | None = None) -> None:
        for name, value in (("initial", initial), ("target", target), ("horizon", horizon)):
            if not value > 0:
                raise ValueError(f"{name}: got {value}, need a number above 0")
        self.initial, self.target, self.horizon, self.spike = initial, target, horizon, spike
        self.coefficient, self.restarts = initial, 0

    def update(self, kl: float, completions: int, kl_per_token: float | None = None) -> None:
        """Answer a measured KL; `kl_per_token` is what `spike` is compared with, `kl` itself when left out.

        Raises ValueError for a KL that is NaN, and when so many completions against the horizon would take beta to 0.
        """
        if math.isnan(kl):
            raise ValueError("kl: got nan, need the KL of the step in nats; beta would never be a number again")
        if completions * LARGEST_ERROR >= self.horizon:
            raise ValueError(f"horizon: got {self.horizon}, need more than {completions * LARGEST_ERROR:g} "
                             f"({completions} completions a step would take beta to 0)")  # fmt: skip
        if self.spike is not None and (kl if kl_per_token is None else kl_per_token) > self.spike:
            self.coefficient, self.restarts = max(self.coefficient, self.initial), self.restarts + 1
            return
        error = min(max(kl / self.target - 1, -LARGEST_ERROR), LARGEST_ERROR)
        self.coefficient *= 1 + completions / self.horizon * error

    def state_dict(self) -> dict[str, Any]:
        """beta and the count of restarts."""
        return {"coefficient": self.coefficient, "restarts": self.restarts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken."""
        self.coefficient, self.restarts = float(state["coefficient"]), int(state["restarts"])


class RunningMoments:
    """Mean and population variance of all values seen, merged batch by batch in float64.

    Chan, Golub and LeVeque 1979 ("Updating formulae and a pairwise algorithm for computing sample variances"); a batch
    of one value is Welford's step. How the values were split into batches changes nothing but the last bits.
    """

    def __init__(self) -> None:
        self.count, self.mean, self._squares = 0, 0.0, 0.0  # squares: sum of (value - mean)^2

    @property
    def variance(self) -> float:
        """mean of (value - mean)^2; 0 before two values."""
        return self._squares / self.count if self.count else 0.0

    def update(self, values: Iterable[float]) -> None:
        """Add a batch. Raises ValueError for a value that is not finite: it could never be taken out again."""
        batch = [float(value) for value in values]
        if wrong := [value for value in batch if not math.isfinite(value)]:
            raise ValueError(f"values: got {wrong[0]}, need finite numbers")
        if not batch:
            return
        mean = math.fsum(batch) / len(batch)
        total, difference = self.count + len(batch), mean - self.mean
        self._squares += math.fsum((value - mean) ** 2 for value in batch)
        self._squares += difference**2 * self.count * len(batch) / total
        self.mean += difference * len(batch) / total
        self.count = total

    def normalise(self, value: float) -> float:
        """(value - mean) / deviation; only centred while all values seen are equal (deviation below 1e-8)."""
        deviation = math.sqrt(self.variance)
        return (value - self.mean) / (deviation if deviation >= 1e-8 else 1.0)

    def state_dict(self) -> dict[str, Any]:
        """Count, mean and sum of squared deviations."""
        return {"count": self.count, "mean": self.mean, "squares": self._squares}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken."""
        self.count, self.mean, self._squares = int(state["count"]), float(state["mean"]), float(state["squares"])
