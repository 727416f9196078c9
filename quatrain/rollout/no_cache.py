"""The obviously right engine: one completion at a time, the whole sequence read again for every token."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from quatrain.models.load import LanguageModel
from quatrain.rollout import ENGINES, Capabilities, Request
from quatrain.rollout.completion import Completion
from quatrain.rollout.sampling import draw
from quatrain.types import Rollout


@ENGINES.register("no_cache")
class NoCacheEngine:
    """No cache, no batch, no padding: slow, and the oracle that the other engines are held to."""

    capabilities = Capabilities(deterministic=True, shares_weights=True, truncation=True)

    def __init__(self, lm: LanguageModel, *, max_context: int | None = None, **_: int) -> None:
        self._lm = lm
        self._max_context = min(max_context or lm.max_positions, lm.max_positions)
        self._queue: list[Request] = []
        self._version = 0

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests."""
        self._queue.extend(requests)

    def completed(self) -> list[Rollout]:
        """Finish the next request."""
        if not self._queue:
            return []
        with self._lm.inference():
            return [self._complete(self._queue.pop(0))]

    def _complete(self, request: Request) -> Rollout:
        completion = Completion.start(request, self._max_context)
        for uniform in completion.uniform:
            ids = [*request.prompt.token_ids, *completion.token_ids]
            logits = self._lm.causal(input_ids=torch.tensor([ids], device=self._lm.device), use_cache=False).logits
            drawn = draw(logits[:, -1], torch.tensor([uniform], device=self._lm.device), request.sampling)
            token, logprob, mass = drawn.tokens_B.item(), drawn.logprobs_B.item(), drawn.kept_mass_B.item()
            if completion.add(int(token), logprob, mass, self._lm.tokenizer, self._lm.eos_ids):
                break
        return completion.rollout(self._version)

    def abort(self) -> None:
        """Forget the queue."""
        self._queue.clear()

    def update_weights(self, version: int, tensors: Mapping[str, Any] | None = None) -> None:
        """The trainer's own parameters are read, so only the version changes."""
        if tensors is not None:
            raise ValueError("tensors: got some, need None; this engine reads the trainer's parameters")
        self._version = version

    def sleep(self) -> None:
        """Nothing is held between calls."""

    def wake(self) -> None:
        """Nothing to take back."""

    def close(self) -> None:
        """Forget the queue."""
        self._queue.clear()
