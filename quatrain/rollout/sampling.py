"""Drawing tokens: one uniform number per token and the inverse distribution function."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from quatrain.config import SamplingConfig


def uniforms(seed: tuple[int, ...], count: int) -> np.ndarray:
    """`count` uniform numbers in [0, 1) of the stream that belongs to `seed` alone (Philox, counter-based)."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed))).random(count)


@dataclass(frozen=True, slots=True)
class Drawn:
    """One token per row, with what the sampler thought of it (float64, nats)."""

    tokens_B: Tensor
    logprobs_B: Tensor  # log_softmax(logits / temperature) before any truncation
    kept_mass_B: Tensor  # probability that the truncation kept


def draw(logits_BV: Tensor, uniform_B: Tensor, sampling: SamplingConfig) -> Drawn:
    """One token per row: the first whose cumulative probability exceeds `uniform * kept mass`.

    Truncation in the order temperature, top-k, top-p, min-p, each on the tempered distribution. Temperature 0 takes
    the largest logit (the first of equals) and reports its log-probability at temperature 1.
    """
    if sampling.temperature == 0:
        tokens = logits_BV.argmax(-1)
        logprobs = _logprob(logits_BV, tokens)
        return Drawn(tokens, logprobs, torch.ones_like(logprobs))
    scaled = logits_BV if logits_BV.dtype is torch.float64 else logits_BV.float()
    scaled = scaled / sampling.temperature if sampling.temperature != 1 else scaled
    probs = scaled.softmax(-1)
    kept = _truncate(probs, sampling)
    cumulative = kept.double().cumsum(-1)
    mass = cumulative[:, -1]
    tokens = torch.searchsorted(cumulative, (uniform_B.to(mass) * mass)[:, None], right=True)[:, 0]
    last = kept.shape[-1] - 1 - (kept.flip(-1) > 0).int().argmax(-1)  # rounding must not step over the end
    tokens = torch.minimum(tokens, last)
    whole = torch.ones_like(mass) if kept is probs else mass
    return Drawn(tokens, _logprob(scaled, tokens), whole)


def _logprob(scaled_BV: Tensor, tokens_B: Tensor) -> Tensor:
    chosen = scaled_BV.gather(-1, tokens_B[:, None])[:, 0]
    return (chosen - scaled_BV.logsumexp(-1)).double()


def _truncate(probs_BV: Tensor, sampling: SamplingConfig) -> Tensor:
    """Probabilities with the cut tokens at zero, not renormalised; the most probable token always stays."""
    kept = probs_BV
    if sampling.top_k and sampling.top_k < probs_BV.shape[-1]:
        smallest = kept.topk(sampling.top_k, dim=-1).values[:, -1:]
        kept = kept.masked_fill(kept < smallest, 0.0)
    if sampling.top_p < 1:
        ordered, order = kept.sort(dim=-1, descending=True, stable=True)
        before = ordered.double().cumsum(-1) - ordered.double()
        share = sampling.top_p * kept.double().sum(-1, keepdim=True)
        kept = torch.zeros_like(kept).scatter(-1, order, ordered.masked_fill(before >= share, 0.0))
    if sampling.min_p > 0:
        kept = kept.masked_fill(kept < sampling.min_p * probs_BV.amax(-1, keepdim=True), 0.0)
    return kept
