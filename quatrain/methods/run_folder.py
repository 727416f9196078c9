"""The folder of a run: who owns it, what was asked, on which machine, and what the policy said."""

import contextlib
import fcntl
import hashlib
import importlib.metadata
import json
import math
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
import yaml

from quatrain.config import AnyRecipe, LabelRecipe, ModelConfig
from quatrain.errors import QuatrainError, ResumeError, SettingError
from quatrain.methods.evaluate import Evaluation, evaluation_path, without_nan
from quatrain.models.load import resolve_model
from quatrain.recipe_file import differences, load_recipe, read_settings
from quatrain.sandbox import in_use
from quatrain.telemetry.files import disk_errors, replace_text
from quatrain.telemetry.metrics import Mean, Metric
from quatrain.train.checkpoint import checkpoints
from quatrain.types import Rollout, Sample, Score

OWN_FILES = ("metrics.jsonl", "events.jsonl", "environment.json", "checkpoints", "rollouts", "evaluations")
LABEL_FILES = ("pairs.jsonl", "revisions.jsonl", "done.jsonl")
FREE = ("output", "checkpoint", "log", "evaluation", "held_out", "limit")  # may change between the parts of one run
MODEL_FILES = ("*.safetensors", "*.bin", "*config.json", "*token*.json", "vocab*", "merges.txt", "*.model", "chat_*")
BLOCKS, BLOCK_BYTES = 64, 4096  # of a file larger than these together, so much is read to know it again


@contextlib.contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Hold the folder for this process alone; a second `train` on it is an error, not a mixture."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = (folder / ".lock").open("a")
    except (OSError, ValueError) as error:  # a path with a NUL is a ValueError
        reason = getattr(error, "strerror", None) or str(error)
        raise SettingError("output", str(folder), "a folder that can be written", reason) from None
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ResumeError(
                f"output: {folder} is in use by another process; wait for it, or set output=ANOTHER_FOLDER"
            ) from None
        yield


def settle_recipe(folder: Path, recipe: AnyRecipe | LabelRecipe) -> list[str]:
    """Hold the recipe to the saved one, if there is one; returns the differences, all of them allowed.

    Raises ResumeError that lists settings on which the result depends and that have changed; SettingError for a folder
    with files that a run would write to and no recipe of a run: they are somebody else's.
    """
    path = folder / "recipe.yaml"
    changed: list[str] = []
    own = LABEL_FILES if isinstance(recipe, LabelRecipe) else OWN_FILES
    others = [name for name in own if (folder / name).exists()]
    if others and not path.is_file():
        raise SettingError("output", str(folder), f"a new folder or a run's (this one has {others[0]} and no "
                           "recipe.yaml)", "set output=ANOTHER_FOLDER")  # fmt: skip
    if path.is_file():
        new = recipe.model_dump(mode="json")
        changed = differences(read_settings(path), new)
        free = FREE + (("train.steps", "train.epochs") if _constant(recipe) else ())
        refused = [
            line for line in changed if not line.startswith(tuple(f"{name}{end}" for name in free for end in ".:["))
        ]
        if refused:
            raise ResumeError(
                f"output: {folder} holds a run of another recipe ({'; '.join(refused[:4])}); "
                "restore the recipe, or set output=ANOTHER_FOLDER"
            )
    return changed


def _constant(recipe: AnyRecipe | LabelRecipe) -> bool:
    """Whether more steps leave those that are done as they are."""
    return not isinstance(recipe, LabelRecipe) and recipe.train.schedule == "constant"


def save_recipe(folder: Path, recipe: AnyRecipe | LabelRecipe) -> None:
    """Write the resolved recipe; done once all its parts are loaded, so that a mistake in it can still be mended."""
    text = yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    replace_text(folder / "recipe.yaml", text)


def read_recipe(folder: Path) -> AnyRecipe:
    """The recipe of a run. Raises SettingError when the folder is no run."""
    path = folder / "recipe.yaml"
    if not path.is_file():
        raise SettingError("run", str(folder), "a run folder (with recipe.yaml)", "give the `output` of a training run")
    return load_recipe(path)


def environment() -> dict[str, Any]:
    """What the numbers may depend on besides the recipe."""
    packages = ("quatrain", "torch", "transformers", "tokenizers", "peft", "bitsandbytes", "numpy")
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
        **({"sandbox": used} if (used := in_use()) else {}),  # the backend's name, and what it isolates with
    }


