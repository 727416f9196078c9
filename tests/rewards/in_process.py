"""A plain function as a verifier in this process: no worker, no deadline."""

from collections.abc import Callable, Sequence
from typing import Any

from quatrain.rewards.calling import arguments, call_now, describe
from quatrain.rewards.function import accepted
from quatrain.rewards.guard import Guarded
from quatrain.rewards.verifier import Example, Kind, Limits, Scope, Verifier
from quatrain.types import Rollout, Score


class Called:
    scope: Scope = "completion"
    kind: Kind = "shaping"
    examples: tuple[Example, ...] = ()

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self._function, self._name = function, name
        self.signature = describe(function, "function", name)

    async def score(self, rollouts: Sequence[Rollout]) -> Sequence[Score]:
        given = [arguments(self.signature, rollout, self._name) for rollout in rollouts]
        return accepted([call_now(self._function, values) for values in given], rollouts, self._name)

    def close(self) -> None:
        pass


def wrap_function(function: Callable[..., Any]) -> Verifier:
    """Guarded as every verifier of a recipe is."""
    limits = Limits(name=function.__name__, setting="function", timeout_s=5.0, on_error="skip")
    return Guarded(Called(function, limits.name), limits)
