"""QLoRA: the base in NF4, with adapters that learn on it and are merged into the numbers they were trained on."""

import builtins
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from quatrain.config import ModelConfig
from quatrain.errors import SettingError
from quatrain.models import quantise
from quatrain.models.load import LanguageModel, load_language_model
from quatrain.models.lora import POLICY
from quatrain.models.scalar import attribute_scores, load_scalar_model
from quatrain.train.checkpoint import load_weights, save_weights
from tests.tiny import save_tiny

IDS = torch.arange(5, 25)[None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("quantise") / "tiny")


def config(folder: Path, **changes: Any) -> ModelConfig:
    settings = {"path": str(folder), "device": "cpu", "lora": {"rank": 2, "quantise": "nf4"}, **changes}
    return ModelConfig.model_validate(settings)


def load(folder: Path, **changes: Any) -> LanguageModel:
    torch.manual_seed(0)
    return load_language_model(config(folder, **changes))


def rounded(folder: Path) -> Any:
    """The dense model whose linear layers have the values of NF4."""
    module = load_language_model(config(folder, lora=None)).module
    quantise.round_to_nf4(module)
    return module


def logits(module: Any) -> torch.Tensor:
    with torch.no_grad():
        return module(input_ids=IDS).logits


def learn(lm: LanguageModel) -> None:
    """Other adapters than fresh ones."""
    with torch.no_grad():
        for number, parameter in enumerate(lm.module.parameters()):
            if parameter.requires_grad:
                parameter += 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))


def gradients(module: Any) -> dict[str, torch.Tensor]:
    module.zero_grad()
    module(input_ids=IDS, labels=IDS).loss.backward()
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


def test_a_block_of_64_weights_has_the_16_levels_of_nf4(folder: Path) -> None:
    dense = load_language_model(config(folder, lora=None)).module
    found = rounded(folder)
    layer, before = found.model.layers[0].mlp.up_proj.weight, dense.model.layers[0].mlp.up_proj.weight
    # The quantiles of Dettmers et al. 2023, appendix E, between 0 and 1, and their neighbours' distances.
    levels = torch.tensor([-1.0, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0.0,
                           0.0796, 0.1609, 0.2461, 0.3379, 0.4407, 0.5626, 0.7230, 1.0])  # fmt: skip
    blocks, own = layer.detach().reshape(-1, 64), before.detach().reshape(-1, 64)
    largest = own.abs().amax(1, keepdim=True)
    assert (blocks.abs().amax(1, keepdim=True) / largest - 1).abs().max() < 0.05  # scales are quantised too
    relative = blocks / blocks.abs().amax(1, keepdim=True)
    assert (relative[..., None] - levels).abs().amin(-1).max() < 1e-3
    nearest = levels[(own / largest)[..., None].sub(levels).abs().argmin(-1)]
    assert (nearest == levels[relative[..., None].sub(levels).abs().argmin(-1)]).float().mean() > 0.99


def test_the_quantised_base_multiplies_the_rounded_weights(folder: Path) -> None:
    torch.testing.assert_close(logits(load(folder).module), logits(rounded(folder)), rtol=1e-5, atol=1e-6)
    dense = load_language_model(config(folder, lora=None)).module
    assert (logits(dense) - logits(rounded(folder))).abs().max() > 1e-3


def test_embedding_head_and_norms_stay_as_they_were(folder: Path) -> None:
    dense, own = load_language_model(config(folder, lora=None)).module, load(folder).causal
    assert type(own.get_output_embeddings()) is nn.Linear
    assert torch.equal(own.get_output_embeddings().weight, dense.get_output_embeddings().weight)
    assert torch.equal(own.get_input_embeddings().weight, dense.get_input_embeddings().weight)
    assert torch.equal(own.model.layers[0].input_layernorm.weight, dense.model.layers[0].input_layernorm.weight)


def test_a_quantised_layer_takes_little_more_than_half_a_byte_a_weight(folder: Path) -> None:
    layer = load(folder).causal.model.layers[0].mlp.up_proj.base_layer
    kept = layer.weight.numel() * layer.weight.element_size()
    assert kept == layer.in_features * layer.out_features / 2


