"""Models that give numbers: read at the right position, saved with what they need, and a value head on a policy."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from tokenizers import Tokenizer, models
from torch import Tensor
from torch.testing import assert_close
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedTokenizerFast,
)

from quatrain.batch import Builder, build
from quatrain.config import ModelConfig
from quatrain.errors import ResumeError, SettingError
from quatrain.models.forward import token_outputs
from quatrain.models.load import LanguageModel, load_language_model
from quatrain.models.scalar import (
    RewardInfo,
    add_value_head,
    attribute_scores,
    final_scores,
    is_scalar_folder,
    load_scalar_model,
    reward_info,
    save_scalar_model,
    score_ids,
    store_reward_info,
    token_values,
)
from quatrain.train.checkpoint import load_weights, save_weights
from quatrain.types import Sample
from tests.tiny import save_tiny, tiny_tokenizer

TEXTS = [[5, 6, 7, 8, 1], [9, 10, 1], [11]]  # 0 is <pad>, 1 is <eos>
SHAPE = {"vocab_size": 46, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 64,
         "initializer_range": 0.2}  # fmt: skip
GPT2_SHAPE = {"vocab_size": 46, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "initializer_range": 0.2}
FAMILIES: dict[str, tuple[Any, dict[str, Any]]] = {
    "llama": (transformers.LlamaConfig, SHAPE),
    "qwen2": (transformers.Qwen2Config, SHAPE),
    "qwen3": (transformers.Qwen3Config, {**SHAPE, "head_dim": 8}),
    "mistral": (transformers.MistralConfig, {**SHAPE, "sliding_window": None, "num_key_value_heads": 2}),
    "gemma": (transformers.GemmaConfig, {**SHAPE, "head_dim": 8, "num_key_value_heads": 1}),
    "phi3": (transformers.Phi3Config, SHAPE),
    "gpt2": (transformers.GPT2Config, GPT2_SHAPE),
    "gpt_neox": (transformers.GPTNeoXConfig, SHAPE),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A causal model."""
    return save_tiny(tmp_path_factory.mktemp("scalar") / "tiny", tie_word_embeddings=True)


def config(path: Path | str, **changes: Any) -> ModelConfig:
    return ModelConfig.model_validate({"path": str(path), "device": "cpu", **changes})


def fresh(path: Path, *heads: str, seed: int = 0, **changes: Any) -> LanguageModel:
    return load_scalar_model(config(path, **changes), heads or ("reward",), fresh_head=True, seed=seed)


def saved(path: Path | str, **changes: Any) -> LanguageModel:
    return load_scalar_model(config(path, **changes), fresh_head=False)


def sample(ids: list[int], trained: int, group: int = 0, completion: int = 0) -> Sample:
    """`ids` of which the last `trained` are trained."""
    cut = len(ids) - trained
    return Sample(token_ids=ids, trained=[False] * cut + [True] * trained, group=group,  # type: ignore[arg-type]
                  completion=completion, prompt_length=cut)  # fmt: skip


def scored(ids: list[list[int]]) -> list[Sample]:
    """As a reward model's data asks for scores: one trained token behind each text."""
    return [sample([*row, 0], 1, group=number, completion=number) for number, row in enumerate(ids)]


# --- where it is read -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_case_c91_one_score_alone_in_a_batch_and_padded_on_either_side(family: str, tmp_path: Path) -> None:
    kind, shape = FAMILIES[family]
    torch.manual_seed(0)
    settings = kind(**shape, eos_token_id=1, bos_token_id=None, pad_token_id=0)
    AutoModelForCausalLM.from_config(settings).save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    lm = fresh(tmp_path, "helpful", "brief")
    ours = attribute_scores(lm, TEXTS).float()
    with torch.no_grad():
        alone = torch.cat([lm.module(input_ids=torch.tensor([ids])).logits for ids in TEXTS])
        assert_close(ours, alone, atol=1e-5, rtol=0)
        for left in (True, False):
            rows = [[0] * (5 - len(ids)) + ids if left else ids + [0] * (5 - len(ids)) for ids in TEXTS]
            mask = torch.tensor(rows) != 0
            positions = (mask.cumsum(-1) - 1).clamp(min=0)
            batch = lm.module(input_ids=torch.tensor(rows), attention_mask=mask.long(), position_ids=positions).logits
            assert_close(ours, batch, atol=1e-5, rtol=0)
    assert ours.unique().numel() == 6


