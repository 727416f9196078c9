"""Adapters: they start as the base, the reference is what training began with, and switching leaves no trace."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quatrain.batch import build
from quatrain.config import ModelConfig, TrainConfig
from quatrain.models.forward import reference_model, token_outputs
from quatrain.models.load import LanguageModel, load_language_model
from quatrain.models.lora import adapter_pairs, add_reference
from quatrain.train.learner import Learner
from quatrain.types import Sample
from tests.tiny import save_tiny

IDS = torch.arange(5, 25)[None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("lora") / "tiny")


def load(folder: Path, seed: int = 0, adapter: Path | None = None, **changes: Any) -> LanguageModel:
    torch.manual_seed(seed)
    lora = {"rank": 2, "adapter": None if adapter is None else str(adapter)}
    return load_language_model(
        ModelConfig.model_validate({"path": str(folder), "device": "cpu", "lora": lora, **changes})
    )


def logits(lm: LanguageModel) -> torch.Tensor:
    with torch.no_grad():
        return lm.module(input_ids=IDS).logits


def trainable(lm: LanguageModel) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in lm.module.named_parameters() if p.requires_grad}


def move(lm: LanguageModel, by: float = 0.05) -> None:
    """Another policy: every trained weight shifted."""
    with torch.no_grad():
        for parameter in lm.module.parameters():
            if parameter.requires_grad:
                parameter += by


@pytest.fixture(scope="module")
def sft(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved adapter that is not the base."""
    lm = load(folder, seed=3)
    move(lm)
    target = tmp_path_factory.mktemp("sft")
    lm.module.save_pretrained(target)
    return target


def test_a_fresh_adapter_is_the_base(folder: Path) -> None:
    base = load_language_model(ModelConfig(path=str(folder), device="cpu"))
    assert torch.equal(logits(load(folder)), logits(base))


def test_only_the_adapter_learns(folder: Path) -> None:
    names = set(trainable(load(folder)))
    assert names and all("lora_" in name and ".default." in name for name in names)


def test_case_c62_same_seed_same_adapter(folder: Path) -> None:
    one, same, other = (trainable(load(folder, seed=seed)) for seed in (7, 7, 8))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not all(torch.equal(one[name], other[name]) for name in one)


def test_the_reference_of_a_fresh_adapter_is_the_base(folder: Path) -> None:
    lm = load(folder)
    base = logits(lm)
    move(lm)
    moved, before = logits(lm), trainable(lm)
    assert not torch.equal(moved, base)
    with reference_model(lm, None) as reference:
        assert torch.equal(logits(reference), base)
    assert torch.equal(logits(lm), moved)
    assert trainable(lm).keys() == before.keys()
    assert lm.module.training


def test_an_sft_adapter_stays_apart_as_the_reference(folder: Path, sft: Path) -> None:
    lm = load(folder, adapter=sft)
    start = logits(lm)
    assert not torch.equal(start, logits(load(folder)))
    before = trainable(lm)
    assert before and all(".default." in name for name in before)
    move(lm)
    moved = logits(lm)
    assert not torch.equal(moved, start)
    with reference_model(lm, None) as reference:
        assert torch.equal(logits(reference), start)
    assert torch.equal(logits(lm), moved)
    assert trainable(lm).keys() == before.keys()


@pytest.mark.parametrize("with_sft", [False, True])
def test_switching_in_the_middle_of_an_update_keeps_the_gradient(folder: Path, sft: Path, with_sft: bool) -> None:
    """The exact KL asks for the reference before the forward of every micro-batch, with gradients half summed."""
    lm = load(folder, adapter=sft if with_sft else None)
    sample = Sample(token_ids=np.arange(5, 15), trained=np.arange(10) > 3, group=0, completion=0, prompt_length=4)
    batch = build([sample])
    token_outputs(lm, batch, 1.0).logprobs_N.sum().backward()
    once = {name: p.grad.clone() for name, p in lm.module.named_parameters() if p.grad is not None}
    with reference_model(lm, None):
        pass
    token_outputs(lm, batch, 1.0).logprobs_N.sum().backward()
    twice = {name: p.grad for name, p in lm.module.named_parameters() if p.grad is not None}
    assert twice.keys() == once.keys() and all(".default." in name for name in once)
    for name, gradient in once.items():
        torch.testing.assert_close(twice[name], 2 * gradient)


@pytest.mark.parametrize("with_sft", [False, True])
def test_the_kl_to_the_reference_starts_at_zero(folder: Path, sft: Path, with_sft: bool) -> None:
    lm = load(folder, adapter=sft if with_sft else None)
    learner = Learner(lm, TrainConfig(), 0.7)
    sample = Sample(token_ids=np.arange(5, 15), trained=np.arange(10) > 3, group=0, completion=0, prompt_length=4)
    streams = frozenset({"old_logprobs", "reference_logprobs", "reference_kl"})
    (found,) = learner.annotate([sample], streams, lambda _done, _total: None)
    assert np.array_equal(found.streams["old_logprobs"], found.streams["reference_logprobs"])
    assert np.abs(found.streams["reference_kl"]).max() < 1e-6
    move(lm)
    (found,) = learner.annotate([sample], streams, lambda _done, _total: None)
    assert np.abs(found.streams["old_logprobs"] - found.streams["reference_logprobs"]).max() > 1e-3
    assert found.streams["reference_kl"].min() > 0


def test_adapters_stay_float32_on_a_bfloat16_base(folder: Path) -> None:
    lm = load(folder, dtype="bfloat16")
    assert {p.dtype for p in lm.module.parameters() if p.requires_grad} == {torch.float32}
    assert lm.causal.get_output_embeddings().weight.dtype is torch.bfloat16


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_a_reference_of_its_own_starts_as_the_base_and_is_not_trained(folder: Path, dtype: str) -> None:
    lm = load(folder, dtype=dtype)
    before, own = logits(lm), trainable(lm)
    add_reference(lm.module)
    assert trainable(lm).keys() == own.keys() and torch.equal(logits(lm), before)
    with reference_model(lm, None) as reference:
        assert torch.equal(logits(reference), before)
    move(lm)
    with reference_model(lm, None) as reference:
        assert torch.equal(logits(reference), before)
    pairs = adapter_pairs(lm.module)
    assert len(pairs) == len(own) and all(one.dtype == other.dtype for one, other in pairs)
    assert not any(one.requires_grad for one, _ in pairs) and all(other.requires_grad for _, other in pairs)


def test_an_sft_adapter_has_its_reference_already(folder: Path, sft: Path) -> None:
    lm = load(folder, adapter=sft)
    with reference_model(lm, None) as reference:
        before = logits(reference)
    add_reference(lm.module)
    move(lm)
    with reference_model(lm, None) as reference:
        assert torch.equal(logits(reference), before)