def settle_model(folder: Path, model: ModelConfig, others: Mapping[str, str] = MappingProxyType({})) -> None:
    """Save what the folders of the model, its adapter and `others` (by setting) hold, or hold them to what was saved.

    A resume reads them again: the base under an adapter, the reference, the tokenizer, a reward model. Raises
    ResumeError when files have changed or are gone. What only a model hub holds is not looked at.
    """
    places = {setting: resolve_model(path) for setting, path in {"model.path": model.path, **others}.items()}
    if model.lora is not None and model.lora.adapter is not None:
        places["model.lora.adapter"] = model.lora.adapter
    now = {setting: fingerprint(Path(place)) for setting, place in places.items()}
    path = folder / "model.json"
    if not path.is_file():
        replace_text(path, json.dumps(now, indent=1))
        return
    for setting, files in json.loads(path.read_text(encoding="utf-8")).items():
        changed = [name for name, digest in files.items() if now.get(setting, {}).get(name) != digest]
        if changed:
            raise ResumeError(
                f"{setting}: got other files in {places.get(setting)} than at the start ({', '.join(changed[:3])}), "
                "need the same ones; put them back, or set output=ANOTHER_FOLDER"
            )


def fingerprint(folder: Path) -> dict[str, str]:
    """Size in bytes and digest of a model's files, by name; large ones by BLOCKS pieces spread over them."""
    paths = sorted({path for pattern in MODEL_FILES for path in folder.glob(pattern) if path.is_file()})
    found = {}
    for path in paths:
        size, digest = path.stat().st_size, hashlib.sha256()
        whole = size <= BLOCKS * BLOCK_BYTES
        with path.open("rb") as file:
            for number in range(1 if whole else BLOCKS):
                file.seek(number * (size - BLOCK_BYTES) // (BLOCKS - 1) if number else 0)
                digest.update(file.read(size if whole else BLOCK_BYTES))
        found[path.name] = f"{size} {digest.hexdigest()[:32]}"
    return found


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
    kl: dict[int, list[float]] = {}
    for sample in samples:
        streams = sample.streams
        advantages.setdefault(sample.completion, []).extend(streams["advantages"])
        if "reference_logprobs" in streams:
            gap = streams.get("old_logprobs", streams["sampler_logprobs"]) - streams["reference_logprobs"]
            kl.setdefault(sample.completion, []).extend(gap.tolist())
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
            "kl_k1": kl.get(number),  # per trained token, of sampling weights and reference
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


def best_steps(folder: Path, metric: str, count: int, *others: int) -> list[int]:
    """The `count` steps with the highest held-out `metric` (the lowest loss), best first.

    Steps with a checkpoint compete, and `others`, where their evaluation asked the same as the latest one's. Of equals
    the earlier step is better; NaN and the start of the run (step 0) never win.
    """
    steps = sorted({*checkpoints(folder), *others} - {0})
    done = [found for step in steps if (found := load_measures(folder, step)) is not None]
    sign = -1 if metric.endswith("loss") else 1
    values = {
        found.step: sign * found.values[metric]
        for found in done
        if found.asked == done[-1].asked and metric in found.values
    }
    ranked = sorted(values, key=lambda step: (-values[step], step))
    return [step for step in ranked if not math.isnan(values[step])][:count]


@dataclass(frozen=True, slots=True)
class Measures:
    """The numbers of a held-out evaluation, whatever it asked; equal `asked` can be compared."""

    step: int
    asked: str
    values: Mapping[str, float]

    def metrics(self) -> dict[str, Metric]:
        """As metrics of a step."""
        return {name: Mean(value, 1) for name, value in self.values.items()}


def save_measures(folder: Path, step: int, asked: str, values: Mapping[str, float]) -> Measures:
    """RUN/evaluations/step-000040.json of an offline run."""
    path = evaluation_path(folder, step)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, json.dumps(without_nan({"step": step, "asked": asked, "measures": dict(values)}), indent=1))
    return Measures(step, asked, values)


def load_measures(folder: Path, step: int) -> Measures | None:
    """The numbers of a saved evaluation of either method, or None."""
    path = evaluation_path(folder, step)
    if not path.is_file():
        return None
    data = json.loads(path.read_text(encoding="utf-8"))
    if "measures" not in data:
        evaluation = Evaluation.from_json(data)
        return Measures(step, evaluation.asked, {name: one.value for name, one in evaluation.metrics().items()})
    values = {name: math.nan if value is None else value for name, value in data["measures"].items()}
    return Measures(step, data["asked"], values)


def best_step(folder: Path, metric: str) -> int:
    """The checkpoint whose step has the highest held-out `metric`. Raises SettingError when none was evaluated."""
    found = best_steps(folder, metric, 1)
    if not found:
        raise SettingError("--step", "best", f"a checkpoint in {folder} whose step was evaluated with {metric}",
                           f"give a number: {', '.join(map(str, [0, *checkpoints(folder)]))}")  # fmt: skip
    return found[0]


def last_checkpoint(folder: Path) -> int:
    """Step of the last checkpoint. Raises QuatrainError when there is none."""
    steps = checkpoints(folder)
    if not steps:
        raise QuatrainError(f"run: {folder} has no checkpoint yet; train it for some steps first")
    return steps[-1]