@pytest.mark.parametrize("builder", ["padded", "packed", "shared"])
def test_case_c91_one_score_in_every_layout(folder: Path, builder: Builder) -> None:
    lm = fresh(folder)
    alone = torch.cat([token_values(lm, build(scored([ids]))) for ids in TEXTS])
    assert_close(token_values(lm, build(scored(TEXTS), builder)), alone, atol=1e-5, rtol=0)


def test_case_c91_padding_is_a_token_that_ends_no_text(tmp_path: Path) -> None:
    """Where the tokenizer has none, or pads with the end token, transformers would read one token too early."""
    settings = {
        "<pad>": {"pad_token": "<pad>"},  # its own
        "<unused_pad>": {"extra_special_tokens": ["<unused_pad>"]},
        "<unk>": {"pad_token": "<eos>", "unk_token": "<unk>"},
        "<|pad|>": {"pad_token": "<eos>"},  # a new token
    }
    for chosen, special in settings.items():
        path = save_tiny(tmp_path / chosen, pad_token_id=None)
        words = [chosen.replace("<|pad|>", "d"), "<eos>", *map(str, range(44))]
        core = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
        PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<eos>", **special).save_pretrained(path)
        lm = fresh(path)
        pad = lm.causal.config.pad_token_id
        assert lm.tokenizer.pad_token == chosen
        assert pad == lm.tokenizer.pad_token_id == (46 if chosen == "<|pad|>" else 0)
        rows = torch.tensor([ids + [pad] * (5 - len(ids)) for ids in TEXTS])
        with torch.no_grad():
            batch = lm.module(input_ids=rows, attention_mask=(rows != pad).long()).logits
        assert_close(attribute_scores(lm, TEXTS).float(), batch, atol=1e-5, rtol=0)
        save_scalar_model(lm, path / "saved")
        assert_close(attribute_scores(saved(path / "saved"), TEXTS), attribute_scores(lm, TEXTS), atol=1e-6, rtol=0)


def test_case_c96_each_row_is_read_at_its_own_end(folder: Path) -> None:
    lm = fresh(folder)
    short, long = [9, 10, 1], [5, 6, 7, 8, 1]
    alone = [float(attribute_scores(lm, [ids])) for ids in (short, long)]
    assert attribute_scores(lm, [short, long])[:, 0].tolist() == pytest.approx(alone, abs=1e-5)
    assert attribute_scores(lm, [long, short])[:, 0].tolist() == pytest.approx(alone[::-1], abs=1e-5)
    cut = [float(attribute_scores(lm, [ids[:-1]])) for ids in (short, long)]
    assert min(abs(one - other) for one, other in zip(alone, cut, strict=True)) > 1e-3


def test_a_value_is_read_before_its_token(folder: Path) -> None:
    """Of the ids 5 6 7 8 the last two are trained: V is read at 6, then at 7, whatever stands at the end."""
    lm = fresh(folder)
    with torch.no_grad():
        prefixes = [lm.module(input_ids=torch.tensor([ids])).logits[0] for ids in ([5, 6], [5, 6, 7])]
        for last in (8, 30):
            values = token_values(lm, build([sample([5, 6, 7, last], 2)]))
            assert_close(values, torch.stack(prefixes), atol=1e-5, rtol=0)


def test_scores_do_not_depend_on_batches_or_order(folder: Path) -> None:
    lm = fresh(folder, "a", "b")
    whole = attribute_scores(lm, TEXTS)
    assert whole.dtype is torch.float64
    assert whole.shape == (3, 2)
    assert_close(attribute_scores(lm, TEXTS, tokens_per_batch=1), whole, atol=1e-6, rtol=0)
    assert_close(attribute_scores(lm, TEXTS[::-1]), whole.flip(0), atol=1e-6, rtol=0)
    assert torch.equal(attribute_scores(lm, TEXTS), whole)
    assert attribute_scores(lm, []).shape == (0, 2)
    assert lm.module.training


@pytest.mark.parametrize("count", [0, 64])
def test_a_text_has_room_for_its_score(folder: Path, count: int) -> None:
    lm = fresh(folder)
    assert attribute_scores(lm, [[5] * 63]).isfinite().all()
    with pytest.raises(ValueError, match=f"text 0: got {count} tokens, need 1 to 63"):
        attribute_scores(lm, [[5] * count])


