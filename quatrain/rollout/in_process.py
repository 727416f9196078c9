"""The default engine: the trainer's own parameters, a KV cache, and a group's prompt read once.

Prompts of a wave are read together (padded on the left), their keys and values are repeated for the completions of
the group, then all rows advance a token at a time. Rows that have finished leave the batch.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quatrain.models.forward import attention_argument, head
from quatrain.models.load import LanguageModel
from quatrain.rollout import ENGINES, Capabilities, Request
from quatrain.rollout.completion import Completion
from quatrain.rollout.kv_cache import new_cache, select_rows
from quatrain.rollout.sampling import draw
from quatrain.types import Rollout

COMPACT_SHARE = 8  # finished rows are removed when they are one in this many


@ENGINES.register("in_process")
class InProcessEngine:
    """Batched decoding with a KV cache on the trainer's parameters: no copy, no start-up, no staleness.

    In float64 the tokens do not depend on what else is in the batch; in float32 a first divergence is a near-tie.
    """

    capabilities = Capabilities(deterministic=True, shares_weights=True, truncation=True)

    def __init__(self, lm: LanguageModel, *, max_rows: int = 256, max_context: int | None = None) -> None:
        self._lm = lm
        self._max_rows = max_rows
        self._max_context = min(max_context or lm.max_positions, lm.max_positions)
        self._queue: list[Request] = []
        self._version = 0

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests."""
        self._queue.extend(requests)

    def completed(self) -> list[Rollout]:
        """Decode the next wave: whole groups, at most `max_rows` completions with the same sampling settings."""
        wave: list[Request] = []
        while self._queue and self._queue[0].sampling == (wave or self._queue)[0].sampling:
            group = _leading_group(self._queue)
            if wave and len(wave) + len(group) > self._max_rows:
                break
            taken = group if len(group) <= self._max_rows else group[: self._max_rows]
            wave += taken
            del self._queue[: len(taken)]
        if not wave:
            return []
        with self._lm.inference():
            completions = [Completion.start(request, self._max_context) for request in wave]
            self._decode(completions)
        return [completion.rollout(self._version) for completion in completions]

    def _decode(self, completions: Sequence[Completion]) -> None:
        device = self._lm.device
        prompts, row_of = _unique_prompts(completions)
        width = max(map(len, prompts))
        cache = new_cache(self._lm.causal.config.get_text_config().num_hidden_layers,
                          width + max(completion.limit for completion in completions))  # fmt: skip
        padding_P = torch.tensor([width - len(ids) for ids in prompts], device=device)
        logits = self._read_prompts(prompts, padding_P, cache)[row_of]
        select_rows(cache, row_of)
        padding = padding_P[row_of]
        rows = list(completions)  # completion of each row of the cache; finished ones stay until they are removed
        step = 0
        while True:
            uniform = torch.from_numpy(np.array([_uniform(row, step) for row in rows])).to(device)
            drawn = draw(logits, uniform, rows[0].request.sampling)
            tokens, logprobs, mass = drawn.tokens_B.tolist(), drawn.logprobs_B.tolist(), drawn.kept_mass_B.tolist()
            for row, token, logprob, kept in zip(rows, tokens, logprobs, mass, strict=True):
                if row.stop_reason is None:
                    row.add(token, logprob, kept, self._lm.tokenizer, self._lm.eos_ids)
            live = [index for index, row in enumerate(rows) if row.stop_reason is None]
            if not live:
                return
            next_tokens = drawn.tokens_B
            if (len(rows) - len(live)) * COMPACT_SHARE >= len(rows):
                keep = torch.tensor(live, device=device)
                select_rows(cache, keep)
                rows, padding, next_tokens = [rows[index] for index in live], padding[keep], next_tokens[keep]
            logits = self._advance(next_tokens, width + step, padding, cache)
            step += 1

    def _read_prompts(self, prompts: Sequence[tuple[int, ...]], padding_P: Tensor, cache: Any) -> Tensor:
        """Logits after each prompt, (P, V); fills the cache."""
        device, width = self._lm.device, max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(row)) + list(row) for row in prompts], device=device)
        column = torch.arange(width, device=device)
        real = column[None] >= padding_P[:, None]
        causal = column[:, None] >= column[None]
        allowed = (causal[None] & real[:, None]) | torch.eye(width, dtype=torch.bool, device=device)[None]
        positions = (column[None] - padding_P[:, None]).clamp(min=0)
        logits = self._forward(ids, positions, allowed[:, None], cache)
        if cache.get_seq_length() != width:
            raise RuntimeError(f"KV cache: got {cache.get_seq_length()} positions, need {width}; the model ignores it")
        return logits

    def _advance(self, tokens_B: Tensor, column: int, padding_B: Tensor, cache: Any) -> Tensor:
        """Logits after one more token per row, (B, V)."""
        seen = torch.arange(column + 1, device=self._lm.device)[None] >= padding_B[:, None]
        return self._forward(tokens_B[:, None], (column - padding_B)[:, None], seen[:, None, None], cache)

    def _forward(self, ids_BT: Tensor, positions_BT: Tensor, allowed_B1TS: Tensor, cache: Any) -> Tensor:
        decoder = self._lm.causal.get_decoder()
        hidden = decoder(
            input_ids=ids_BT,
            position_ids=positions_BT,
            attention_mask=attention_argument(self._lm, allowed_B1TS),
            cache=cache,
            use_cache=True,
        ).last_hidden_state
        return head(self._lm, hidden[:, -1])

    def abort(self) -> None:
        """Forget the queue."""
        self._queue.clear()

    def update_weights(self, version: int, tensors: Mapping[str, Any] | None = None) -> None:
        """The trainer's own parameters are read, so only the version changes."""
        if tensors is not None:
            raise ValueError("tensors: got some, need None; this engine reads the trainer's parameters")
        self._version = version

    def sleep(self) -> None:
        """Nothing is held between waves."""

    def wake(self) -> None:
        """Nothing to take back."""

    def close(self) -> None:
        """Forget the queue."""
        self._queue.clear()


def _leading_group(queue: Sequence[Request]) -> list[Request]:
    """The requests at the head of the queue that have one prompt."""
    first = queue[0]
    count = next(
        (index for index, request in enumerate(queue)
         if request.group != first.group or request.prompt is not first.prompt), len(queue)
    )  # fmt: skip
    return list(queue[:count])


def _unique_prompts(completions: Sequence[Completion]) -> tuple[list[tuple[int, ...]], Tensor]:
    """Distinct prompts, and for each completion the number of its prompt."""
    numbers: dict[tuple[int, ...], int] = {}
    rows = [numbers.setdefault(item.request.prompt.token_ids, len(numbers)) for item in completions]
    return list(numbers), torch.tensor(rows)


def _uniform(completion: Completion, step: int) -> float:
    return float(completion.uniform[step]) if step < completion.limit else 0.0
