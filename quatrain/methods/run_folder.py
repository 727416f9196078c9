"""The folder of a run: who owns it, what was asked, on which machine, and what the policy said."""

import contextlib
import fcntl
import importlib.metadata
import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
import yaml

from quatrain.config import Recipe
from quatrain.errors import QuatrainError, ResumeError, SettingError
from quatrain.recipe_file import differences, validate_recipe
from quatrain.telemetry.files import disk_errors, replace_text
from quatrain.types import Rollout, Sample, Score

FREE = ("output", "checkpoint", "log", "evaluation", "held_out")  # may change between the parts of one run


@contextlib.contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Hold the folder for this process alone; a second `train` on it is an error, not a mixture."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = (folder / ".lock").open("w")
    except OSError as error:
        raise SettingError(
            "output", str(folder), "a folder that can be written", error.strerror or str(error)
        ) from None
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ResumeError(
                f"output: {folder} is in use by another process; wait for it, or set output=ANOTHER_FOLDER"
            ) from None
        yield


def settle_recipe(folder: Path, recipe: Recipe) -> list[str]:
    """Hold the recipe to the saved one, if there is one; returns the differences, all of them allowed.

    Raises ResumeError that lists settings on which the result depends and that have changed.
    """
    path = folder / "recipe.yaml"
    changed: list[str] = []
    if path.is_file():
        new = recipe.model_dump(mode="json")
        changed = differences(yaml.safe_load(path.read_text(encoding="utf-8")), new)
        free = FREE + (("train.steps",) if recipe.train.schedule == "constant" else ())
        refused = [
            line for line in changed if not line.startswith(tuple(f"{name}{end}" for name in free for end in ".:["))
        ]
        if refused:
            raise ResumeError(
                f"output: {folder} holds a run of another recipe ({'; '.join(refused[:4])}); "
                "restore the recipe, or set output=ANOTHER_FOLDER"
            )
    return changed


def save_recipe(folder: Path, recipe: Recipe) -> None:
    """Write the resolved recipe; done once all its parts are loaded, so that a mistake in it can still be mended."""
    text = yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    replace_text(folder / "recipe.yaml", text)


def read_recipe(folder: Path) -> Recipe:
    """The recipe of a run. Raises SettingError when the folder is no run."""
    path = folder / "recipe.yaml"
    if not path.is_file():
        raise SettingError("run", str(folder), "a run folder (with recipe.yaml)", "give the `output` of a training run")
    return validate_recipe(yaml.safe_load(path.read_text(encoding="utf-8")))


def environment() -> dict[str, Any]:
    """What the numbers may depend on besides the recipe."""
    packages = ("quatrain", "torch", "transformers", "tokenizers", "peft", "numpy")
    versions = {}
    for name in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cpu_threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "packages": versions,
    }


def settle_environment(folder: Path) -> list[str]:
    """Save the environment, or compare with the saved one; returns what differs (then bits may differ)."""
    path = folder / "environment.json"
    now = environment()
    if path.is_file():
        with contextlib.suppress(json.JSONDecodeError):
            return differences(json.loads(path.read_text(encoding="utf-8")), now)
    replace_text(path, json.dumps(now, indent=1))
    return []


def save_rollouts(
    folder: Path, step: int, rollouts: Sequence[Rollout], scores: Sequence[Score], samples: Sequence[Sample]
) -> None:
    """RUN/rollouts/step-000012.parquet: a row per completion, with its score and mean advantage."""
    advantages: dict[int, list[float]] = {}
    for sample in samples:
        advantages.setdefault(sample.completion, []).extend(sample.streams["advantages"])
    rows = [
        {
            "step": step,
            "group": rollout.group,
            "index": rollout.index,
            "prompt_index": rollout.prompt.index,
            "source": rollout.prompt.source,
            "prompt": rollout.prompt.text,
            "completion": rollout.text,
            "stop_reason": rollout.stop_reason,
            "tokens": rollout.num_tokens,
            "score": score.value,
            "parts": json.dumps(dict(score.parts)),
            "status": score.status,
            "error": score.error,
            "advantage": float(sum(own) / len(own)) if (own := advantages.get(number)) else None,
            "token_ids": rollout.trajectories[0].token_ids.tolist(),
            "prompt_tokens": len(rollout.prompt.token_ids),
            "policy_version": int(rollout.trajectories[0].policy_version[-1]),
        }
        for number, (rollout, score) in enumerate(zip(rollouts, scores, strict=True))
    ]
    write_parquet(folder / "rollouts" / f"step-{step:06d}.parquet", rows)


def write_parquet(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows under a temporary name, then renamed."""
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.writing")
        pq.write_table(pa.Table.from_pylist([dict(row) for row in rows]), temporary)
        os.replace(temporary, path)


def set_files_aside(folder: Path, after_step: int) -> None:
    """Rename the rollouts and evaluations of steps that a resume will make again."""
    for path in (*folder.glob("rollouts/step-??????.parquet"), *folder.glob("evaluations/step-??????.json")):
        if int(path.stem.removeprefix("step-")) > after_step:
            path.replace(path.with_name(f"{path.stem}.set-aside{path.suffix}"))


def save_samples(folder: Path, step: int, samples: Sequence[Any]) -> Path:
    """The samples of a non-finite micro-batch, for a person to look at."""
    path = folder / f"non-finite-step-{step:06d}.json"
    rows = [
        {
            "label": sample.label,
            "token_ids": sample.token_ids.tolist(),
            "trained": sample.trained.tolist(),
            "streams": {name: [repr(float(v)) for v in values] for name, values in sample.streams.items()},
        }
        for sample in samples
    ]
    replace_text(path, json.dumps(rows))
    return path


def last_checkpoint(folder: Path) -> int:
    """Step of the last checkpoint. Raises QuatrainError when there is none."""
    from quatrain.train.checkpoint import checkpoints

    steps = checkpoints(folder)
    if not steps:
        raise QuatrainError(f"run: {folder} has no checkpoint yet; train it for some steps first")
    return steps[-1]
