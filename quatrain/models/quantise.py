"""QLoRA (Dettmers et al. 2023, arXiv:2305.14314): the frozen base of adapters in 4 bits, through bitsandbytes.

Linear layers but the head hold NF4 numbers, 64 to a scale, the scales quantised again. bitsandbytes packs and unpacks;
the product is ours: its layer may repack the weights for sampling on a CPU and then passes no gradient; and training
and sampling should multiply the same numbers. Weights are packed as rows of one block each: where a row is not whole
blocks, version 0.50 reads wrong scales on a CPU.
"""

import functools
import json
import logging
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from quatrain.config import ModelConfig
from quatrain.errors import SettingError
from quatrain.folders import adapter_base

NOTE = "quantised_base_config.json"  # beside an adapter whose base was in 4 bits: how, and of weights in which dtype
BLOCK = 64
NF4 = {"quant_type": "nf4", "compress_statistics": True}
USUAL_SHARE = 0.5  # of a model's weights that are packed at least, or a warning says so
_LOG = logging.getLogger("quatrain")
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # on import it misses a package that only its product uses


def quantise(module: Any, device: torch.device) -> None:
    """Replace every linear layer of `module` but its head by one in NF4 on `device`, frozen, one after another.

    Raises SettingError where there is none; says so where little of the model is in them.
    """
    kind, layers, total = linear4bit(), _layers(module), sum(weight.numel() for weight in module.parameters())
    packed_share = sum(layer.weight.numel() for _, _, layer in layers) / total
    if not layers:
        raise SettingError("model.lora.quantise", "nf4", "a model with linear layers",
                           f"{type(module).__name__} has none of the usual kind; leave the setting out")  # fmt: skip
    if packed_share < USUAL_SHARE:
        _LOG.warning("model.lora.quantise: %.0f %% of the weights are in linear layers and packed; experts, embeddings "
                     "and the head stay as they are", 100 * packed_share)  # fmt: skip
    module.quantised_base = {**NF4, "dtype": str(layers[0][2].weight.dtype).removeprefix("torch.")}
    while layers:
        parent, name, layer = layers.pop()
        packed = kind(layer.in_features, layer.out_features, bias=layer.bias is not None, **NF4)
        packed.weight.data = layer.weight.detach().reshape(-1, BLOCK)
        if layer.bias is not None:
            packed.bias = layer.bias
        setattr(parent, name, packed.to(device).requires_grad_(False))  # moving it packs it
    module.is_loaded_in_4bit = True  # what PEFT looks for


def round_to_nf4(module: Any, dtype: torch.dtype) -> Any:
    """A dense `module` with the numbers that `quantise` keeps of it when its weights are in `dtype`."""
    linear4bit()
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    cast(module, dtype)
    for _, _, layer in _layers(module):
        packed, state = quantize_4bit(layer.weight.detach().reshape(-1, BLOCK), **NF4)
        layer.weight.data = dequantize_4bit(packed, state).view_as(layer.weight)
    return module


def cast(module: Any, dtype: torch.dtype) -> Any:
    """The weights in `dtype`; buffers (the frequencies of rotary positions) stay as they are computed."""
    for weight in module.parameters():
        weight.data = weight.data.to(dtype)
    return module


def note_base(module: Any, folder: Path) -> None:
    """Say beside an adapter that its base was in 4 bits, so that it is merged into the numbers it was trained on."""
    if (base := getattr(module, "quantised_base", None)) is not None:
        (folder / NOTE).write_text(json.dumps(base), encoding="utf-8")


def quantised_base(folder: str) -> torch.dtype | None:
    """The dtype of the weights that were packed under a folder's adapters; None where they were not.

    Raises SettingError for a note that is torn or of another quantisation.
    """
    file = Path(folder) / NOTE
    if not file.is_file():
        return None
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    try:
        noted = json.loads(file.read_text(encoding="utf-8"))
        dtype = dtypes[noted.pop("dtype")]
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise SettingError("model.path", folder, f"a whole {NOTE} in it", f"it cannot be read ({error})") from None
    if noted != NF4:
        raise SettingError("model.path", folder, f"{NF4} in {NOTE}", "its base is of another quantisation")
    return dtype


def with_own_adapter(config: ModelConfig, folder: str) -> ModelConfig:
    """`config`, but a run in `folder` that was trained on a packed base goes on with its own adapter on that base.

    Packing the merged weights again would round the adapter away. Raises SettingError where that cannot be helped.
    """
    lora = config.lora
    if lora is None or lora.quantise is None:
        if lora is not None and lora.adapter is not None and quantised_base(lora.adapter) is not None:
            raise SettingError("model.lora.quantise", None, "nf4, on which the adapter was trained", "set it")
        return config
    below = [folder]
    while (base := adapter_base(below[-1])) is not None:
        below.append(base)
    packed = [quantised_base(each) is not None for each in below]
    if any(packed[1:]) or (packed[0] and lora.adapter is not None):
        raise SettingError("model.lora.quantise", "nf4", "a model that was not trained on a base in 4 bits before",
                           "packing its merged weights again would round the adapters away; leave it out")  # fmt: skip
    if not packed[0]:
        return config
    saved = json.loads((Path(folder) / "adapter_config.json").read_text(encoding="utf-8"))
    rank, alpha = saved.get("r"), saved.get("lora_alpha")
    if (rank, alpha) != (lora.rank, lora.alpha):
        _LOG.warning("model.lora: the adapter of %s goes on, with its own rank %s, alpha %s and targets",
                     folder, rank, alpha)  # fmt: skip
    return config.model_copy(update={"path": below[1], "lora": lora.model_copy(update={"adapter": folder})})


def _layers(module: Any) -> list[tuple[nn.Module, str, nn.Linear]]:
    """Parent, name and layer of every plain linear layer of whole blocks but output embedding and score head."""
    kept = {id(module.get_output_embeddings()), id(getattr(module, "score", None))}
    linear = [(parent, name, layer) for parent in module.modules() for name, layer in parent.named_children()
              if type(layer) is nn.Linear]  # fmt: skip
    return [found for found in linear if id(found[2]) not in kept and found[2].weight.numel() % BLOCK == 0]


@functools.cache
def linear4bit() -> Any:
    """The layer class. Raises SettingError where bitsandbytes is missing."""
    try:
        import bitsandbytes
        from bitsandbytes.functional import dequantize_4bit
    except ImportError as error:
        raise SettingError("model.lora.quantise", "nf4", "the package bitsandbytes",
                           "run `pip install 'quatrain[qlora]'`") from error  # fmt: skip

    def unpacked(weight: Any, width: int, dtype: torch.dtype) -> Tensor:
        return dequantize_4bit(weight.data, weight.quant_state).view(-1, width).to(dtype)

    class Product(torch.autograd.Function):
        """x W^T; the weights are unpacked for either direction and not kept."""

        @staticmethod
        def forward(context: Any, x: Tensor, weight: Any) -> Tensor:
            context.weight, context.width = weight, x.shape[-1]
            return nn.functional.linear(x, unpacked(weight, context.width, x.dtype))

        @staticmethod
        def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
            (gradient,) = gradients
            return gradient @ unpacked(context.weight, context.width, gradient.dtype), None

    class Linear4bit(bitsandbytes.nn.Linear4bit):
        """PEFT puts its adapters for 4-bit layers around it."""

        def forward(self, x: Tensor) -> Tensor:
            wide = torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else x.dtype
            y = Product.apply(x.to(wide), self.weight)
            return y if self.bias is None else y + self.bias.to(y.dtype)

    return Linear4bit
