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

from quatrain.errors import SettingError

NOTE = "quantised_base.json"  # beside an adapter that was trained on a base in 4 bits: which
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # on import it misses a package that only its product uses
BLOCK = 64
NF4 = {"quant_type": "nf4", "compress_statistics": True}


def quantise(module: Any, device: torch.device) -> None:
    """Replace every linear layer of `module` but its head by one in NF4 on `device`, frozen, one after another."""
    kind = linear4bit()
    for parent, name, layer in _layers(module):
        packed = kind(layer.in_features, layer.out_features, bias=layer.bias is not None, **NF4)
        packed.weight.data = layer.weight.detach().reshape(-1, BLOCK)
        if layer.bias is not None:
            packed.bias = layer.bias
        setattr(parent, name, packed.to(device).requires_grad_(False))  # moving it packs it
    module.is_loaded_in_4bit = True  # what PEFT looks for


def round_to_nf4(module: Any) -> None:
    """The linear layers of a dense `module` but its head brought to the numbers that `quantise` keeps of them."""
    linear4bit()
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    for _, _, layer in _layers(module):
        packed, state = quantize_4bit(layer.weight.detach().reshape(-1, BLOCK), **NF4)
        layer.weight.data = dequantize_4bit(packed, state).view_as(layer.weight)


def note_base(module: Any, folder: Path) -> None:
    """Say beside an adapter that its base was in 4 bits, so that it is merged into the numbers it was trained on."""
    if getattr(module, "is_loaded_in_4bit", False):
        (folder / NOTE).write_text(json.dumps(NF4), encoding="utf-8")


def base_was_quantised(folder: str) -> bool:
    """Whether `note_base` left its word in a folder of adapters. Raises ValueError for another quantisation."""
    file = Path(folder) / NOTE
    if not file.is_file():
        return False
    if json.loads(file.read_text(encoding="utf-8")) != NF4:
        raise ValueError(f"{file}: need {NF4}")
    return True


def _layers(module: Any) -> list[tuple[nn.Module, str, nn.Linear]]:
    """Parent, name and layer of every linear layer of whole blocks but the output embedding and the score head."""
    kept = {id(module.get_output_embeddings()), id(getattr(module, "score", None))}
    linear = [(parent, name, layer) for parent in module.modules() for name, layer in parent.named_children()
              if isinstance(layer, nn.Linear)]  # fmt: skip
    return [found for found in linear if id(found[2]) not in kept and found[2].weight.numel() % BLOCK == 0]


@functools.cache
def linear4bit() -> Any:
    """The layer class. Raises SettingError where bitsandbytes is missing."""
    try:
        import bitsandbytes
        from bitsandbytes.functional import dequantize_4bit
    except ImportError as error:
        raise SettingError("model.lora.quantise", "nf4", "the package bitsandbytes",
                           "run `pip install 'quatrain[qlora]'`, or leave the setting out") from error  # fmt: skip

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
