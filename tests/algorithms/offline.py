"""Made-up examples for every offline method, and its loss and gradient through the real learner in float64."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from pydantic import TypeAdapter
from torch import Tensor
from transformers import LlamaConfig, LlamaForSequenceClassification
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from quatrain.algorithms import OFFLINE_ALGORITHMS, OfflineAlgorithm
from quatrain.config import OfflineAlgorithm as OfflineConfig
from quatrain.config import OfflineTrainConfig
from quatrain.models.load import LanguageModel
from quatrain.telemetry.metrics import Metric
from quatrain.train.learner import Learner
from quatrain.types import Sample
from tests.algorithms.synthetic import make_sample
from tests.tiny import tiny_llama, tiny_lm
from tests.train.synthetic import exact_lm, nothing

SETTINGS: dict[str, dict[str, Any]] = {
    "sft": {"name": "sft"},
    "sft by example": {"name": "sft", "aggregate": "sequence"},
    "dpo": {"name": "dpo"},
    "conservative dpo": {"name": "dpo", "label_smoothing": 0.1},
    "robust dpo": {"name": "dpo", "label_smoothing": 0.2, "robust": True, "beta": 0.5},
    "ipo": {"name": "ipo"},
    "ipo of averages": {"name": "ipo", "average_logprobs": True},
    "kto": {"name": "kto", "desirable_weight": 0.7, "undesirable_weight": 1.3},
    "orpo": {"name": "orpo"},
    "simpo": {"name": "simpo"},
    "reward model": {"name": "reward_model"},
    "reward model without ties": {"name": "reward_model", "ties": "discard", "centering": 0.01},
    "reward model of two heads": {"name": "reward_model", "attributes": {"helpful": 1.0, "brief": 0.5}},
}


def make(**settings: Any) -> OfflineAlgorithm:
    """The algorithm that a recipe with these settings has."""
    config = TypeAdapter(OfflineConfig).validate_python(settings)
    found: OfflineAlgorithm = OFFLINE_ALGORITHMS.get(config.name)(config)
    return found


def numbered(samples: Sequence[Sample]) -> list[Sample]:
    """Completions numbered over the batch, as a step does it."""
    return [replace(sample, completion=place) for place, sample in enumerate(samples)]


def group(number: int, prompt: Sequence[int], answers: Sequence[Sequence[int]], scores: bool = False,
          **values: Sequence[float]) -> list[Sample]:  # fmt: skip
    """The samples of one row; `values` has one number per answer and stream. Of scores the last token alone counts."""
    made = []
    for place, answer in enumerate(answers):
        sample = make_sample(prompt, [*answer, answer[-1]] if scores else answer, group=number)
        if scores:
            marks = np.zeros(len(sample.token_ids), dtype=bool)
            marks[-1] = True
            sample = replace(sample, trained=marks)
        made.append(sample.with_streams(**{n: np.full(sample.num_tokens, v[place]) for n, v in values.items()}))
    return made


def examples(method: OfflineAlgorithm, seed: int = 0) -> list[Sample]:
    """Rows of uneven lengths: pairs, a ranking of three with a tie in it, and a tie; or answers; or labelled ones."""
    rng = np.random.default_rng(seed)

    def tokens(count: int) -> list[int]:
        return [int(token) for token in rng.integers(3, 40, count)]

    made: list[Sample] = []
    if method.data in ("sft", "labelled"):
        for number, length in enumerate((4, 1, 6, 3, 2)):
            streams = {"desirable": [float(number % 2)]} if method.data == "labelled" else {}
            made += group(number, tokens(2 + number % 3), [tokens(length)], **streams)
        return numbered(made)
    scores, heads = method.data == "scores", len(getattr(method.config, "attributes", {})) or 1
    for number, ranks in enumerate([(0, 1), (0, 1), (0, 1, 1), (0, 0), (1, 0)]):
        answers = [tokens(int(rng.integers(1, 7))) for _ in ranks]
        values: dict[str, Any] = {"rank": ranks, "confidence": [0.9 if number == 1 else 1.0] * len(ranks)}
        if scores:
            values |= {"head": [number % heads] * len(ranks), "margin": [0.3 if number == 0 else 0.0] * len(ranks)}
        made += group(number, tokens(2 + number % 3), answers, scores, **values)
    return numbered(made)


def exact_scalar_lm(heads: int = 1, seed: int = 0) -> LanguageModel:
    """A float64 model with score heads (norms in float64 too)."""
    base = tiny_llama(seed, torch.float64)
    settings = {**base.config.to_dict(), "num_labels": heads}
    torch.manual_seed(seed)
    module = LlamaForSequenceClassification(LlamaConfig(**settings)).double()
    for parent in list(module.modules()):
        for name, child in parent.named_children():
            if isinstance(child, LlamaRMSNorm):
                norm = torch.nn.RMSNorm(child.weight.shape, eps=child.variance_epsilon, dtype=torch.float64)
                setattr(parent, name, norm)
    return replace(tiny_lm(seed, torch.float64), module=module)


def open_learner(method: OfflineAlgorithm, lm: LanguageModel | None = None, **train: Any) -> Learner:
    """A learner of the method's role; the reference is another model."""
    heads = len(getattr(method.config, "attributes", {})) or 1
    lm = lm or (exact_scalar_lm(heads) if method.role == "reward" else exact_lm())
    config = OfflineTrainConfig.model_validate(
        {"steps": 1, "max_grad_norm": 1e9, "tokens_per_micro_batch": 64, **train}
    )
    return Learner(lm, config, 1.0, exact_lm(seed=1) if method.role == "policy" else None, name=method.role)


def ready(learner: Learner, method: OfflineAlgorithm, samples: Sequence[Sample]) -> list[Sample]:
    """The samples with the streams that a step gives them."""
    if "reference_logprobs" not in method.needs.streams:
        return list(samples)
    found = learner.annotate(samples, frozenset({"reference_logprobs"}), nothing)
    if method.beside is None:
        return found
    others = method.beside.samples(found)
    streams = frozenset({"old_logprobs", "reference_logprobs"})
    return method.beside.apply(found, learner.annotate(others, streams, nothing))


def gradients(
    learner: Learner, method: OfflineAlgorithm, samples: Sequence[Sample]
) -> tuple[dict[str, Tensor], dict[str, Metric]]:
    """What an update would step along, by parameter, and its metrics; no weight moves."""
    role, found = learner.roles[method.role], dict[str, Tensor]()

    def keep() -> None:
        found.update({name: p.grad.clone() for name, p in role.trainable.items() if p.grad is not None})

    role.optimizer.step = keep  # type: ignore[method-assign,assignment]
    return found, learner.update(samples, method, 1, nothing)
