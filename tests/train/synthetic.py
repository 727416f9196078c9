"""Learners on the tiny model, and samples with credit."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from quatrain.algorithms import ALGORITHMS, Algorithm, Group
from quatrain.config import AlgorithmConfig, TrainConfig
from quatrain.models.load import LanguageModel
from quatrain.train.learner import Learner
from quatrain.types import Prompt, Sample, Score
from tests.tiny import tiny_lm

PROMPTS = ([5, 6, 7, 8], [9, 10, 11], [12, 13, 14, 15, 16])


def exact_lm(seed: int = 0) -> LanguageModel:
    """A float64 model whose norms are float64 too (transformers' own work in float32)."""
    lm = tiny_lm(seed, torch.float64)
    exact_norms(lm.module)
    return lm


def exact_norms(module: torch.nn.Module) -> None:
    """Put norms that work in the weights' own dtype in place of transformers' own."""
    for parent in list(module.modules()):
        for name, child in parent.named_children():
            if isinstance(child, LlamaRMSNorm):
                norm = torch.nn.RMSNorm(child.weight.shape, eps=child.variance_epsilon, dtype=torch.float64)
                setattr(parent, name, norm)


def nothing(_done: int, _total: int) -> None:
    """No progress shown."""


def algorithm(**settings: Any) -> Algorithm:
    return ALGORITHMS.get("grpo")(AlgorithmConfig.model_validate(settings), 8)


def learner(lm: LanguageModel, reference: LanguageModel | None = None, **settings: Any) -> Learner:
    defaults = {"learning_rate": 1e-2, "tokens_per_micro_batch": 4096}
    return Learner(lm, TrainConfig.model_validate({**defaults, **settings}), 0.8, reference)


def credited(method: Algorithm, learner: Learner, rewards: Sequence[Sequence[float]]) -> list[Sample]:
    """A group per row of rewards, with random completions, annotated and credited as a step would do it."""
    rng = np.random.default_rng(1)
    samples: list[Sample] = []
    for group, row in enumerate(rewards):
        prompt = PROMPTS[group]
        for index in range(len(row)):
            length = int(rng.integers(2, 8))
            samples.append(
                Sample(
                    token_ids=np.array([*prompt, *rng.integers(3, 40, length)]),
                    trained=np.arange(len(prompt) + length) >= len(prompt),
                    group=group,
                    completion=len(samples),
                    prompt_length=len(prompt),
                    label=f"prompt {group}, completion {index}",
                )
            )
    streams = method.needs.streams | {"old_logprobs"}
    samples = learner.annotate(samples, streams, nothing)
    samples = [s.with_streams(sampler_logprobs=s.streams["old_logprobs"]) for s in samples]
    groups = [
        Group(
            prompt=Prompt(index=group, token_ids=tuple(PROMPTS[group]), text="p"),
            scores=tuple(Score(value=value) for value in row),
            samples=tuple((sample,) for sample in samples if sample.group == group),
            truncated=(False,) * len(row),
        )
        for group, row in enumerate(rewards)
    ]
    return method.credit(groups)[0]


def weights(lm: LanguageModel) -> torch.Tensor:
    """Every weight in one vector."""
    return torch.cat([parameter.detach().flatten().clone() for parameter in lm.module.parameters()])
