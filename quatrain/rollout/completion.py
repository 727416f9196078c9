"""A completion while it grows, and when it stops."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from quatrain.rollout import Request
from quatrain.rollout.sampling import uniforms
from quatrain.types import Rollout, StopReason, Trajectory


@dataclass(slots=True)
class Completion:
    """Tokens drawn so far for one request."""

    request: Request
    limit: int  # most tokens it may have: max_tokens, or what the context leaves
    uniform: np.ndarray
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    kept_mass: list[float] = field(default_factory=list)
    stop_reason: StopReason | None = None
    text: str = ""

    @classmethod
    def start(cls, request: Request, max_context: int) -> "Completion":
        """A fresh completion with its own random stream."""
        limit = min(request.sampling.max_tokens, max_context - len(request.prompt.token_ids))
        if limit < 1:
            raise ValueError(f"prompt {request.prompt.index}: {len(request.prompt.token_ids)} tokens leave no room")
        return cls(request=request, limit=limit, uniform=uniforms(request.seed, limit))

    def add(self, token: int, logprob: float, kept_mass: float, tokenizer: Any, eos_ids: frozenset[int]) -> bool:
        """Append a token; True when the completion is finished by it."""
        self.token_ids.append(token)
        self.logprobs.append(logprob)
        self.kept_mass.append(kept_mass)
        if token in eos_ids:
            self.stop_reason = "eos"
            self.text = tokenizer.decode(self.token_ids[:-1], skip_special_tokens=True)
        elif (cut := self._stop_string(tokenizer)) is not None:
            self.stop_reason = "stop"
            self.text = cut
        elif len(self.token_ids) == self.limit:
            self.stop_reason = "length"
            self.text = tokenizer.decode(self.token_ids, skip_special_tokens=True)
        return self.stop_reason is not None

    def _stop_string(self, tokenizer: Any) -> str | None:
        """The text before the first stop string, if one is complete."""
        stops = self.request.sampling.stop
        if not stops:
            return None
        text = tokenizer.decode(self.token_ids, skip_special_tokens=True)
        found = [position for stop in stops if (position := text.find(stop)) >= 0]
        return text[: min(found)] if found else None

    def rollout(self, version: int) -> Rollout:
        """The finished completion."""
        assert self.stop_reason is not None
        trajectory = Trajectory.single_turn(
            self.request.prompt.token_ids, self.token_ids, self.logprobs, self.kept_mass, version
        )
        return Rollout(
            prompt=self.request.prompt,
            group=self.request.group,
            index=self.request.index,
            trajectories=(trajectory,),
            text=self.text,
            stop_reason=self.stop_reason,
        )
