"""Checkpoints that survive a kill at any instant: written beside, flushed, then renamed.

checkpoints/step-000040/policy/   a Hugging Face folder (or an adapter): loads anywhere
checkpoints/step-000040/state/    optimizer tensors (torch.distributed.checkpoint) and trainer.json
"""

import errno
import json
import os
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint.state_dict_loader import load as load_distributed
from torch.distributed.checkpoint.state_dict_saver import save as save_distributed

from quatrain.errors import QuatrainError, ResumeError
from quatrain.models.load import LanguageModel
from quatrain.train.learner import Learner, Role

FORMAT = 1
_PREFIX = "step-"


def checkpoint_path(run: Path, step: int) -> Path:
    """Folder of a step's checkpoint."""
    return run / "checkpoints" / f"{_PREFIX}{step:06d}"


def checkpoints(run: Path) -> list[int]:
    """Steps with a whole checkpoint, ascending. A folder counts only under its final name."""
    folder = run / "checkpoints"
    found = [path.name.removeprefix(_PREFIX) for path in folder.glob(f"{_PREFIX}*") if path.is_dir()]
    return sorted(int(name) for name in found if name.isdigit())


def save_checkpoint(run: Path, step: int, learner: Learner, state: Mapping[str, Any], keep_last: int) -> Path:
    """Write the state after `step` and drop all but the last `keep_last` checkpoints.

    Raises QuatrainError in one line on a full disk; earlier checkpoints are then untouched.
    """
    target = checkpoint_path(run, step)
    temporary = target.with_name(f".writing-{target.name}")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        for name, role in learner.roles.items():
            save_weights(role.lm, temporary / name)
        keys = _save_optimizers(learner.roles, temporary / "state")
        trainer = {"format": FORMAT, "step": step, "optimizer_keys": keys, **state}
        (temporary / "state" / "trainer.json").write_text(json.dumps(trainer, indent=1), encoding="utf-8")
        flush_tree(temporary)
        if target.exists():
            shutil.rmtree(target)
        temporary.rename(target)
        flush(target.parent)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise QuatrainError(
                f"checkpoint of step {step}: got a full disk at {run}, need room for it; "
                "free space and run the same command again (earlier checkpoints are whole)"
            ) from error
        raise
    for old in checkpoints(run)[:-keep_last]:
        shutil.rmtree(checkpoint_path(run, old))
    return target


def save_weights(lm: LanguageModel, folder: Path) -> None:
    """Weights, configuration and tokenizer as a Hugging Face folder; adapters as a PEFT folder."""
    from quatrain.models.lora import POLICY

    if hasattr(lm.module, "peft_config"):
        lm.module.save_pretrained(folder, selected_adapters=[POLICY])
    else:
        lm.module.save_pretrained(folder)
    lm.tokenizer.save_pretrained(folder)


def load_weights(lm: LanguageModel, folder: Path) -> None:
    """Read back what `save_weights` wrote, into the model as it stands."""
    tensors: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors.update(load_file(file, device=str(lm.device)))
    if hasattr(lm.module, "peft_config"):
        from peft import set_peft_model_state_dict

        from quatrain.models.lora import POLICY

        result = set_peft_model_state_dict(lm.module, tensors, adapter_name=POLICY)
        unexpected = list(result.unexpected_keys)
    else:
        result = lm.module.load_state_dict(tensors, strict=False)
        tied = set(getattr(lm.module, "all_tied_weights_keys", None) or {})
        unexpected = [*result.unexpected_keys, *(set(result.missing_keys) - tied)]
    if unexpected or not tensors:
        raise ResumeError(f"{folder}: got weights that do not fit the model ({unexpected[:3]}), need those it saved")


def load_checkpoint(run: Path, step: int, learner: Learner) -> dict[str, Any]:
    """Put weights and optimizers back as they were after `step`; returns the rest of the trainer's state."""
    folder = checkpoint_path(run, step)
    try:
        trainer = json.loads((folder / "state" / "trainer.json").read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise ResumeError(
            f"{folder}: got an unreadable trainer state ({error}); remove the folder to use an earlier one"
        ) from error
    if trainer["format"] != FORMAT:
        raise ResumeError(f"{folder}: got checkpoint format {trainer['format']}, need {FORMAT}")
    for name, role in learner.roles.items():
        load_weights(role.lm, folder / name)
    _load_optimizers(learner.roles, folder / "state", trainer.pop("optimizer_keys"))
    return trainer


def _save_optimizers(roles: Mapping[str, Role], folder: Path) -> list[str]:
    """Tensors of every optimizer, by `role/parameter/quantity`; returns the keys."""
    tensors = {
        f"{name}/{parameter}/{key}": value
        for name, role in roles.items()
        for parameter, weights in role.trainable.items()
        for key, value in role.optimizer.state.get(weights, {}).items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    if tensors:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            save_distributed(tensors, checkpoint_id=folder, no_dist=True)
    return sorted(tensors)


def _load_optimizers(roles: Mapping[str, Role], folder: Path, keys: list[str]) -> None:
    """Inverse of `_save_optimizers`."""
    template: dict[str, Any] = {}
    for key in keys:
        name, parameter, quantity = key.split("/")
        weights = roles[name].trainable[parameter]
        template[key] = torch.zeros((), dtype=torch.float32) if quantity == "step" else torch.zeros_like(weights)
    if template:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            load_distributed(template, checkpoint_id=folder, no_dist=True)
    for key, value in template.items():
        name, parameter, quantity = key.split("/")
        role = roles[name]
        role.optimizer.state[role.trainable[parameter]][quantity] = value


def flush_tree(folder: Path) -> None:
    """fsync every file and folder below `folder`."""
    for root, _, files in os.walk(folder):
        for file in files:
            flush(Path(root) / file)
        flush(Path(root))


def flush(path: Path) -> None:
    """fsync one file or folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