@pytest.mark.parametrize("checkpointing", [False, True])
def test_adapters_get_the_gradient_of_the_rounded_base(folder: Path, checkpointing: bool) -> None:
    from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict

    lm = load(folder, gradient_checkpointing=checkpointing)
    learn(lm)
    dense = get_peft_model(rounded(folder), LoraConfig(r=2, lora_alpha=32, target_modules="all-linear"))
    set_peft_model_state_dict(dense, get_peft_model_state_dict(lm.module))
    own, expected = gradients(lm.module), gradients(dense)
    assert own.keys() == expected.keys() and all("lora_" in name for name in own)
    for name, gradient in own.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-6)


def test_sampling_changes_neither_logits_nor_gradients(folder: Path) -> None:
    """bitsandbytes' own layer may repack its weights when it samples on a CPU, and then passes no gradient."""
    lm = load(folder)
    learn(lm)
    before, training = gradients(lm.module), logits(lm.module)
    with lm.inference():
        assert torch.equal(lm.module(input_ids=IDS).logits, training)
    after = gradients(lm.module)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_bfloat16_products_keep_float32_adapters(folder: Path) -> None:
    lm = load(folder, dtype="bfloat16")
    with lm.arithmetic():
        found = gradients(lm.module)
    assert found and {gradient.dtype for gradient in found.values()} == {torch.float32}
    assert all(gradient.isfinite().all() for gradient in found.values())


def test_adapters_are_merged_into_the_numbers_they_were_trained_on(folder: Path, tmp_path: Path) -> None:
    lm = load(folder)
    learn(lm)
    save_weights(lm, tmp_path)
    expected = logits(lm.module)
    merged = load_language_model(config(tmp_path, lora=None))
    torch.testing.assert_close(logits(merged.module), expected, rtol=1e-4, atol=1e-5)
    (tmp_path / quantise.NOTE).unlink()
    assert (logits(load_language_model(config(tmp_path, lora=None)).module) - expected).abs().max() > 1e-3


def test_a_saved_adapter_is_read_back_bit_for_bit(folder: Path, tmp_path: Path) -> None:
    lm, other = load(folder), load(folder)
    learn(lm)
    save_weights(lm, tmp_path)
    load_weights(other, tmp_path, POLICY)
    assert torch.equal(logits(other.module), logits(lm.module))


def test_another_quantisation_beside_an_adapter_is_one_line(folder: Path, tmp_path: Path) -> None:
    save_weights(load(folder), tmp_path)
    (tmp_path / quantise.NOTE).write_text('{"quant_type": "fp4"}')
    with pytest.raises(SettingError, match="nf4"):
        load_language_model(config(tmp_path, lora=None))


def test_a_reward_model_on_a_quantised_base_scores_the_same_when_it_is_read_back(folder: Path, tmp_path: Path) -> None:
    lm = load_scalar_model(config(folder), ["reward"], fresh_head=True)
    learn(lm)
    save_weights(lm, tmp_path)
    read = load_scalar_model(config(tmp_path, lora=None), fresh_head=False, trainable=False)
    texts = [list(range(5, 20)), list(range(9, 14))]
    torch.testing.assert_close(attribute_scores(read, texts), attribute_scores(lm, texts), rtol=1e-4, atol=1e-5)


def test_without_bitsandbytes_it_is_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    imported = builtins.__import__

    def missing(name: str, *rest: Any, **options: Any) -> Any:
        if name.startswith("bitsandbytes"):
            raise ImportError(name)
        return imported(name, *rest, **options)

    quantise.linear4bit.cache_clear()
    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(SettingError, match=r"^model\.lora\.quantise: got nf4, need the package bitsandbytes; run `pip"):
        load(folder)


def test_float64_is_refused() -> None:
    with pytest.raises(ValueError, match=r"model\.lora\.quantise: got nf4, need model\.dtype float32 or bfloat16"):
        config(Path("anything"), dtype="float64")
