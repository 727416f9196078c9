"""Architectures from Hugging Face configs alone, one reader a family; importable without torch.

Covered: Llama (SmolLM and other derivatives), Mistral, Qwen 2 / 2.5 / 3, Gemma 1-3 (text), Phi 1-4, GPT-2, GPT-NeoX,
Falcon, and the mixtures of experts Mixtral, Qwen 2 / 3 MoE, GLM-4.5, DeepSeek V2 / V3. Counts equal those of
transformers' models (tests compare them on the meta device); heads for predicting several tokens are not part of these.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from quatrain.errors import SettingError, nearest
from quatrain.planner.weights import Architecture, Role, Weight

__all__ = ["FAMILIES", "Architecture", "Weight", "load_architecture", "read_architecture"]

Config = Mapping[str, Any]


class Reader:
    """A config with the spellings of its family's keys."""

    def __init__(self, config: Config, name: str, family: str) -> None:
        self.config, self.name, self.family = config, name, family

    def number(self, *keys: str, default: int | None = None) -> int:
        """The first of `keys` that is set."""
        for key in keys:
            if self.config.get(key) is not None:
                return int(self.config[key])
        if default is None:
            raise KeyError(keys[0])
        return default

    def flag(self, key: str, default: bool) -> bool:
        return bool(self.config.get(key, default))

    @property
    def hidden(self) -> int:
        return self.number("hidden_size", "n_embd")

    @property
    def layers(self) -> int:
        return self.number("num_hidden_layers", "n_layer")

    @property
    def heads(self) -> int:
        return self.number("num_attention_heads", "n_head")

    @property
    def kv_heads(self) -> int:
        if self.family == "falcon" and not self.flag("new_decoder_architecture", False):
            return 1 if self.flag("multi_query", True) else self.heads
        return self.number("num_key_value_heads", "num_kv_heads", default=self.heads)

    @property
    def head_dim(self) -> int:
        return self.number("head_dim", default=self.hidden // self.heads)

    def build(self, weights: list[Weight], *, ffn: int, gated: bool = True, kv_width: int | None = None,
              tied: bool = False, head_bias: bool = False, norm_bias: bool = False) -> Architecture:  # fmt: skip
        """Embedding, `weights` of the blocks, final norm and head."""
        vocabulary, hidden = self.number("vocab_size"), self.hidden
        tied = self.flag("tie_word_embeddings", tied)
        ends = [Weight("embedding", "embed_tokens", hidden, vocabulary), _norm("norm", hidden, 1, 0, norm_bias)]
        if not tied:
            ends.append(Weight("head", "lm_head", hidden, vocabulary, bias=head_bias))
        window = self.config.get("sliding_window")
        kinds = self.config.get("layer_types") or []
        windowed = bool(window) and self.flag("use_sliding_window", True) and "full_attention" not in kinds
        return Architecture(
            name=self.name, family=self.family, hidden=hidden, layers=self.layers, vocabulary=vocabulary,
            heads=self.heads, kv_heads=self.kv_heads, head_dim=self.head_dim, ffn=ffn, gated=gated,
            kv_width=2 * self.kv_heads * self.head_dim if kv_width is None else kv_width,
            positions=self.number("max_position_embeddings", "n_positions", default=1 << 30),
            window=int(window) if window and windowed else None, tied=tied, weights=(*ends, *weights),
        )  # fmt: skip


def _norm(name: str, width: int, count: int, blocks: int, bias: bool = False) -> Weight:
    """A norm's scale (and shift), `count` of them."""
    return Weight("norm", name, 1, width, count, count, bias, blocks)


def _linear(role: Role, name: str, d_in: int, d_out: int, layers: int, bias: bool = False) -> Weight:
    return Weight(role, name, d_in, d_out, layers, layers, bias, layers)


def _attention(c: Reader, *, qkv_bias: bool, out_bias: bool = False, qk_norm: bool = False,
               out: str = "o_proj") -> Iterator[Weight]:  # fmt: skip
    queries, keys = c.heads * c.head_dim, c.kv_heads * c.head_dim
    yield _linear("attention", "q_proj", c.hidden, queries, c.layers, qkv_bias)
    yield _linear("attention", "k_proj", c.hidden, keys, c.layers, qkv_bias)
    yield _linear("attention", "v_proj", c.hidden, keys, c.layers, qkv_bias)
    yield _linear("attention", out, queries, c.hidden, c.layers, out_bias)
    if qk_norm:
        yield _norm("q_norm", c.head_dim, c.layers, c.layers)
        yield _norm("k_norm", c.head_dim, c.layers, c.layers)


def _gated(c: Reader, ffn: int, layers: int, bias: bool = False, prefix: str = "") -> Iterator[Weight]:
    for name, d_in, d_out in (("gate_proj", c.hidden, ffn), ("up_proj", c.hidden, ffn), ("down_proj", ffn, c.hidden)):
        yield _linear("mlp", prefix + name, d_in, d_out, layers, bias)


def _experts(c: Reader, ffn: int, experts: int, chosen: int, layers: int) -> Iterator[Weight]:
    """Routed experts of `layers` blocks; transformers holds them as one fused tensor per block."""
    for name, d_in, d_out in (("gate_up_proj", c.hidden, 2 * ffn), ("down_proj", ffn, c.hidden)):
        yield Weight("expert", f"experts.{name}", d_in, d_out, layers * experts, layers * chosen, blocks=layers)
    yield Weight("router", "gate", c.hidden, experts, layers, layers, blocks=layers)


def _llama(c: Reader, *, qkv_bias: bool | None = None, qk_norm: bool = False, norms: int = 2,
           tied: bool = False) -> Architecture:  # fmt: skip
    ffn, bias = c.number("intermediate_size"), c.flag("attention_bias", False)
    attention = _attention(c, qkv_bias=bias if qkv_bias is None else qkv_bias,
                           out_bias=bias if qkv_bias is None else False, qk_norm=qk_norm)  # fmt: skip
    mlp = _gated(c, ffn, c.layers, c.flag("mlp_bias", False))
    return c.build([*attention, *mlp, _norm("layernorm", c.hidden, norms * c.layers, c.layers)], ffn=ffn, tied=tied)


def _phi(c: Reader) -> Architecture:
    ffn = c.number("intermediate_size", default=4 * c.hidden)
    weights = [
        *_attention(c, qkv_bias=True, out_bias=True, out="dense"),
        _linear("mlp", "fc1", c.hidden, ffn, c.layers, True),
        _linear("mlp", "fc2", ffn, c.hidden, c.layers, True),
        _norm("input_layernorm", c.hidden, c.layers, c.layers, True),
    ]
    return c.build(weights, ffn=ffn, gated=False, head_bias=True, norm_bias=True)


def _phi3(c: Reader) -> Architecture:
    ffn, queries, keys = c.number("intermediate_size"), c.heads * c.head_dim, c.kv_heads * c.head_dim
    weights = [
        _linear("attention", "qkv_proj", c.hidden, queries + 2 * keys, c.layers),
        _linear("attention", "o_proj", queries, c.hidden, c.layers),
        _linear("mlp", "gate_up_proj", c.hidden, 2 * ffn, c.layers),
        _linear("mlp", "down_proj", ffn, c.hidden, c.layers),
        _norm("layernorm", c.hidden, 2 * c.layers, c.layers),
    ]
    return c.build(weights, ffn=ffn)


def _gpt2(c: Reader) -> Architecture:
    ffn = c.number("n_inner", default=4 * c.hidden)
    weights = [
        Weight("embedding", "wpe", c.hidden, c.number("n_positions", "max_position_embeddings")),
        _linear("attention", "c_attn", c.hidden, 3 * c.hidden, c.layers, True),
        _linear("attention", "c_proj", c.hidden, c.hidden, c.layers, True),
        _linear("mlp", "c_fc", c.hidden, ffn, c.layers, True),
        _linear("mlp", "c_proj", ffn, c.hidden, c.layers, True),
        _norm("ln", c.hidden, 2 * c.layers, c.layers, True),
    ]
    return c.build(weights, ffn=ffn, gated=False, tied=True, norm_bias=True)


def _neox(c: Reader) -> Architecture:
    ffn, bias = c.number("intermediate_size"), c.flag("attention_bias", True)
    weights = [
        _linear("attention", "query_key_value", c.hidden, 3 * c.hidden, c.layers, bias),
        _linear("attention", "dense", c.hidden, c.hidden, c.layers, bias),
        _linear("mlp", "dense_h_to_4h", c.hidden, ffn, c.layers, True),
        _linear("mlp", "dense_4h_to_h", ffn, c.hidden, c.layers, True),
        _norm("layernorm", c.hidden, 2 * c.layers, c.layers, True),
    ]
    return c.build(weights, ffn=ffn, gated=False, norm_bias=True)


def _falcon(c: Reader) -> Architecture:
    """Attention and MLP beside each other; the newer form has a norm for each of them."""
    ffn, bias = c.number("ffn_hidden_size", "intermediate_size", default=4 * c.hidden), c.flag("bias", False)
    width = (c.heads + 2 * c.kv_heads) * c.head_dim
    two = c.flag("new_decoder_architecture", False) and c.number("num_ln_in_parallel_attn", default=2) == 2
    norms = 2 if two or not c.flag("parallel_attn", True) else 1
    weights = [
        _linear("attention", "query_key_value", c.hidden, width, c.layers, bias),
        _linear("attention", "dense", c.hidden, c.hidden, c.layers, bias),
        _linear("mlp", "dense_h_to_4h", c.hidden, ffn, c.layers, bias),
        _linear("mlp", "dense_4h_to_h", ffn, c.hidden, c.layers, bias),
        _norm("layernorm", c.hidden, norms * c.layers, c.layers, True),
    ]
    return c.build(weights, ffn=ffn, gated=False, tied=True, norm_bias=True)


def _mixtral(c: Reader) -> Architecture:
    ffn, chosen = c.number("intermediate_size"), c.number("num_experts_per_tok")
    experts = _experts(c, ffn, c.number("num_local_experts"), chosen, c.layers)
    weights = [*_attention(c, qkv_bias=False), *experts, _norm("layernorm", c.hidden, 2 * c.layers, c.layers)]
    return c.build(weights, ffn=chosen * ffn)


def _qwen_moe(c: Reader, *, shared: bool) -> Architecture:
    """Qwen 2 MoE (with a shared expert and biased q, k, v) and Qwen 3 MoE (with normalised q and k)."""
    step, dense_only = c.number("decoder_sparse_step", default=1), set(c.config.get("mlp_only_layers") or [])
    sparse = sum(layer not in dense_only and (layer + 1) % step == 0 for layer in range(c.layers))
    ffn, chosen = c.number("moe_intermediate_size"), c.number("num_experts_per_tok")
    weights = [
        *_attention(c, qkv_bias=c.flag("qkv_bias", True) if shared else c.flag("attention_bias", False),
                    out_bias=False if shared else c.flag("attention_bias", False), qk_norm=not shared),
        *_experts(c, ffn, c.number("num_experts", "num_local_experts"), chosen, sparse),
        _norm("layernorm", c.hidden, 2 * c.layers, c.layers),
    ]  # fmt: skip
    if dense := c.layers - sparse:
        weights += _gated(c, c.number("intermediate_size"), dense)
    width = chosen * ffn
    if shared:
        own = c.number("shared_expert_intermediate_size")
        weights += _gated(c, own, sparse, prefix="shared_expert.")
        weights.append(Weight("router", "shared_expert_gate", c.hidden, 1, sparse, sparse, blocks=sparse))
        width += own
    return c.build(weights, ffn=width)


def _glm_moe(c: Reader) -> Architecture:
    """GLM-4.5: plain attention, the first blocks dense, a shared expert beside the routed ones."""
    bias, dense = c.flag("attention_bias", False), min(c.number("first_k_dense_replace", default=1), c.layers)
    sparse, ffn, chosen = c.layers - dense, c.number("moe_intermediate_size"), c.number("num_experts_per_tok")
    shared = ffn * c.number("n_shared_experts", default=1)
    weights = [
        *_attention(c, qkv_bias=bias, qk_norm=c.flag("use_qk_norm", False)),
        *_experts(c, ffn, c.number("n_routed_experts", "num_local_experts"), chosen, sparse),
        *_gated(c, shared, sparse, prefix="shared_experts."),
        *_gated(c, c.number("intermediate_size"), dense),
        _norm("layernorm", c.hidden, 2 * c.layers, c.layers),
    ]
    return c.build([weight for weight in weights if weight.count], ffn=chosen * ffn + shared)


def _deepseek(c: Reader) -> Architecture:
    """Latent attention: per token and layer only the compressed keys and values and one rotary key are cached."""
    heads, latent, rope = c.heads, c.number("kv_lora_rank"), c.number("qk_rope_head_dim")
    nope, value, bias = c.number("qk_nope_head_dim"), c.number("v_head_dim"), c.flag("attention_bias", False)
    weights = [
        _linear("attention", "kv_a_proj_with_mqa", c.hidden, latent + rope, c.layers, bias),
        _norm("kv_a_layernorm", latent, c.layers, c.layers),
        _linear("attention", "kv_b_proj", latent, heads * (nope + value), c.layers),
        _linear("attention", "o_proj", heads * value, c.hidden, c.layers, bias),
        _norm("layernorm", c.hidden, 2 * c.layers, c.layers),
    ]
    if low := c.number("q_lora_rank", default=0):
        weights += [
            _linear("attention", "q_a_proj", c.hidden, low, c.layers, bias),
            _norm("q_a_layernorm", low, c.layers, c.layers),
            _linear("attention", "q_b_proj", low, heads * (nope + rope), c.layers),
        ]
    else:
        weights.append(_linear("attention", "q_proj", c.hidden, heads * (nope + rope), c.layers))
    dense = min(c.number("first_k_dense_replace", default=0), c.layers)
    sparse, ffn, chosen = c.layers - dense, c.number("moe_intermediate_size"), c.number("num_experts_per_tok")
    shared = ffn * c.number("n_shared_experts", default=0)
    weights += _experts(c, ffn, c.number("n_routed_experts", "num_local_experts"), chosen, sparse)
    weights += [*_gated(c, shared, sparse, prefix="shared_experts."), *_gated(c, c.number("intermediate_size"), dense)]
    return c.build([weight for weight in weights if weight.count], ffn=chosen * ffn + shared, kv_width=latent + rope)


FAMILIES: dict[str, Callable[[Reader], Architecture]] = {
    "llama": _llama,
    "mistral": _llama,
    "qwen2": lambda c: _llama(c, qkv_bias=True),
    "qwen3": lambda c: _llama(c, qk_norm=True),
    "gemma": lambda c: _llama(c, tied=True),
    "gemma2": lambda c: _llama(c, norms=4, tied=True),
    "gemma3_text": lambda c: _llama(c, norms=4, qk_norm=True, tied=True),
    "phi": _phi,
    "phi3": _phi3,
    "gpt2": _gpt2,
    "gpt_neox": _neox,
    "falcon": _falcon,
    "mixtral": _mixtral,
    "glm4_moe": _glm_moe,
    "qwen2_moe": lambda c: _qwen_moe(c, shared=True),
    "qwen3_moe": lambda c: _qwen_moe(c, shared=False),
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
}


def read_architecture(config: Config, name: str = "model") -> Architecture:
    """The architecture of a `config.json` as a mapping. Raises SettingError for a family that is not known."""
    text = config.get("text_config") or config
    family = str(text.get("model_type", config.get("model_type", "")))
    if family not in FAMILIES:
        raise SettingError("model.path", f"model_type {family!r}", f"one of {', '.join(sorted(FAMILIES))}",
                           nearest(family, FAMILIES))  # fmt: skip
    try:
        return FAMILIES[family](Reader(text, name, family))
    except (KeyError, TypeError, ZeroDivisionError) as error:
        raise SettingError("model.path", f"a config without a usable {error}", "a whole config.json",
                           "take the model's own file") from None  # fmt: skip


def load_architecture(path: Path) -> Architecture:
    """From a model folder or a `config.json`."""
    file = path / "config.json" if path.is_dir() else path
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SettingError("model.path", str(path), "a folder with config.json, or that file",
                           " ".join(str(error).split())[:200]) from None  # fmt: skip
    if not isinstance(data, dict):
        raise SettingError("model.path", str(path), "a config.json that holds a mapping", "take the model's own file")
    return read_architecture(data, path.parent.name if path.name == "config.json" else path.name)
