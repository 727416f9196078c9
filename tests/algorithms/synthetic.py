"""Small made-up samples and groups with every stream, and the losses an algorithm gives on them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quatrain.algorithms import Group, Objective, Outputs
from quatrain.algorithms.grpo import GRPO
from quatrain.algorithms.ppo import PPO
from quatrain.batch import Builder, TrainBatch, build
from quatrain.config import AlgorithmConfig
from quatrain.telemetry.metrics import Metric, merge_metrics
from quatrain.types import Prompt, Sample, Score

Forward = Callable[[TrainBatch], Outputs]


def algorithm(max_tokens: int = 8, **settings: Any) -> GRPO:
    """GRPO with settings as a recipe would give them."""
    return GRPO(AlgorithmConfig.model_validate(settings), max_tokens)


def ppo(max_tokens: int = 8, **settings: Any) -> PPO:
    """PPO with settings as a recipe would give them."""
    return PPO(AlgorithmConfig.model_validate({"preset": "ppo", **settings}), max_tokens)


def make_sample(
    prompt: Sequence[int], completion: Sequence[int], number: int = 0, group: int = 0, **streams: Any
) -> Sample:
    """A single-turn sample."""
    return Sample(
        token_ids=np.array([*prompt, *completion]),
        trained=np.array([False] * len(prompt) + [True] * len(completion)),
        group=group,
        completion=number,
        prompt_length=len(prompt),
        label=f"prompt {group}, completion {number}",
        streams=streams,
    )


def scored_group(scores: Sequence[float | Score | None], lengths: Sequence[int] | None = None, **options: Any) -> Group:
    """A group of completions with these scores (None: abstained) and no streams but the sampler's."""
    index, streams = options.get("index", 0), options.get("streams", {})
    lengths = lengths or [2] * len(scores)
    samples = [
        make_sample([1, 2], range(3, 3 + length), number=100 * index + i, group=index, sampler_logprobs=[-1.0] * length)
        for i, length in enumerate(lengths)
    ]
    samples = [s.with_streams(**{k: v[i] for k, v in streams.items()}) for i, s in enumerate(samples)]
    return Group(
        prompt=Prompt(index=index, token_ids=(1, 2), text="p", source=options.get("source", "prompts")),
        scores=tuple(_as_score(score) for score in scores),
        samples=tuple((sample,) for sample in samples),
        truncated=tuple(options.get("truncated", [False] * len(scores))),
    )


def _as_score(score: float | Score | None) -> Score:
    if score is None:
        return Score(status="abstained")
    return score if isinstance(score, Score) else Score(value=score, parts={"correct": score})


def random_groups(seed: int = 0, groups: int = 3, size: int = 4, vocabulary: int = 17) -> list[Group]:
    """Groups with uneven lengths, a uniform group, a one-token completion, a two-trajectory completion, all streams."""
    rng = np.random.default_rng(seed)
    result = []
    for g in range(groups):
        prompt = rng.integers(1, vocabulary, 3 + g).tolist()
        scores = [0.5] * size if g == 1 else rng.integers(0, 3, size).astype(float).tolist()
        scores[0] += 0.25 if g != 1 else 0.0
        samples = []
        for i in range(size):
            lengths = [1] if (g, i) == (0, 0) else [4, 2] if (g, i) == (2, 1) else [int(rng.integers(2, 7))]
            samples.append(tuple(_random_sample(rng, prompt, n, g * size + i, g, vocabulary) for n in lengths))
        result.append(
            Group(
                prompt=Prompt(index=g, token_ids=tuple(prompt), text="p"),
                scores=tuple(Score(value=s, parts={"a": s / 2, "b": s / 2}) for s in scores),
                samples=tuple(samples),
                truncated=tuple(i == 2 for i in range(size)),
            )
        )
    return result


def _random_sample(
    rng: np.random.Generator, prompt: list[int], length: int, number: int, group: int, vocabulary: int
) -> Sample:
    """Streams near each other, as after a few updates."""
    base = -rng.uniform(0.5, 3, length)
    near = {
        name: base + rng.normal(0, 0.3, length) for name in ("sampler_logprobs", "old_logprobs", "reference_logprobs")
    }
    tokens = rng.integers(1, vocabulary, length).tolist()
    return make_sample(prompt, tokens, number, group, **near, reference_kl=rng.uniform(0, 0.5, length))


def with_values(groups: Sequence[Group], seed: int = 7) -> list[Group]:
    """The groups with what a critic said of every trained token, and of the state behind it."""
    rng = np.random.default_rng(seed)

    def valued(sample: Sample) -> Sample:
        values = rng.normal(0, 1, sample.num_tokens + 1)
        return sample.with_streams(values=values[:-1], next_values=values[1:])

    return [replace(group, samples=tuple(tuple(map(valued, own)) for own in group.samples)) for group in groups]


def direct_forward(logprobs: Mapping[int, Tensor], full_kl: float = 0.3) -> Forward:
    """Outputs from one leaf tensor of logprobs per sample (by the identity of its token array)."""

    def forward(batch: TrainBatch) -> Outputs:
        logprobs_N = torch.cat([logprobs[key(sample)] for sample in batch.samples])
        return Outputs(
            logprobs_N=logprobs_N,
            entropy_N=1 - 0.1 * logprobs_N.square(),
            full_kl_N=full_kl * logprobs_N.square(),
            values_NK=(1 + 0.4 * logprobs_N)[:, None],
        )

    return forward


def key(sample: Sample) -> int:
    """The same number for a sample and its copies with other streams."""
    return hash((sample.completion, sample.token_ids.tobytes()))


def leaves(samples: Sequence[Sample], stream: str = "old_logprobs", shift: float = 0.1) -> dict[int, Tensor]:
    """Leaf logprobs near a stream, so that ratios differ from 1."""
    generator = torch.Generator().manual_seed(5)
    result = {}
    for sample in samples:
        start = torch.tensor(sample.streams[stream])
        noise = shift * torch.randn(start.shape, generator=generator, dtype=torch.float64)
        result[key(sample)] = (start + noise).requires_grad_()
    return result


def total_loss(
    method: Objective,
    samples: Sequence[Sample],
    forward: Forward,
    builder: Builder = "padded",
    micro_batches: Sequence[Sequence[Sample]] | None = None,
) -> tuple[Tensor, dict[str, Metric]]:
    """The loss of the update: sums over micro-batches, each term over its denominator."""
    denominators = method.denominators(samples)
    total, statistics = torch.zeros((), dtype=torch.float64), []
    for micro_batch in micro_batches or [samples]:
        batch = build(micro_batch, builder)
        sums = method.loss(batch, forward(batch))
        assert sums.terms.keys() == denominators.keys()
        total = total + sum(term / denominators[name] for name, term in sums.terms.items())
        statistics.append(sums.statistics)
    return total, merge_metrics(*statistics)