def test_gradient_reaches_the_backbone(folder: Path) -> None:
    lm = fresh(folder)
    token_values(lm, build(scored(TEXTS))).sum().backward()
    norms = {name: float(weight.grad.norm()) for name, weight in lm.module.named_parameters()}
    assert all(norm > 0 for norm in norms.values()), norms
    assert "score.weight" in norms


# --- head, precision, adapters ----------------------------------------------------------------------------------------


def test_a_fresh_head_is_small_seeded_and_nothing_else_changes(folder: Path) -> None:
    lm = fresh(folder, *"abcdefgh")
    weight = lm.causal.score.weight
    assert weight.shape == (8, 32)
    assert float(weight.detach().std()) == pytest.approx(1 / 33, rel=0.15)
    assert attribute_scores(lm, TEXTS).abs().max() < 1
    torch.manual_seed(5)
    assert torch.equal(fresh(folder, *"abcdefgh").causal.score.weight, weight)
    assert not torch.equal(fresh(folder, *"abcdefgh", seed=1).causal.score.weight, weight)
    policy = load_language_model(config(folder)).module.get_decoder().state_dict()
    assert all(torch.equal(policy[name], value) for name, value in lm.causal.get_decoder().state_dict().items())


def test_a_critic_starts_from_a_reward_model_with_a_head_of_its_own(folder: Path, tmp_path: Path) -> None:
    reward = fresh(folder, "helpful", "brief", seed=3)
    save_scalar_model(reward, tmp_path)
    critic = fresh(tmp_path, "value", seed=4)
    assert critic.causal.score.weight.shape == (1, 32)
    assert reward_info(critic) == RewardInfo.plain(["value"])
    assert torch.equal(critic.causal.score.weight, fresh(folder, "value", seed=4).causal.score.weight)


def test_case_c93_a_saved_model_gives_the_same_scores_and_a_missing_head_is_an_error(
    folder: Path, tmp_path: Path
) -> None:
    lm = fresh(folder, "helpful", "brief")
    save_scalar_model(lm, tmp_path / "reward")
    expected = attribute_scores(lm, TEXTS)
    assert_close(attribute_scores(saved(tmp_path / "reward"), TEXTS), expected, atol=1e-6, rtol=0)
    plain = AutoModelForSequenceClassification.from_pretrained(tmp_path / "reward").eval()
    with torch.no_grad():
        logits = torch.cat([plain(input_ids=torch.tensor([ids])).logits for ids in TEXTS])
    assert_close(logits.double(), expected, atol=1e-6, rtol=0)
    assert AutoTokenizer.from_pretrained(tmp_path / "reward").pad_token == "<pad>"
    assert plain.config.pad_token_id == 0
    assert is_scalar_folder(str(tmp_path / "reward"))
    assert not is_scalar_folder(str(folder))
    with pytest.raises(SettingError, match="need a model with a trained score head") as caught:
        saved(folder)
    assert caught.value.setting == "model.path"


def test_case_c93_a_missing_head_beside_an_adapter_is_an_error(folder: Path, tmp_path: Path) -> None:
    save_weights(load_language_model(config(folder, lora={"rank": 2})), tmp_path)
    with pytest.raises(SettingError, match="need a model with a trained score head"):
        saved(folder, lora={"adapter": str(tmp_path)})
    assert attribute_scores(fresh(folder, "a", lora={"adapter": str(tmp_path)}), TEXTS).shape == (3, 1)


def test_missing_weights_of_the_body_are_an_error(tmp_path: Path) -> None:
    save_tiny(tmp_path, num_hidden_layers=1)
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**settings, "num_hidden_layers": 2, "layer_types": None}))
    with pytest.raises(SettingError, match=r"need all weights of the model; missing: model\.layers\.1"):
        fresh(tmp_path)


def test_heads_of_another_model_are_an_error(folder: Path, tmp_path: Path) -> None:
    save_scalar_model(fresh(folder, "helpful", "brief"), tmp_path)
    assert reward_info(load_scalar_model(config(tmp_path), ["helpful", "brief"], fresh_head=False)).weights == (1, 1)
    with pytest.raises(SettingError, match="need heads for honest; it has helpful, brief"):
        load_scalar_model(config(tmp_path), ["honest"], fresh_head=False)


