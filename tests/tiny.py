"""A model and tokenizer small enough that a whole run takes seconds: characters in, characters out."""

import string
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from quatrain.config import ModelConfig
from quatrain.models.load import LanguageModel, end_tokens, max_positions
from quatrain.models.scalar import RewardInfo, load_scalar_model, save_scalar_model, store_reward_info

CHARACTERS = string.ascii_lowercase + string.digits + " +=?:\n"
SPECIAL = ["<pad>", "<eos>", "<unk>"]
REWARD = RewardInfo(attributes=("helpful", "brief"), weights=(1.0, 0.5), mean=(0.25, -0.5), std=(2.0, 0.5))


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """One token per character, plus <pad>, <eos>, <unk>."""
    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *CHARACTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def tiny_llama(seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any) -> LlamaForCausalLM:
    """Two layers, grouped-query attention, random weights."""
    settings: dict[str, Any] = {
        "vocab_size": len(SPECIAL) + len(CHARACTERS), "hidden_size": 32, "intermediate_size": 64,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
        "eos_token_id": 1, "pad_token_id": 0, "bos_token_id": None, "initializer_range": 0.2,
    }  # fmt: skip
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(**{**settings, **changes})).to(dtype)


def tiny_lm(seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any) -> LanguageModel:
    """The two together, in memory."""
    module, tokenizer = tiny_llama(seed, dtype, **changes), tiny_tokenizer()
    return LanguageModel(
        module=module, tokenizer=tokenizer, path="tiny", device=torch.device("cpu"), autocast=None,
        eos_ids=end_tokens(module, tokenizer), max_positions=max_positions(module.config),
    )  # fmt: skip


def save_tiny(folder: Path, seed: int = 0, **changes: Any) -> Path:
    """A Hugging Face folder, as a user would give it."""
    tiny_llama(seed, **changes).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def tiny_reward_model(folder: Path, tokenizer: Any = None) -> Path:
    """A saved model with the heads and constants of REWARD, and scores far from 0."""
    save_tiny(folder / "base", vocab_size=64)
    (tokenizer or tiny_tokenizer()).save_pretrained(folder / "base")
    lm = load_scalar_model(ModelConfig(path=str(folder / "base"), device="cpu"), REWARD.attributes, fresh_head=True)
    lm.causal.score.weight.data *= 10
    store_reward_info(lm, REWARD)
    save_scalar_model(lm, folder)
    return folder


def direct_score(folder: Path, text: str) -> tuple[float, list[float]]:
    """Final score and normalised heads of a whole text, by transformers and REWARD alone."""
    ids = AutoTokenizer.from_pretrained(folder).encode(text, add_special_tokens=False)
    with torch.no_grad():
        raw = AutoModelForSequenceClassification.from_pretrained(folder).eval()(input_ids=torch.tensor([ids])).logits[0]
    heads = [(float(one) - mean) / std for one, mean, std in zip(raw, REWARD.mean, REWARD.std, strict=True)]
    return sum(weight * head for weight, head in zip(REWARD.weights, heads, strict=True)), heads
