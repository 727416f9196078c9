"""Low-rank adapters through PEFT, and the reference that goes with them."""

import copy
from typing import Any

import torch
from torch import nn

from quatrain.config import ModelConfig
from quatrain.errors import SettingError

POLICY, REFERENCE = "default", "reference"


def add_adapters(module: Any, config: ModelConfig) -> Any:
    """`module` with a trainable adapter in float32 (float64 models: float64).

    A fresh adapter starts as the base, so the reference is the base with the adapter off. An adapter that was trained
    before (`lora.adapter`, for instance SFT) is loaded twice: one copy is trained, the other stays as the reference.
    """
    from peft import LoraConfig as PeftLora
    from peft import PeftModel, get_peft_model

    lora = config.lora
    assert lora is not None
    try:
        if lora.adapter is None:
            settings = PeftLora(r=lora.rank, lora_alpha=lora.alpha, target_modules=lora.targets,
                                lora_dropout=0.0, task_type="CAUSAL_LM")  # fmt: skip
            wrapped = get_peft_model(module, settings)
        else:
            wrapped = PeftModel.from_pretrained(module, lora.adapter, adapter_name=POLICY, is_trainable=True)
            wrapped.load_adapter(lora.adapter, adapter_name=REFERENCE, is_trainable=False)
            wrapped.set_adapter(POLICY)
    except (ValueError, OSError, TypeError) as error:
        setting = "model.lora.targets" if lora.adapter is None else "model.lora.adapter"
        reason = " ".join(str(error).split())[:200]
        raise SettingError(setting, lora.adapter or lora.targets, "a match with the model", reason) from error
    for name, parameter in wrapped.named_parameters():
        if parameter.requires_grad and parameter.dtype is not torch.float64:
            parameter.data = parameter.data.float()
        if f".{REFERENCE}." in name:
            parameter.requires_grad_(False)
    return wrapped


def add_reference(module: Any) -> None:
    """Give the reference an adapter of its own, where it has none, that starts as the policy's and can follow it.

    Before the first update that is the base, bit for bit, because B is 0.
    """
    if REFERENCE not in module.peft_config:
        module.add_adapter(REFERENCE, copy.deepcopy(module.peft_config[POLICY]))
        module.set_adapter(POLICY)
        with torch.no_grad():
            for reference, policy in adapter_pairs(module):
                reference.requires_grad_(False)
                reference.data = policy.detach().clone()


def adapter_pairs(module: Any) -> list[tuple[nn.Parameter, nn.Parameter]]:
    """Every weight of the reference's adapter with the policy's of the same place."""
    weights = dict(module.named_parameters())
    return [
        (weight, weights[name.replace(f".{REFERENCE}.", f".{POLICY}.")])
        for name, weight in weights.items()
        if f".{REFERENCE}." in name
    ]
