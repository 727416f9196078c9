"""What a rollout engine is: prompts in, token ids with their sampler's log-probabilities out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from quatrain.config import SamplingConfig
from quatrain.registry import Registry
from quatrain.types import Prompt, Rollout


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One completion to make. `seed` starts its own random stream: same seed, same tokens, whatever the batch."""

    prompt: Prompt
    group: int
    index: int
    seed: tuple[int, ...]
    sampling: SamplingConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Capabilities:
    """What an engine promises."""

    deterministic: bool  # same request, same tokens
    shares_weights: bool  # reads the trainer's own parameters: update_weights needs no tensors
    truncation: bool  # top-p, top-k and min-p


class RolloutEngine(Protocol):
    """Completions for requests. `completed` blocks until some are done and returns [] when none are in flight."""

    capabilities: Capabilities

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests; a group's requests belong in one call."""
        ...

    def completed(self) -> list[Rollout]:
        """The next finished rollouts, in the order of their requests."""
        ...

    def abort(self) -> None:
        """Forget everything in flight."""
        ...

    def update_weights(self, version: int, tensors: Mapping[str, Any] | None = None) -> None:
        """Sample from these weights (None: those that are shared) and label tokens with `version`."""
        ...

    def sleep(self) -> None:
        """Give memory back between rollout phases."""
        ...

    def wake(self) -> None:
        """Undo `sleep`."""
        ...

    def close(self) -> None:
        """Release everything; the engine is not used again."""
        ...


ENGINES: Registry = Registry("engine", ["quatrain.rollout.in_process", "quatrain.rollout.no_cache"])