def test_an_encoder_is_refused(tmp_path: Path) -> None:
    shape = {"vocab_size": 46, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    transformers.BertForSequenceClassification(transformers.BertConfig(**shape, intermediate_size=16)).save_pretrained(
        tmp_path
    )
    tiny_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(SettingError, match="need a decoder with a linear score head"):
        saved(tmp_path)


def test_precision(folder: Path, tmp_path: Path) -> None:
    """Trained weights float32 at least; a frozen model as asked; the head's output float32 at least."""
    save_scalar_model(fresh(folder), tmp_path)
    trained = fresh(folder, dtype="bfloat16")
    assert {weight.dtype for weight in trained.module.parameters()} == {torch.float32}
    frozen = load_scalar_model(config(tmp_path, dtype="bfloat16"), fresh_head=False, trainable=False)
    assert {weight.dtype for weight in frozen.module.parameters()} == {torch.bfloat16}
    assert not any(weight.requires_grad for weight in frozen.module.parameters())
    exact = attribute_scores(saved(tmp_path), TEXTS)
    for lm in (trained, frozen):
        assert token_values(lm, build(scored(TEXTS))).dtype is torch.float32
        assert_close(attribute_scores(lm, TEXTS), exact, atol=0.02, rtol=0)
    double = fresh(folder, dtype="float64")
    assert token_values(double, build(scored(TEXTS))).dtype is torch.float64


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_adapters_train_the_head_and_are_saved_with_it(folder: Path, tmp_path: Path, dtype: str) -> None:
    lm = fresh(folder, "helpful", "brief", lora={"rank": 2}, dtype=dtype)
    trainable = {name for name, weight in lm.module.named_parameters() if weight.requires_grad}
    assert any("lora_A" in name for name in trainable)
    assert [name for name in trainable if "score" in name] == ["base_model.model.score.modules_to_save.default.weight"]
    torch.manual_seed(0)
    for name, weight in lm.module.named_parameters():
        if name in trainable:
            assert weight.dtype is torch.float32
            weight.data += 0.1 * torch.randn_like(weight)
    expected = attribute_scores(lm, TEXTS)
    assert not torch.allclose(expected, attribute_scores(fresh(folder, "helpful", "brief"), TEXTS), atol=1e-2)
    save_weights(lm, tmp_path / "adapter")
    again = fresh(folder, "helpful", "brief", seed=9, lora={"rank": 2}, dtype=dtype)
    load_weights(again, tmp_path / "adapter")
    assert torch.equal(attribute_scores(again, TEXTS), expected)
    other = load_scalar_model(
        config(folder, lora={"adapter": str(tmp_path / "adapter")}, dtype=dtype), ["LABEL_0", "LABEL_1"],
        fresh_head=False,
    )  # fmt: skip
    assert torch.equal(attribute_scores(other, TEXTS), expected)
    save_scalar_model(lm, tmp_path / "merged")
    tolerance = 1e-5 if dtype == "float32" else 0.1
    assert_close(attribute_scores(saved(tmp_path / "merged"), TEXTS), expected, atol=tolerance, rtol=0)
    assert torch.equal(attribute_scores(lm, TEXTS), expected)


def test_gradient_reaches_the_adapters(folder: Path) -> None:
    lm = fresh(folder, lora={"rank": 2}, gradient_checkpointing=True)
    token_values(lm, build(scored(TEXTS))).sum().backward()
    moved = {name for name, weight in lm.module.named_parameters() if weight.grad is not None and weight.grad.any()}
    assert any("lora_B" in name for name in moved)
    assert any("score" in name for name in moved)


# --- what the heads mean ----------------------------------------------------------------------------------------------


def test_the_final_score_by_hand() -> None:
    """2 (4 - 2) / 4 - (1.5 - 0.5) / 1 = 0; 2 (-2 - 2) / 4 - (2.5 - 0.5) / 1 = -4."""
    info = RewardInfo(attributes=("a", "b"), weights=(2.0, -1.0), mean=(2.0, 0.5), std=(4.0, 1.0))
    assert final_scores(torch.tensor([[4.0, 1.5], [-2.0, 2.5]]), info).tolist() == [0.0, -4.0]


def test_weights_and_normalisation_are_saved_with_the_model(folder: Path, tmp_path: Path) -> None:
    lm = fresh(folder, "helpful", "brief")
    info = RewardInfo(attributes=("helpful", "brief"), weights=(1.0, 0.25), mean=(0.1, 1 / 3), std=(2.0, 1e-3))
    store_reward_info(lm, info)
    save_scalar_model(lm, tmp_path)
    again = saved(tmp_path)
    assert reward_info(again) == info
    assert_close(score_ids(again, TEXTS), final_scores(attribute_scores(lm, TEXTS), info), atol=1e-4, rtol=1e-6)
    stored = json.loads((tmp_path / "config.json").read_text())
    assert stored["quatrain_reward"]["std"] == [2.0, 1e-3]
    assert stored["id2label"] == {"0": "helpful", "1": "brief"}


@pytest.mark.parametrize(
    ("change", "words"),
    [({"std": [1.0, 0.0]}, "std above 0"), ({"mean": [0.0]}, "one weight, mean and std per attribute"),
     ({"weights": [float("nan"), 1.0]}, "finite"), ({"more": []}, "more")],
)  # fmt: skip
def test_constants_that_do_not_fit_are_an_error(folder: Path, change: dict[str, Any], words: str) -> None:
    lm = fresh(folder, "helpful", "brief")
    lm.causal.config.quatrain_reward = {**lm.causal.config.quatrain_reward, **change}
    with pytest.raises(SettingError, match=words):
        reward_info(lm)


def test_a_model_of_another_library_has_its_labels(folder: Path) -> None:
    one, two = fresh(folder), fresh(folder, "helpful", "brief")
    for lm in (one, two):
        del lm.causal.config.quatrain_reward
    assert reward_info(one) == RewardInfo.plain(["reward"])
    assert reward_info(two) == RewardInfo.plain(["helpful", "brief"])


# --- a value head on the policy ---------------------------------------------------------------------------------------


def policy_with_head(folder: Path, **changes: Any) -> LanguageModel:
    lm = load_language_model(config(folder, **changes))
    add_value_head(lm)
    return lm


def head_values(lm: LanguageModel) -> Tensor:
    return token_values(lm, build([sample([5, 6, 7, 8], 2)]))


@pytest.mark.parametrize("changes", [{}, {"lora": {"rank": 2}}, {"dtype": "bfloat16"}, {"dtype": "float64"}])
def test_a_value_head_reads_the_policys_states(folder: Path, changes: dict[str, Any]) -> None:
    lm = policy_with_head(folder, **changes)
    add_value_head(lm)  # again changes nothing
    assert head_values(lm).tolist() == [[0.0], [0.0]]
    head = lm.causal.value_head
    assert len([name for name, weight in lm.module.named_parameters() if "value_head" in name]) == 2
    head.weight.data.fill_(0.5)
    head.bias.data.fill_(0.25)
    with torch.no_grad(), lm.arithmetic():
        hidden = lm.causal.get_decoder()(input_ids=torch.tensor([[5, 6, 7]])).last_hidden_state[0, 1:]
    expected = 0.5 * hidden.to(head.weight.dtype).sum(-1, keepdim=True) + 0.25
    assert_close(head_values(lm), expected, atol=1e-4, rtol=0)
    assert head_values(lm).dtype is (torch.float64 if changes == {"dtype": "float64"} else torch.float32)
    head_values(lm).sum().backward()
    assert head.bias.grad.tolist() == [2.0]
    assert sum(weight.grad is not None for weight in lm.module.parameters()) > 4
    if not changes:
        outputs = token_outputs(lm, build([sample([5, 6, 7, 8], 2)]), 1.0, values=True)
        assert_close(outputs.values_NK, head_values(lm))


@pytest.mark.parametrize("changes", [{}, {"lora": {"rank": 2}}])
def test_a_policy_with_a_value_head_is_saved_as_a_policy_and_a_head(
    folder: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    lm = policy_with_head(folder, **changes)
    torch.manual_seed(0)
    lm.causal.value_head.weight.data.normal_()
    save_weights(lm, tmp_path)
    assert sorted(load_file(tmp_path / "value_head.safetensors")) == ["value_head.bias", "value_head.weight"]
    again = policy_with_head(folder, **changes)
    load_weights(again, tmp_path)
    assert torch.equal(head_values(again), head_values(lm))
    without = load_language_model(config(folder, **changes))
    load_weights(without, tmp_path)  # an evaluation has no use for the head
    if not changes:
        _, found = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
        assert not any(found[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
        assert load_language_model(config(tmp_path)).path == str(tmp_path)


def test_a_value_head_that_was_not_saved_is_an_error(folder: Path, tmp_path: Path) -> None:
    save_weights(load_language_model(config(folder)), tmp_path)
    assert not (tmp_path / "value_head.safetensors").exists()
    with pytest.raises((ResumeError, FileNotFoundError)):
        load_weights(policy_with_head(folder), tmp_path)
