"""Models that give numbers: reward models and critics (a decoder with a score head), and a value head on a policy.

A score head is what transformers calls `...ForSequenceClassification`: K rows, one per attribute, read at one position.
"""

import contextlib
import copy
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from quatrain.batch import TrainBatch, build, split_by_tokens
from quatrain.config import ModelConfig
from quatrain.errors import SettingError
from quatrain.folders import adapter_base
from quatrain.models.forward import predicting_hidden, scalar_head
from quatrain.models.load import (
    DTYPES,
    LanguageModel,
    end_tokens,
    load_module,
    load_tokenizer,
    prepare,
    resolve_model,
    settled,
)
from quatrain.types import Sample

VALUE_HEAD = "value_head.safetensors"  # beside a policy's own weights, which stay as they are without one
_INFO = "quatrain_reward"  # our key in config.json


@dataclass(frozen=True, kw_only=True, slots=True)
class RewardInfo:
    """What the heads of a reward model mean: attribute, weight in the final score, and normalisation of each.

    Example: `RewardInfo(attributes=("helpful",), weights=(1.0,), mean=(0.3,), std=(2.0,))`
    """

    attributes: tuple[str, ...]
    weights: tuple[float, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        counts = {len(self.attributes), len(self.weights), len(self.mean), len(self.std)}
        if len(counts) > 1 or not self.attributes:
            raise ValueError(f"RewardInfo: got {asdict(self)}, need one weight, mean and std per attribute")
        numbers = [*self.weights, *self.mean, *self.std]
        if not all(np.isfinite(numbers)) or min(self.std) <= 0:
            raise ValueError(f"RewardInfo: got {asdict(self)}, need finite numbers and std above 0")

    @classmethod
    def plain(cls, attributes: Sequence[str]) -> "RewardInfo":
        """Weights 1 and no normalisation."""
        ones, zeros = (1.0,) * len(attributes), (0.0,) * len(attributes)
        return cls(attributes=tuple(attributes), weights=ones, mean=zeros, std=ones)


def final_scores(scores_NK: Tensor, info: RewardInfo) -> Tensor:
    """One number per text: sum_k w_k (s_k - mean_k) / std_k, in float64."""
    return normalised_scores(scores_NK, info) @ scores_NK.new_tensor(info.weights, dtype=torch.float64)


def normalised_scores(scores_NK: Tensor, info: RewardInfo) -> Tensor:
    """(s_k - mean_k) / std_k of every head, in float64."""
    mean_K, std_K = (scores_NK.new_tensor(values, dtype=torch.float64) for values in (info.mean, info.std))
    return (scores_NK.double() - mean_K) / std_K


def reward_info(lm: LanguageModel) -> RewardInfo:
    """What the model's config.json says of its heads; for a model of another library, its labels and no normalisation.

    Raises SettingError when what is stored there does not fit the head.
    """
    heads = len(lm.causal.score.weight)
    stored = getattr(lm.causal.config, _INFO, None)
    if stored is None:
        labels = lm.causal.config.id2label
        return RewardInfo.plain(["reward"] if heads == 1 else [str(labels[number]) for number in range(heads)])
    try:
        info = RewardInfo(**{name: tuple(values) for name, values in stored.items()})
    except (TypeError, ValueError, AttributeError) as error:
        raise SettingError(f"config.json {_INFO}", stored, "attributes, weights, mean and std", str(error)) from None
    if len(info.attributes) != heads:
        raise SettingError(f"config.json {_INFO}", info.attributes, f"one attribute for each of {heads} heads",
                           "the folder was changed after it was saved; save it anew")  # fmt: skip
    return info


def store_reward_info(lm: LanguageModel, info: RewardInfo) -> None:
    """Keep `info` in the model's configuration, which is saved with it."""
    names = dict(enumerate(info.attributes))
    lm.causal.config.id2label = names
    lm.causal.config.label2id = {name: number for number, name in names.items()}
    setattr(lm.causal.config, _INFO, {name: list(values) for name, values in asdict(info).items()})


def is_scalar_folder(path: str) -> bool:
    """Whether `path` is a folder with a model that has a score head."""
    file = Path(resolve_model(path)) / "config.json"
    names = json.loads(file.read_text(encoding="utf-8")).get("architectures") if file.is_file() else None
    return any(name.endswith("ForSequenceClassification") for name in names or [])


def load_scalar_model(
    config: ModelConfig, heads: Sequence[str] = (), *, fresh_head: bool, trainable: bool = True, seed: int = 0
) -> LanguageModel:
    """A model with one score head per name in `heads`, from a causal model or from one that has such heads.

    `fresh_head` draws every head anew (also where the folder has one): normal with standard deviation 1 / (hidden + 1)
    from `seed`, which makes the first scores about 0. Otherwise the heads are the folder's or the adapter's, and none
    is a SettingError; `heads` may then be left empty. Trained weights are float32 at least; a frozen model, or the base
    of adapters, is stored in `config.dtype`.
    """
    from transformers import AutoModelForSequenceClassification

    stored = _stored_beside_adapter(config.path)
    config = settled(config)
    dtype = DTYPES[config.dtype]
    trained = trainable and config.lora is None
    adapter = config.lora.adapter if config.lora is not None else None
    options: dict[str, Any] = {"num_labels": len(heads)} if heads and (fresh_head or adapter) else {}
    if fresh_head:
        options["ignore_mismatched_sizes"] = True
    elif stored:
        options["num_labels"] = len(stored["id2label"])
    with _quiet():
        module, found = load_module(
            AutoModelForSequenceClassification, config,
            torch.promote_types(dtype, torch.float32) if trained else dtype, **options,
        )  # fmt: skip
    if stored:
        module.config.update({name: stored[name] for name in (_INFO, "id2label", "label2id") if name in stored})
    _check_weights(module, found, config.path, headless=fresh_head or _adapter_has_head(adapter))
    if config.lora is not None:
        module.score.to(torch.promote_types(dtype, torch.float32))  # trained and saved with the adapter
    tokenizer = load_tokenizer(config.path)
    _set_padding(module, tokenizer)
    lm = prepare(module, tokenizer, config, trainable)
    if fresh_head:
        _draw_head(lm, seed)
        store_reward_info(lm, RewardInfo.plain(heads))
    elif heads and reward_info(lm).attributes != tuple(heads):
        raise SettingError("model.path", config.path, f"heads for {', '.join(heads)}",
                           f"it has {', '.join(reward_info(lm).attributes)}")  # fmt: skip
    return lm


def _stored_beside_adapter(path: str) -> dict[str, Any]:
    """What config.json says of the heads in a folder of adapters with a head of their own; nothing for other models."""
    folder = resolve_model(path)
    file = Path(folder) / "config.json"
    if adapter_base(folder) is None or not file.is_file():
        return {}
    stored: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return stored


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the library's table of weights that were not found: they are expected, or an error of ours."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _check_weights(module: Any, found: dict[str, Any], path: str, headless: bool) -> None:
    if not isinstance(getattr(module, "score", None), nn.Linear):
        raise SettingError("model.path", path, "a decoder with a linear score head",
                           f"{type(module).__name__} has none; take another model")  # fmt: skip
    wrong = {*found["missing_keys"], *(key[0] for key in found["mismatched_keys"])}
    body = sorted(name for name in wrong if not name.startswith("score."))
    if body:
        raise SettingError("model.path", path, "all weights of the model", f"missing: {', '.join(body[:3])}")
    if wrong and not headless:
        raise SettingError("model.path", path, "a model with a trained score head",
                           "there is none in it; give a folder that a reward model was saved to")  # fmt: skip


def _adapter_has_head(adapter: str | None) -> bool:
    if adapter is None:
        return False
    from peft import load_peft_weights

    try:
        return any(".score." in name for name in load_peft_weights(adapter, device="cpu"))
    except (OSError, ValueError) as error:
        raise SettingError("model.lora.adapter", adapter, "a saved adapter", str(error).splitlines()[0]) from None


def _set_padding(module: Any, tokenizer: Any) -> None:
    """A padding token that ends no text: transformers reads the score at the last token that is not padding."""
    taken = {*end_tokens(module, tokenizer), tokenizer.bos_token_id}
    special = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    known = [tokenizer.pad_token, *(name for name in special if "pad" in name.lower()), tokenizer.unk_token]
    free = [name for name in known if name and tokenizer.convert_tokens_to_ids(name) not in taken]
    tokenizer.add_special_tokens({"pad_token": free[0] if free else "<|pad|>"})
    if len(tokenizer) > len(module.get_input_embeddings().weight):
        module.resize_token_embeddings(len(tokenizer), mean_resizing=False)
        with torch.no_grad():
            module.get_input_embeddings().weight[tokenizer.pad_token_id] = 0
    module.config.get_text_config().pad_token_id = module.config.pad_token_id = tokenizer.pad_token_id


def _draw_head(lm: LanguageModel, seed: int) -> None:
    heads, hidden = lm.causal.score.weight.shape
    weight = torch.randn(heads, hidden, generator=torch.Generator().manual_seed(seed)) / (hidden + 1)
    with torch.no_grad():
        for parameter in lm.causal.score.parameters():  # of adapters, the trained copy and the base's
            parameter.copy_(weight if parameter.ndim == 2 else torch.zeros(heads))


def save_scalar_model(lm: LanguageModel, folder: Path) -> None:
    """A folder that `AutoModelForSequenceClassification.from_pretrained` reads; adapters are merged in float32."""
    module = lm.module
    if getattr(lm.causal, "quantised_base", None) is not None:
        raise ValueError("save_scalar_model: got a base in 4 bits, need a run's folder; export it with --merge")
    if hasattr(module, "peft_config"):
        module = copy.deepcopy(module)
        module = module.to(torch.promote_types(lm.causal.dtype, torch.float32)).merge_and_unload()
    module.save_pretrained(folder)
    lm.tokenizer.save_pretrained(folder)


def token_values(lm: LanguageModel, batch: TrainBatch) -> Tensor:
    """values_NK of the score head or the value head, with gradient, in float32 at least.

    Read at `batch.logit_index_N`, the position that predicts token t: V_t, of the state before t. A text is scored at
    its last token by asking for one more trained token behind it (any id), which nothing that is read can see.
    """
    return scalar_head(lm, predicting_hidden(lm, batch))


def attribute_scores(lm: LanguageModel, token_ids: Sequence[Sequence[int]], tokens_per_batch: int = 1 << 14) -> Tensor:
    """What each head says at the last token of each text, scores_NK in float64 on the CPU, without gradient.

    Texts are read in batches of at most `tokens_per_batch` positions, sorted by length. Raises ValueError for a text
    of no tokens or of `lm.max_positions` or more.
    """
    samples = [_sample(ids, number, lm.max_positions) for number, ids in enumerate(token_ids)]
    scores_NK = torch.zeros(len(samples), len(lm.causal.score.weight), dtype=torch.float64)
    with lm.inference():
        for micro in split_by_tokens(samples, tokens_per_batch, "padded"):
            rows = torch.tensor([sample.completion for sample in micro])
            scores_NK[rows] = token_values(lm, build(micro, "padded")).double().cpu()
    return scores_NK


def score_ids(lm: LanguageModel, token_ids: Sequence[Sequence[int]], tokens_per_batch: int = 1 << 14) -> Tensor:
    """The final score of each text: `final_scores` of `attribute_scores`."""
    return final_scores(attribute_scores(lm, token_ids, tokens_per_batch), reward_info(lm))


def _sample(ids: Sequence[int], number: int, max_positions: int) -> Sample:
    if not 0 < len(ids) < max_positions:
        raise ValueError(f"text {number}: got {len(ids)} tokens, need 1 to {max_positions - 1}")
    return Sample(token_ids=np.array([*ids, 0]), trained=np.array([False] * len(ids) + [True]), group=number,
                  completion=number, prompt_length=len(ids))  # fmt: skip


def add_value_head(lm: LanguageModel) -> None:
    """Give a policy a linear value head on its own backbone: V = w h + b, float32 at least, 0 before training.

    It is a trainable submodule `value_head`, also beside adapters. Nothing is changed where there is one already.
    """
    causal = lm.causal
    if not hasattr(causal, "value_head"):
        hidden = causal.config.get_text_config().hidden_size
        dtype = torch.promote_types(causal.dtype, torch.float32)
        causal.value_head = nn.Linear(hidden, 1, device=lm.device, dtype=dtype)
        with torch.no_grad():
            for parameter in causal.value_head.parameters():
                parameter.zero_()


def value_head_weights(lm: LanguageModel) -> dict[str, Tensor]:
    """The weights of a policy's value head by name (`value_head.weight`); none where it has none."""
    layer = getattr(lm.causal, "value_head", None)
    return {} if layer is None else {f"value_head.{name}": weight.data for name, weight in layer.named_parameters()}
