"""The forward of training: chunks, checkpointing and layouts change nothing; a model it gets wrong is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import quatrain.models.forward as forward_module
from quatrain.batch import build
from quatrain.config import ModelConfig
from quatrain.errors import SettingError
from quatrain.models.forward import check_forward, token_outputs, trained_hidden
from quatrain.models.load import load_language_model
from quatrain.types import Sample
from tests.tiny import save_tiny, tiny_lm


def samples() -> list[Sample]:
    rng = np.random.default_rng(0)
    prompt = rng.integers(3, 40, 5)
    return [
        Sample(
            token_ids=np.concatenate([prompt, rng.integers(3, 40, length)]),
            trained=[False] * 5 + [True] * length,
            group=0,
            completion=index,
            prompt_length=5,
        )  # type: ignore[arg-type]
        for index, length in enumerate((4, 7, 1))
    ]


def gradients(module: Any) -> torch.Tensor:
    found = torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None])
    module.zero_grad()
    return found


def outputs_and_gradient(lm: Any, **options: Any) -> tuple[Any, torch.Tensor]:
    batch = build(samples(), "shared")
    reference = tiny_lm(seed=1, dtype=torch.float64)
    hidden = trained_hidden(reference, batch)
    outputs = token_outputs(lm, batch, 0.7, reference_hidden_N=hidden, reference=reference, **options)
    assert outputs.full_kl_N is not None
    weights = torch.arange(1.0, 13.0, dtype=torch.float64)
    loss = (outputs.logprobs_N * weights).sum() + outputs.full_kl_N.square().sum()
    if outputs.entropy_N.requires_grad:
        loss = loss + outputs.entropy_N.square().sum()
    loss.backward()
    return outputs, gradients(lm.module)


@pytest.mark.parametrize("entropy_gradient", [False, True])
@pytest.mark.parametrize("tokens", [1, 5, 11])
def test_chunks_change_neither_values_nor_gradients(
    monkeypatch: pytest.MonkeyPatch, tokens: int, entropy_gradient: bool
) -> None:
    lm = tiny_lm(dtype=torch.float64)
    whole, gradient = outputs_and_gradient(lm, entropy_gradient=entropy_gradient)
    calls = []
    original = forward_module.gather_logprobs

    def counted(logits: torch.Tensor, *rest: Any) -> torch.Tensor:
        calls.append(len(logits))
        return original(logits, *rest)

    monkeypatch.setattr(forward_module, "gather_logprobs", counted)
    monkeypatch.setattr(forward_module, "LOGITS_BYTES", 4 * lm.vocabulary * tokens)
    pieces, gradient_of_pieces = outputs_and_gradient(lm, entropy_gradient=entropy_gradient)
    assert max(calls) == tokens and len(calls) > 1
    for name in ("logprobs_N", "entropy_N", "full_kl_N"):
        torch.testing.assert_close(getattr(pieces, name), getattr(whole, name), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient_of_pieces, gradient, rtol=1e-10, atol=1e-12)


def test_values_are_those_of_the_models_own_logits() -> None:
    lm = tiny_lm(dtype=torch.float64)
    outputs, _ = outputs_and_gradient(lm)
    start = 0
    for sample in samples():
        ids = torch.tensor(sample.token_ids)
        logp = (lm.module(input_ids=ids[None]).logits[0] / 0.7).log_softmax(-1)[4:-1]
        count = sample.num_tokens
        expected = logp.gather(1, ids[5:, None])[:, 0]
        torch.testing.assert_close(outputs.logprobs_N[start : start + count], expected, rtol=1e-6, atol=1e-6)
        entropy = -(logp.exp() * logp).sum(-1)
        torch.testing.assert_close(outputs.entropy_N[start : start + count], entropy, rtol=1e-6, atol=1e-6)
        start += count


@pytest.mark.parametrize("quantity", ["entropy_N", "full_kl_N"])
def test_entropy_and_exact_kl_have_a_gradient_along_which_they_grow(quantity: str) -> None:
    lm, reference = tiny_lm(dtype=torch.float64), tiny_lm(seed=1, dtype=torch.float64)
    batch = build(samples())
    hidden = trained_hidden(reference, batch)

    def value() -> torch.Tensor:
        return getattr(
            token_outputs(lm, batch, 1.0, entropy_gradient=True, reference_hidden_N=hidden, reference=reference),
            quantity,
        ).sum()

    before = value()
    before.backward()
    norm = torch.sqrt(sum(p.grad.square().sum() for p in lm.module.parameters() if p.grad is not None))
    assert norm > 1e-3
    step = 1e-4 / norm
    with torch.no_grad():
        for p in lm.module.parameters():
            p += step * p.grad
    rise = float((value() - before).detach())
    assert rise == pytest.approx(float(1e-4 * norm), rel=0.02)


def test_entropy_without_need_has_no_gradient() -> None:
    outputs = token_outputs(tiny_lm(), build(samples()), 1.0)
    assert not outputs.entropy_N.requires_grad and outputs.logprobs_N.requires_grad
    assert outputs.full_kl_N is None


def test_gradient_checkpointing_gives_the_same_gradient(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    found = []
    for on in (False, True):
        lm = load_language_model(ModelConfig(path=str(tmp_path), device="cpu", gradient_checkpointing=on))
        token_outputs(lm, build(samples(), "packed"), 1.0).logprobs_N.sum().backward()
        found.append(gradients(lm.module))
    assert torch.equal(found[0], found[1]) and found[0].abs().max() > 1e-3


@pytest.mark.parametrize("lora", [None, {"rank": 2}])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_usual_model_passes_the_check(tmp_path: Path, lora: Any, attention: str, dtype: str) -> None:
    save_tiny(tmp_path)
    settings = {"path": str(tmp_path), "device": "cpu", "lora": lora, "attention": attention, "dtype": dtype}
    check_forward(load_language_model(ModelConfig.model_validate(settings)))


def test_a_model_with_a_head_of_its_own_is_refused() -> None:
    lm = tiny_lm()
    original = lm.module.forward

    def scaled(*arguments: Any, **named: Any) -> Any:
        result = original(*arguments, **named)
        result.logits = result.logits * 1.5
        return result

    lm.module.forward = scaled
    with pytest.raises(SettingError, match=r"need a model whose packed forward equals its own; log-probabilities"):
        check_forward(lm)


def test_a_model_that_ignores_the_packing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = tiny_lm()
    monkeypatch.setattr(forward_module, "attention_argument", lambda _lm, _allowed: None)
    with pytest.raises(SettingError, match="packed forward"):
        check_forward(lm)


def test_a_model_that_says_nan_is_refused() -> None:
    lm = tiny_lm()
    with torch.no_grad():
        lm.module.lm_head.weight[5] = float("nan")
    with pytest.raises(SettingError, match="differ by nan"):
        check_forward(lm)
