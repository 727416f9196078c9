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
from quatrain.models.forward import reference_model
from quatrain.models.load import LanguageModel, load_language_model
from quatrain.models.lora import POLICY
from quatrain.models.scalar import attribute_scores, load_scalar_model, save_scalar_model
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
    return quantise.round_to_nf4(load_language_model(config(folder, lora=None)).module, torch.float32)


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
    for noted, words in (('{"quant_type": "fp4", "dtype": "float32"}', "of another quantisation"),
                         ('{"quant_type"', "cannot be read"), ("[]", "cannot be read")):  # fmt: skip
        (tmp_path / quantise.NOTE).write_text(noted)
        with pytest.raises(SettingError, match=words):
            load_language_model(config(tmp_path, lora=None))


def test_a_base_that_was_stored_in_bfloat16_is_rounded_as_it_was(folder: Path, tmp_path: Path) -> None:
    """float32 weights and the same weights in bfloat16 are packed into different numbers here and there."""
    lm = load(folder, dtype="bfloat16")
    save_weights(lm, tmp_path)
    merged = load_language_model(config(tmp_path, lora=None)).module
    layer = lm.causal.model.layers[0].mlp.up_proj.base_layer
    kept = layer.forward(torch.eye(layer.in_features, dtype=torch.bfloat16)).T.float()
    assert torch.equal(merged.model.layers[0].mlp.up_proj.weight, kept)
    assert torch.equal(merged.model.rotary_emb.inv_freq, lm.causal.model.rotary_emb.inv_freq)
    wide = load_language_model(config(tmp_path, lora=None, dtype="float64")).module
    assert torch.equal(wide.model.layers[0].mlp.up_proj.weight.float(), kept)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_second_stage_goes_on_with_the_first_one_s_adapter(folder: Path, tmp_path: Path, dtype: str) -> None:
    """Packed again, the merged weights would be those without it."""
    lm = load(folder, dtype=dtype)
    learn(lm)
    save_weights(lm, tmp_path / "one")
    later = load(tmp_path / "one", dtype=dtype)
    assert torch.equal(logits(later.module), logits(lm.module))
    expected = logits(lm.module)
    learn(later)
    assert (logits(later.module) - expected).abs().max() > 1e-3
    with reference_model(later, None) as reference:
        assert torch.equal(logits(reference.module), expected)
    save_weights(later, tmp_path / "two")
    merged = load_language_model(config(tmp_path / "two", lora=None)).module
    if dtype == "float32":
        torch.testing.assert_close(logits(merged), logits(later.module), rtol=1e-4, atol=1e-5)


def test_merged_weights_are_not_packed_again(folder: Path, tmp_path: Path) -> None:
    save_weights(load(folder), tmp_path / "one")
    save_weights(load(tmp_path / "one", lora={"rank": 2}), tmp_path / "two")  # plain adapters on the merged model
    for path, lora in ((tmp_path / "two", {}), (tmp_path / "one", {"adapter": str(tmp_path / "one")})):
        with pytest.raises(SettingError, match="need a model that was not trained on a base in 4 bits before; packing"):
            load(path, lora={"rank": 2, "quantise": "nf4", **lora})


def test_an_adapter_stays_on_the_base_it_was_trained_on(folder: Path, tmp_path: Path) -> None:
    lm = load(folder)
    learn(lm)
    save_weights(lm, tmp_path)
    again = load(folder, lora={"rank": 2, "quantise": "nf4", "adapter": str(tmp_path)})
    assert torch.equal(logits(again.module), logits(lm.module))
    with pytest.raises(SettingError, match="quantise: got None, need nf4, on which the adapter was trained; set it"):
        load(folder, lora={"rank": 2, "adapter": str(tmp_path)})


def test_a_second_stage_says_when_its_own_rank_is_not_used(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_weights(load(folder), tmp_path)
    load(tmp_path)
    assert "goes on" not in caplog.text
    load(tmp_path, lora={"rank": 3, "quantise": "nf4"})
    assert "goes on, with its own rank 2, alpha 32" in caplog.text


def test_the_adapter_of_a_reward_model_is_no_policy(folder: Path, tmp_path: Path) -> None:
    save_weights(load_scalar_model(config(folder), ["reward"], fresh_head=True), tmp_path)
    with pytest.raises(SettingError, match="it gives scores, not text"):
        load(tmp_path)


def test_the_heads_of_a_reward_model_are_read_back_with_its_adapter(folder: Path, tmp_path: Path) -> None:
    lm = load_scalar_model(config(folder), ["kind", "brief"], fresh_head=True)
    learn(lm)
    save_weights(lm, tmp_path)
    again = load_scalar_model(config(tmp_path), fresh_head=False)
    texts = [list(range(5, 20))]
    assert torch.equal(attribute_scores(again, texts), attribute_scores(lm, texts))
    critic = load_scalar_model(config(tmp_path), ["value"], fresh_head=True)
    assert attribute_scores(critic, texts).shape == (1, 1)


def test_a_critic_begins_as_a_reward_model_on_a_quantised_base(folder: Path, tmp_path: Path) -> None:
    reward = load_scalar_model(config(folder), ["reward"], fresh_head=True)
    learn(reward)
    save_weights(reward, tmp_path)
    critic = load_scalar_model(config(tmp_path), ["value"], fresh_head=True)
    layers = [lm.causal.model.layers[1].mlp.up_proj for lm in (reward, critic)]
    assert torch.equal(*(layer.lora_B[POLICY].weight for layer in layers))
    assert torch.equal(*(layer.base_layer.weight.data for layer in layers))


def test_where_nothing_can_be_packed_it_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save_tiny(tmp_path, hidden_size=8, intermediate_size=9, num_attention_heads=1, num_key_value_heads=1, head_dim=4)
    with pytest.raises(SettingError, match="need a model with linear layers; LlamaForCausalLM has none of the usual"):
        load(tmp_path)
    little = save_tiny(tmp_path / "little", vocab_size=4096)
    load(little)
    assert "of the weights are in linear layers and packed; experts, embeddings and the head" in caplog.text


def test_a_quantised_model_is_not_merged_in_memory(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="got a base in 4 bits, need a run's folder; export it with --merge"):
        save_scalar_model(load_scalar_model(config(folder), ["reward"], fresh_head=True), tmp_path)


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
