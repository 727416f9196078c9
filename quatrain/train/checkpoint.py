"""Checkpoints that survive a kill at any instant: written beside, flushed, then renamed.

checkpoints/step-000040/policy/     a Hugging Face folder (or an adapter): loads anywhere
checkpoints/step-000040/reference/  the same for a reference that moves
checkpoints/step-000040/state/      optimizer tensors (torch.distributed.checkpoint) and trainer.json
"""

import errno
import json
import os
import shutil
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load as load_distributed
from torch.distributed.checkpoint.state_dict_saver import save as save_distributed

from quatrain.errors import QuatrainError, ResumeError
from quatrain.models.load import LanguageModel
from quatrain.models.lora import POLICY, REFERENCE
from quatrain.models.quantise import note_base
from quatrain.models.scalar import VALUE_HEAD, value_head_weights
from quatrain.telemetry.files import replace_text
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


def save_checkpoint(
    run: Path, step: int, learner: Learner, state: Mapping[str, Any], keep_last: int, keep: Collection[int] = ()
) -> Path:
    """Write the state after `step` and drop all but the last `keep_last` checkpoints and those of the steps in `keep`.

    A step that is saved already stays as it is: its state is the same, and a second writing could be killed half-way.
    Raises QuatrainError in one line when the disk is full or fails; earlier checkpoints are then untouched.
    """
    target = checkpoint_path(run, step)
    if not target.exists():
        _write(target, step, learner, state)
    for old in checkpoints(run)[:-keep_last]:
        if old not in keep:
            path = checkpoint_path(run, old)
            shutil.rmtree(path.rename(_beside(path)))
    return target


def _beside(path: Path) -> Path:
    """The name under which a checkpoint is written or removed; what a kill leaves there counts for nothing."""
    return path.with_name(f".writing-{path.name}")


def _write(target: Path, step: int, learner: Learner, state: Mapping[str, Any]) -> None:
    temporary = _beside(target)
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        for name, role in learner.roles.items():
            save_weights(role.lm, temporary / name)
        if learner.moving is not None:
            save_weights(*_reference(learner, temporary))
        keys = _save_optimizers(learner.roles, temporary / "state")
        trainer = {"format": FORMAT, "step": step, "optimizer_keys": keys, **state}
        (temporary / "state" / "trainer.json").write_text(json.dumps(trainer, indent=1), encoding="utf-8")
        flush_tree(temporary)
        temporary.rename(target)
        flush(target.parent)
    except (OSError, SafetensorError, CheckpointException) as error:
        reason = _write_failure(error, target.parent)
        shutil.rmtree(temporary, ignore_errors=True)
        raise QuatrainError(
            f"checkpoint of step {step}: got {reason} at {target.parent}, need room for it; "
            "free space and run the same command again (earlier checkpoints are whole)"
        ) from error


def _write_failure(error: BaseException, folder: Path) -> str:
    """What went wrong, in one line. The libraries that write tensors hide a full disk's error number."""
    failures = getattr(error, "failures", None)  # of the distributed writer: what went wrong, by rank
    error = next(iter(failures.values()))[0] if failures else error
    number = getattr(error, "errno", None)
    if number is None and ("os error 28" in str(error) or shutil.disk_usage(folder).free < 1 << 16):
        number = errno.ENOSPC
    return "a full disk" if number in (errno.ENOSPC, errno.EDQUOT) else " ".join(str(error).split())[-200:]


def _reference(learner: Learner, folder: Path) -> tuple[LanguageModel, Path, str]:
    """What holds the weights of a moving reference, its folder, and its adapter if it is one."""
    return learner.reference or learner.policy, folder / "reference", REFERENCE


def save_weights(lm: LanguageModel, folder: Path, adapter: str = POLICY) -> None:
    """Weights, configuration and tokenizer as a Hugging Face folder; of adapters, the one of that name as PEFT does.

    A value head is a file of its own beside them.
    """
    head = value_head_weights(lm)
    if not hasattr(lm.module, "peft_config"):
        body = {name: weight for name, weight in lm.module.state_dict().items() if name not in head}
        lm.module.save_pretrained(folder, state_dict=body if head else None)
    elif adapter == POLICY:
        with warnings.catch_warnings():  # it looks for the vocabulary in a folder that holds adapters
            warnings.filterwarnings("ignore", message="Could not find a config file")
            lm.module.save_pretrained(folder, selected_adapters=[POLICY])
        if hasattr(lm.causal, "score"):  # what its heads mean
            save_configuration(lm, folder)
    else:  # PEFT itself would put it one folder deeper
        from peft import get_peft_model_state_dict

        lm.module.peft_config[adapter].save_pretrained(folder)
        save_file(get_peft_model_state_dict(lm.module, adapter_name=adapter), folder / "adapter_model.safetensors")
    lm.tokenizer.save_pretrained(folder)
    note_base(lm.causal, folder)
    if head and adapter == POLICY:
        save_file(head, folder / VALUE_HEAD)


def save_configuration(lm: LanguageModel, folder: Path) -> None:
    """config.json of a model with a score head, as saving its whole weights would write it."""
    lm.causal.config.architectures = [type(lm.causal).__name__]
    replace_text(folder / "config.json", lm.causal.config.to_json_string())


def load_weights(lm: LanguageModel, folder: Path, adapter: str = POLICY) -> None:
    """Read back what `save_weights` wrote, into the model as it stands (without a value head, past the saved one)."""
    tensors: dict[str, torch.Tensor] = {}
    for file in sorted(set(folder.glob("*.safetensors")) - {folder / VALUE_HEAD}):
        tensors.update(load_file(file, device=str(lm.device)))
    head = value_head_weights(lm)
    if head and adapter == POLICY:
        saved = load_file(folder / VALUE_HEAD)
        for name, weight in head.items():
            weight.copy_(saved[name])
    if hasattr(lm.module, "peft_config"):
        from peft import set_peft_model_state_dict

        result = set_peft_model_state_dict(lm.module, tensors, adapter_name=adapter)
        unexpected = list(result.unexpected_keys)
    else:
        result = lm.module.load_state_dict(tensors, strict=False)
        tied = set(getattr(lm.module, "all_tied_weights_keys", None) or {})
        unexpected = [*result.unexpected_keys, *(set(result.missing_keys) - tied - set(head))]
    if unexpected or not tensors:
        raise ResumeError(f"{folder}: got weights that do not fit the model ({unexpected[:3]}), need those it saved")


def load_checkpoint(run: Path, step: int, learner: Learner) -> dict[str, Any]:
    """Put weights and optimizers back as they were after `step`; returns the rest of the trainer's state."""
    folder = checkpoint_path(run, step)
    try:
        trainer = json.loads((folder / "state" / "trainer.json").read_text(encoding="utf-8"))
        if trainer["format"] != FORMAT:
            raise ResumeError(f"{folder}: got checkpoint format {trainer['format']}, need {FORMAT}")
        for name, role in learner.roles.items():
            load_weights(role.lm, folder / name)
        if learner.moving is not None:
            load_weights(*_reference(learner, folder))
        _load_optimizers(learner.roles, folder / "state", trainer.pop("optimizer_keys"))
    except (OSError, ValueError, KeyError, TypeError, SafetensorError, CheckpointException) as error:
        reason = " ".join(str(error).split())[-200:]
        raise ResumeError(
            f"{folder}: got an unreadable checkpoint ({reason}), need a whole one; "
            "remove the folder to use an earlier one"
        ) from error
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
