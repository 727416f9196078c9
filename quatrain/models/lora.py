"""Low-rank adapters through PEFT, and the reference that goes with them."""

import copy
from typing import Any

import torch
from torch import nn

from quatrain.config import ModelConfig
from quatrain.errors import SettingError

POLICY, REFERENCE = "default", "reference"


def add_adapters(module: Any, config: ModelConfig) -> Any:
    """`module` with a trainable adapter in float32 (float64 models: float64); a score head is trained and kept with it.

    A fresh adapter starts as the base, so the reference is the base with the adapter off. An adapter that was trained
    before (`lora.adapter`, for instance SFT) is loaded twice: one copy is trained, the other stays as the reference
    (a model with a score head has none).
    """
    from peft import LoraConfig as PeftLora
    from peft import PeftConfig, PeftModel, get_peft_model

    lora = config.lora
    assert lora is not None
    scalar = hasattr(module, "score")
    try:
        if lora.adapter is None:
            settings = PeftLora(r=lora.rank, lora_alpha=lora.alpha, target_modules=lora.targets,
                                lora_dropout=0.0, task_type="SEQ_CLS" if scalar else "CAUSAL_LM")  # fmt: skip
            wrapped = get_peft_model(module, settings)
        elif scalar:
            wrapped = _continued(module, lora.adapter)
        elif PeftConfig.from_pretrained(lora.adapter).task_type == "SEQ_CLS":
            raise ValueError("it gives scores, not text")
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


def merge_adapter(module: Any, folder: str, found: dict[str, Any]) -> Any:
    """`module` with the adapter in `folder` added to its weights; a score head that comes with it is no longer missing.

    From here on the model is known by `folder`, so that adapters trained on it note the right base.
    """
    from peft import PeftConfig, PeftModel

    scalar = hasattr(module, "score")
    trained_head = PeftConfig.from_pretrained(folder).task_type == "SEQ_CLS"
    if trained_head and not scalar:
        raise ValueError("it gives scores, not text")
    wrapped = _continued(module, folder) if scalar else PeftModel.from_pretrained(module, folder)
    if trained_head:
        found["missing_keys"] = {name for name in found["missing_keys"] if not name.startswith("score.")}
    merged = wrapped.merge_and_unload()
    merged.name_or_path = merged.config._name_or_path = folder
    return merged


def _continued(module: Any, adapter: str) -> Any:
    """A model with a score head and a saved adapter; of a causal model's adapter, the head stays the module's."""
    from peft import PeftConfig, get_peft_model, load_peft_weights, set_peft_model_state_dict

    settings = PeftConfig.from_pretrained(adapter)
    settings.task_type, settings.inference_mode = "SEQ_CLS", False
    head = {f"base_model.model.score.{name}": weight for name, weight in module.score.state_dict().items()}
    wrapped = get_peft_model(module, settings)
    saved = {
        name: weight
        for name, weight in load_peft_weights(adapter, device="cpu").items()
        if name not in head or weight.shape == head[name].shape
    }  # of other attributes the head is drawn anew
    set_peft_model_state_dict(wrapped, {**head, **saved})
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
