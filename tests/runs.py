"""Whole runs that take a second: a tiny model on disk, a file of prompts, a verifier in this process."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import load_file

from quatrain.config import AnyRecipe, OfflineRecipe, Recipe
from quatrain.methods import offline, online
from quatrain.recipe_file import validate_recipe
from quatrain.telemetry.console import Console
from quatrain.telemetry.run_log import read_metrics
from tests.tiny import save_tiny

LETTER = '''
"""Pays the share of characters that are among `letters`."""
from quatrain.config import Section
from quatrain.types import Score

class Settings(Section):
    letters: str = "abcdefghijklm"
    fail: bool = False

class Letter:
    Settings, scope, kind, examples = Settings, "completion", "shaping", ()

    def __init__(self, settings, limits):
        self.settings = settings

    async def score(self, rollouts):
        if self.settings.fail:
            return [Score(status="error", error="the judge is away") for _ in rollouts]
        return [Score(value=self.share(one.text)) for one in rollouts]

    def share(self, text):
        return sum(character in self.settings.letters for character in text) / max(1, len(text))

    def close(self):
        pass
'''


def quiet() -> Console:
    """A console that nobody sees."""
    return Console(StringIO(), terminal=False)


def rows(path: Path, texts: Sequence[str], **columns: Any) -> Path:
    """A JSONL file with a `prompt` per text."""
    path.write_text("".join(json.dumps({"prompt": text, **columns}) + "\n" for text in texts))
    return path


def recipe_data(folder: Path, **changes: Any) -> dict[str, Any]:
    """A recipe as YAML would give it; model, prompts and verifier are written into `folder` once.

    Changes are laid on by section: `recipe_data(tmp_path, train={"steps": 2})`.
    """
    model = folder / "model"
    if not model.exists():
        save_tiny(model)
        rows(folder / "train.jsonl", [f"say {a}{b}:" for a in "abcde" for b in "12345"], answer="7")
        rows(folder / "test.jsonl", [f"tell {a}:" for a in "abcdef"], answer="7")
        (folder / "letter.py").write_text(LETTER)
    data: dict[str, Any] = {
        "model": {"path": str(model), "device": "cpu"},
        "prompts": [{"source": str(folder / "train.jsonl")}],
        "verifiers": {"default": {"letter": {"kind": f"{folder / 'letter.py'}:Letter"}}},
        "rollout": {"group_size": 4, "max_tokens": 6},
        "algorithm": {"kl": {"placement": "none"}},
        "train": {"steps": 3, "prompts_per_step": 2, "learning_rate": 1e-2, "tokens_per_micro_batch": 64},
        "checkpoint": {"every": 0},
        "log": {"tensorboard": False, "rollouts_every": 0},
        "output": str(folder / "run"),
        "threads": 1,
    }
    for name, value in changes.items():
        data[name] = {**data.get(name, {}), **value} if isinstance(value, dict) else value
    return data


def recipe(folder: Path, **changes: Any) -> Recipe:
    """The validated recipe."""
    found = validate_recipe(recipe_data(folder, **changes))
    assert isinstance(found, Recipe)
    return found


def offline_rows(algorithm: str, names: str) -> list[dict[str, Any]]:
    """Rows whose good answers are of early letters and whose bad ones are of late letters."""
    rows: list[dict[str, Any]] = []
    for first in names:
        for second in "12345":
            prompt, good, bad = f"say {first}{second}:", f"{first}ab{second}", f"zyx{second}"[: 2 + int(second) % 3]
            if algorithm == "sft":
                rows.append({"prompt": prompt, "completion": good})
            elif algorithm == "kto":
                rows += [{"prompt": prompt, "completion": answer, "label": answer == good} for answer in (good, bad)]
            else:
                rows.append({"prompt": prompt, "chosen": good, "rejected": bad})
    return rows


def offline_data(folder: Path, algorithm: str = "dpo", /, **changes: Any) -> dict[str, Any]:
    """An offline recipe as YAML would give it; model and rows are written into `folder` once."""
    if not (folder / "model").exists():
        save_tiny(folder / "model")
    for name, letters in (("train", "abcde"), ("test", "fgh")):
        path = folder / f"{algorithm}-{name}.jsonl"
        if not path.exists():
            path.write_text("".join(json.dumps(row) + "\n" for row in offline_rows(algorithm, letters)))
    data: dict[str, Any] = {
        "method": "offline",
        "model": {"path": str(folder / "model"), "device": "cpu"},
        "data": [{"source": str(folder / f"{algorithm}-train.jsonl")}],
        "held_out": [{"source": str(folder / f"{algorithm}-test.jsonl")}],
        "algorithm": {"name": algorithm},
        "train": {"steps": 4, "examples_per_step": 6, "learning_rate": 1e-2, "tokens_per_micro_batch": 64},
        "checkpoint": {"every": 0},
        "log": {"tensorboard": False},
        "output": str(folder / "run"),
        "threads": 1,
    }
    for name, value in changes.items():
        data[name] = {**data.get(name, {}), **value} if isinstance(value, dict) else value
    return data


def offline_recipe(folder: Path, algorithm: str = "dpo", /, **changes: Any) -> OfflineRecipe:
    """The validated recipe."""
    found = validate_recipe(offline_data(folder, algorithm, **changes))
    assert isinstance(found, OfflineRecipe)
    return found


def train(wanted: AnyRecipe, console: Console) -> Any:
    """Train with the loop of the recipe's method."""
    if isinstance(wanted, OfflineRecipe):
        return offline.train(wanted, console)
    return online.train(wanted, console)


def recipe_file(folder: Path, **changes: Any) -> Path:
    """The recipe on disk."""
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe_data(folder, **changes)))
    return path


def metrics_of(run: Path | str) -> dict[int, str]:
    """The deterministic part of every row by step, as text (so that NaN equals NaN)."""
    return {row.step: repr(sorted(row.metrics.items())) for row in read_metrics(run)}


def weights_of(run: Path | str, step: int, part: str = "policy") -> dict[str, torch.Tensor]:
    """Weights that the checkpoint of `step` holds."""
    folder = Path(run) / "checkpoints" / f"step-{step:06d}" / part
    return {name: value for file in folder.glob("*.safetensors") for name, value in load_file(file).items()}


def assert_equal_weights(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    """Bit for bit."""
    assert one.keys() == other.keys() and one
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


def in_child(wanted: AnyRecipe, prepare: Callable[[], None] = lambda: None) -> int:
    """Train in a forked process; its exit status is 0 when it finished, -9 when it was killed.

    A fork starts in no time, because everything is imported already.
    """
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = 1
    try:
        prepare()
        with open(os.devnull, "w") as nowhere:
            train(wanted, Console(nowhere, terminal=False))
        status = 0
    finally:
        os._exit(status)


def start(*arguments: str, cwd: Path | None = None) -> subprocess.Popen[str]:
    """`quatrain ...` in a process of its own, which hears Ctrl-C also where the tests run in the background."""
    root = Path(__file__).resolve().parents[1]
    return subprocess.Popen(
        [sys.executable, "-m", "quatrain", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(root), "PYTHONUNBUFFERED": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
