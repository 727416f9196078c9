"""Parameters, cache widths and adapters against transformers and PEFT on the meta device, and published counts."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

from quatrain.errors import SettingError
from quatrain.planner.architecture import FAMILIES, load_architecture, read_architecture
from quatrain.planner.known_models import configs
from quatrain.planner.models import cached_config, find_model

PUBLISHED = {  # parameters that the models' own pages state
    "Llama-3.1-8B": 8_030_261_248, "Llama-2-7B": 6_738_415_616, "Llama-3.2-1B": 1_235_814_400,
    "Mistral-7B": 7_241_732_096, "Qwen2.5-7B": 7_615_616_512, "Qwen3-0.6B": 596_049_920, "Qwen3-4B": 4_022_468_096,
    "gemma-2-9b": 9_241_705_984, "phi-2": 2_779_683_840, "Phi-3-mini-4k": 3_821_079_552, "gpt2": 124_439_808,
    "Mixtral-8x7B": 46_702_792_704, "Qwen3-30B-A3B": 30_532_122_624, "DeepSeek-V3": 671_026_404_352,
    "SmolLM2-135M": 134_515_008, "pythia-1.4b": 1_414_647_808,
}  # fmt: skip


def meta_model(family: str, **changes: Any) -> tuple[Any, dict[str, Any]]:
    """The family's default model cut to three blocks, on the meta device, and its config."""
    config = AutoConfig.for_model(family)
    for name in ("num_hidden_layers", "n_layer"):
        if hasattr(config, name):
            setattr(config, name, 3)
    for name in ("layer_types", "mlp_layer_types"):
        if getattr(config, name, None):
            setattr(config, name, getattr(config, name)[:3])
    if hasattr(config, "first_k_dense_replace"):
        config.first_k_dense_replace = 1
    if getattr(config, "num_experts_per_tok", 0) is None:
        config.num_experts_per_tok = 2
    for name, value in changes.items():
        setattr(config, name, value)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config), config.to_dict()


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_parameters_equal_those_of_transformers(family: str) -> None:
    model, config = meta_model(family)
    assert read_architecture(config).parameters == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "num_key_value_heads": 4}),
        ("qwen2_moe", {"decoder_sparse_step": 2, "qkv_bias": False}),
        ("qwen3_moe", {"mlp_only_layers": [0]}),
        ("deepseek_v3", {"q_lora_rank": None}),
        ("glm4_moe", {"attention_bias": True, "use_qk_norm": True}),
        ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 1}),
        ("gpt_neox", {"attention_bias": False}),
    ],
)
def test_switches_of_a_family_change_the_count_as_in_transformers(family: str, changes: dict[str, Any]) -> None:
    model, config = meta_model(family, **changes)
    assert read_architecture(config).parameters == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(("name", "count"), PUBLISHED.items())
def test_known_models_have_their_published_count(name: str, count: int) -> None:
    assert read_architecture(configs()[name], name).parameters == count


def test_active_parameters_of_a_mixture() -> None:
    assert find_model("DeepSeek-V3")[0].active == 37_552_282_624
    dense = find_model("Llama-3.1-8B")[0]
    assert dense.active == dense.parameters


def test_cache_width() -> None:
    llama, deepseek = find_model("Llama-3.1-8B")[0], find_model("DeepSeek-V3")[0]
    assert llama.kv_width * llama.layers * 2 == 131_072  # 2 x 8 heads x 128 x 32 layers x 2 bytes
    assert deepseek.kv_width * deepseek.layers * 2 == 70_272  # (512 + 64) x 61 x 2: latent attention


@pytest.mark.parametrize(
    ("family", "targets"),
    [
        *((family, "all-linear") for family in sorted(FAMILIES)),
        ("llama", ["q_proj", "v_proj"]),
        ("qwen2", ["down_proj"]),
    ],
)
def test_adapters_count_as_in_peft(family: str, targets: str | list[str]) -> None:
    model, config = meta_model(family)
    adapted = get_peft_model(model, LoraConfig(r=8, target_modules=targets, task_type="CAUSAL_LM"))
    assert read_architecture(config).lora(8, targets) == sum(p.numel() for p in adapted.parameters() if p.requires_grad)


def test_what_a_word_means(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_model("meta-llama/Llama-3.1-8B-Instruct")[0].parameters == 8_030_261_248
    assert find_model("7B")[0].name == "Llama-2-7B"
    assert find_model("qwen2 7B")[0].family == "qwen2"
    assert find_model("30B-A3B")[0].name == "Qwen3-30B-A3B"
    (tmp_path / "config.json").write_text(json.dumps(configs()["Qwen3-0.6B"]), encoding="utf-8")
    assert find_model(str(tmp_path))[0].parameters == find_model(str(tmp_path / "config.json"))[0].parameters
    snapshot = tmp_path / "hub" / "models--me--mine" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps(configs()["gpt2"]), encoding="utf-8")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    assert find_model("me/mine")[0].parameters == 124_439_808
    assert cached_config("../..") is None


def test_the_folder_of_a_run_means_what_it_trained(tmp_path: Path) -> None:
    run, base = tmp_path / "run", tmp_path / "base"
    (run / "checkpoints").mkdir(parents=True)
    (run / "recipe.yaml").touch()
    with pytest.raises(SettingError, match="need a run with a checkpoint"):
        find_model(str(run))
    for step, part, file, content in (("step-000001", "policy", "config.json", configs()["gpt2"]),
                                      ("step-000002", "reward", "adapter_config.json",
                                       {"base_model_name_or_path": str(base)})):  # fmt: skip
        (run / "checkpoints" / step / part).mkdir(parents=True)
        (run / "checkpoints" / step / part / file).write_text(json.dumps(content), encoding="utf-8")
        base.mkdir(exist_ok=True)
        (base / "config.json").write_text(json.dumps(configs()["Qwen3-0.6B"]), encoding="utf-8")
        expected = "gpt2" if step == "step-000001" else "qwen3"
        assert find_model(str(run))[0].family == expected
    for torn in ('{"base', "[]", "{}"):
        (run / "checkpoints" / "step-000002" / "reward" / "adapter_config.json").write_text(torn, encoding="utf-8")
        with pytest.raises(
            SettingError, match=r"^model\.path: got .*, need a whole adapter_config\.json in it; it can"
        ):
            find_model(str(run))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ('{"model_type": "lama"}', "did you mean 'llama'"),
        ('{"model_type": "llama"}', "intermediate_size"),
        ("[]", "mapping"),
        ("{", "config.json"),
    ],
)
def test_a_config_that_cannot_be_used_is_one_line(tmp_path: Path, config: str, message: str) -> None:
    (tmp_path / "config.json").write_text(config, encoding="utf-8")
    with pytest.raises(SettingError, match=message):
        load_architecture(tmp_path)


def test_unknown_words_name_what_is_near() -> None:
    with pytest.raises(SettingError, match=r"did you mean 'Qwen2\.5-7B'"):
        find_model("Qwen/Qwen2.5-7BB")
    with pytest.raises(SettingError, match="a size near a known model's"):
        find_model("9000B")
    with pytest.raises(SettingError, match="names of linear layers"):
        find_model("gpt2")[0].lora(8, ["q_proj"])
