"""Loading: what a user gets wrong is one line; precision, end tokens, length and dropout are as promised."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from quatrain.config import ModelConfig
from quatrain.errors import SettingError
from quatrain.models.load import disable_dropout, end_tokens, load_language_model, load_tokenizer, max_positions
from tests.tiny import save_tiny, tiny_llama


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("models") / "tiny")


def config(path: Path | str, **changes: object) -> ModelConfig:
    return ModelConfig.model_validate({"path": str(path), "device": "cpu", **changes})


def one_line(path: Path | str, **changes: object) -> str:
    with pytest.raises(SettingError) as caught:
        load_language_model(config(path, **changes))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600
    return str(caught.value)


def test_a_missing_folder(tmp_path: Path) -> None:
    assert one_line(tmp_path / "absent").startswith("model.path: got ")
    assert "need an existing folder" in one_line(tmp_path / "absent")


def test_a_folder_without_a_config(tmp_path: Path) -> None:
    assert "need a folder with config.json" in one_line(tmp_path)


def test_an_id_that_cannot_be_fetched() -> None:
    assert one_line("nobody/nothing-at-all").startswith("model.path: got nobody/nothing-at-all, need ")


def test_a_folder_without_weights(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    assert one_line(tmp_path).startswith("model.path: ")


def test_torn_weights(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:200])
    assert one_line(tmp_path).startswith("model.path: ")


def test_weights_of_another_shape(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    tiny_llama(hidden_size=16).save_pretrained(tmp_path / "other")
    (tmp_path / "config.json").write_text((tmp_path / "other" / "config.json").read_text())
    assert one_line(tmp_path).startswith("model.path: ")


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    tiny_llama().save_pretrained(tmp_path)
    assert one_line(tmp_path).startswith("model.path: ")


@pytest.mark.parametrize("content", ["{", json.dumps({"model_type": "no-such-model"}), "[]"])
def test_a_config_that_is_no_model(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    assert one_line(tmp_path).startswith("model.path: ")


@pytest.mark.parametrize("device", ["cuda:7", "gpu", "no such device"])
def test_an_unknown_device(folder: Path, device: str) -> None:
    if device.startswith("cuda") and torch.cuda.device_count() > 7:
        pytest.skip("this machine has that device")
    assert one_line(folder, device=device).startswith(f"model.device: got {device}, need a device of this machine")


def test_adapters_on_modules_that_are_not_there(folder: Path) -> None:
    assert one_line(folder, lora={"targets": ["no_proj"]}).startswith("model.lora.targets: got ")


def test_an_adapter_folder_that_is_not_there(folder: Path, tmp_path: Path) -> None:
    assert one_line(folder, lora={"adapter": str(tmp_path / "absent")}).startswith("model.lora.adapter: got ")


def test_tokenizer_alone(folder: Path) -> None:
    tokenizer = load_tokenizer(str(folder), local_only=True)
    assert tokenizer.decode(tokenizer("2+2=").input_ids) == "2+2="


@pytest.mark.parametrize(
    ("dtype", "lora", "trainable", "stored"),
    [
        ("float32", None, True, torch.float32),
        ("float64", None, True, torch.float64),
        ("bfloat16", None, True, torch.float32),  # AdamW steps of 1e-6 vanish in bfloat16
        ("bfloat16", None, False, torch.float32),  # a frozen copy is what it is a copy of
        ("bfloat16", {"rank": 2}, True, torch.bfloat16),
    ],
)
def test_what_is_stored_in_which_precision(
    folder: Path, dtype: str, lora: dict[str, int] | None, trainable: bool, stored: torch.dtype
) -> None:
    lm = load_language_model(config(folder, dtype=dtype, lora=lora), trainable=trainable)
    assert lm.causal.get_output_embeddings().weight.dtype is stored
    assert lm.autocast is (torch.bfloat16 if dtype == "bfloat16" else None)
    learning = [parameter for parameter in lm.module.parameters() if parameter.requires_grad]
    assert bool(learning) is trainable
    assert {parameter.dtype for parameter in learning} <= {torch.float32, torch.float64}
    assert lm.module.training is trainable


def test_bfloat16_runs_the_products_in_bfloat16(folder: Path) -> None:
    lm = load_language_model(config(folder, dtype="bfloat16"))
    with lm.arithmetic():
        assert lm.module(input_ids=torch.tensor([[5, 6]])).logits.dtype is torch.bfloat16


def test_case_c35_every_end_id_counts() -> None:
    tokenizer = SimpleNamespace(eos_token_id=3)
    causal = SimpleNamespace(
        config=SimpleNamespace(eos_token_id=[3, 9]), generation_config=SimpleNamespace(eos_token_id=11)
    )
    assert end_tokens(causal, tokenizer) == {3, 9, 11}
    assert end_tokens(SimpleNamespace(config=SimpleNamespace()), SimpleNamespace(eos_token_id=None)) == frozenset()


def test_case_c35_end_ids_from_a_folder(folder: Path, tmp_path: Path) -> None:
    assert load_language_model(config(folder)).eos_ids == {1}
    module = save_tiny(tmp_path)
    (module / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 9]}))
    assert load_language_model(config(module)).eos_ids == {1, 9}


@pytest.mark.parametrize(
    ("settings", "limit"),
    [
        ({"max_position_embeddings": 64}, 64),
        ({"n_positions": 32}, 32),
        ({"max_position_embeddings": 64, "sliding_window": 16}, 16),  # Mistral
        ({"max_position_embeddings": 64, "sliding_window": 16, "use_sliding_window": False}, 64),  # Qwen2
        ({"max_position_embeddings": 64, "sliding_window": 16, "layer_types": ["full_attention"]}, 64),
        ({"max_position_embeddings": 64, "sliding_window": 16,
          "layer_types": ["full_attention", "sliding_attention"]}, 16),
        ({"max_position_embeddings": 8, "sliding_window": 16}, 8),
    ],
)  # fmt: skip
def test_how_long_a_sequence_may_be(settings: dict[str, object], limit: int) -> None:
    assert max_positions(SimpleNamespace(**settings)) == limit


def test_linear_attention_is_refused() -> None:
    with pytest.raises(SettingError, match="attention in every layer"):
        max_positions(SimpleNamespace(model_type="mamba", layer_types=["linear_attention"]))


def test_dropout_is_off_everywhere() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention_dropout = 0.1
            self.drop = nn.Dropout(0.3)

    module = nn.Sequential(Attention(), nn.Dropout(0.2)).train()
    disable_dropout(module)
    assert module[1].p == module[0].drop.p == module[0].attention_dropout == 0.0
    ones = torch.ones(1000)
    assert torch.equal(module[1](ones), ones)


def test_a_model_with_dropout_gives_the_same_logits_twice(tmp_path: Path) -> None:
    lm = load_language_model(config(save_tiny(tmp_path, attention_dropout=0.5)))
    ids = torch.arange(5, 25)[None]
    assert lm.module.training
    assert torch.equal(lm.module(input_ids=ids).logits, lm.module(input_ids=ids).logits)
