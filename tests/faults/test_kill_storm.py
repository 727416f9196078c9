"""SIGKILL at random moments of real `quatrain train` processes: the run that is left ends as the one that never was.

`pytest -m full -s tests/faults/test_kill_storm.py` prints a line per kill; `QUATRAIN_KILLS` changes how many.
"""

import faulthandler
import json
import math
import os
import random
import resource
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from quatrain.recipe_file import validate_recipe
from quatrain.telemetry.run_log import read_events, read_metrics
from quatrain.train.checkpoint import checkpoints
from tests.runs import assert_equal_weights, in_child, metrics_of, recipe_data, rows, start, weights_of

KILLS = int(os.environ.get("QUATRAIN_KILLS", "50"))  # over all recipes together
STEPS = 14

SPARSE = '''
"""Pays 1 to an answer whose first character is an early letter, and 0 to the rest: many groups are uniform."""

def sparse(completion):
    return float(completion[:1] in tuple("abcdefgh"))

def easy(completion):
    return float(completion[:1] not in tuple("0123456789"))
'''


def held_out(folder: Path) -> list[dict[str, Any]]:
    return [{"source": str(folder / "test.jsonl")}]


def full(folder: Path) -> dict[str, Any]:
    """Every weight trained, k3 in the loss, held-out prompts evaluated on the way, rollouts kept."""
    return {
        "algorithm": {"kl": {"placement": "loss", "estimator": "k3", "coefficient": 0.1}},
        "held_out": held_out(folder), "evaluation": {"every": 3, "samples": 2, "temperature": 1.0},
        "checkpoint": {"every": 1}, "log": {"rollouts_every": 1, "tensorboard": False},
    }  # fmt: skip


def lora(folder: Path) -> dict[str, Any]:
    """Adapters, the KL in the reward, TensorBoard."""
    return {
        "model": {**recipe_data(folder)["model"], "lora": {"rank": 2}},
        "algorithm": {"kl": {"placement": "reward", "estimator": "k1", "coefficient": 0.05}},
        "train": {"schedule": "cosine", "warmup_steps": 3, "weight_decay": 0.1},
        "checkpoint": {"every": 2}, "log": {"tensorboard": True},
    }  # fmt: skip


def dapo(folder: Path) -> dict[str, Any]:
    """Dynamic sampling over two sources with a verifier each, two updates and two epochs a step."""
    rows(folder / "more.jsonl", [f"more {a}:" for a in "uvwxyz"], answer="7")
    first = {"source": str(folder / "train.jsonl"), "verifier": "sparse"}
    more = {"source": str(folder / "more.jsonl"), "name": "more", "weight": 0.4, "verifier": "easy"}
    return {
        "algorithm": {"preset": "dapo", "kl": {"placement": "none"}, "soft_overlong": 0.5},
        "prompts": [first, more],
        "verifiers": {name: {"part": {"kind": f"{folder / 'sparse.py'}:{name}", "measures": "correctness"}}
                      for name in ("sparse", "easy")},
        "train": {"updates_per_step": 2, "epochs": 2, "prompts_per_step": 4},
        "checkpoint": {"every": 1},
    }  # fmt: skip


def selective(folder: Path) -> dict[str, Any]:
    """REINFORCE++ with a filter on prompts, the best checkpoint kept beside the last, one every second step."""
    return {
        "algorithm": {"preset": "reinforce_pp", "kl": {"placement": "reward", "estimator": "k1"}},
        "verifiers": {"default": {"easy": {"kind": f"{folder / 'sparse.py'}:easy", "measures": "correctness"}}},
        "curriculum": {"skip_right": 1, "skip_wrong": 1, "retry_after": 4},
        "held_out": held_out(folder), "evaluation": {"every": 2, "samples": 2, "temperature": 1.0},
        "checkpoint": {"every": 2, "keep_last": 1, "keep_best": 1, "best_metric": "eval/reward"},
    }  # fmt: skip


RECIPES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "full": full, "lora": lora, "dapo": dapo, "selective": selective,
}  # fmt: skip


def write(name: str, folder: Path) -> Path:
    """The recipe and all it needs, in `folder`."""
    (folder / "sparse.py").write_text(SPARSE)
    recipe_data(folder)  # model, prompts, verifier
    changes = RECIPES[name](folder)
    changes["train"] = {"steps": STEPS, **changes.get("train", {})}
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(recipe_data(folder, rollout={"max_tokens": 4}, **changes)))
    return path


@dataclass(frozen=True, slots=True)
class Unbroken:
    """The run that nothing disturbed; seconds of processor time that it took before and after its first line."""

    name: str
    folder: Path
    recipe: Path
    startup_s: float
    work_s: float


def processor_s(process: subprocess.Popen[str]) -> float:
    """Processor time of a process so far, whatever else the machine does; infinite once it has ended."""
    if process.poll() is not None:
        return math.inf
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def children_s() -> float:
    """Processor time of all processes that have ended so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def unbroken(name: str, folder: Path) -> Unbroken:
    path, before = write(name, folder), children_s()
    process = start("train", str(path), f"output={folder / 'unbroken'}")
    first = process.stdout.readline() if process.stdout else ""
    loading = processor_s(process)
    _, error = process.communicate(timeout=900)
    assert process.returncode == 0 and first.startswith("loading"), error
    return Unbroken(name, folder, path, loading, children_s() - before - loading)


def killed_at(one: Unbroken, budget_s: float, wait_s: float) -> float | None:
    """Start or resume the run and kill it once it used `budget_s` of processor time, `wait_s` later.

    Returns the processor time that it had, or None when it was over before.
    """
    process = start("train", str(one.recipe), f"output={one.folder / 'run'}")
    while processor_s(process) < budget_s:
        time.sleep(0.003)
    time.sleep(wait_s)
    had = processor_s(process)
    process.kill()
    _, error = process.communicate(timeout=60)
    assert process.returncode in (0, -9), error
    return None if process.returncode == 0 else had


def place(run: Path) -> str:
    """Where the kill hit, from what lies in the folder."""
    if not (run / "recipe.yaml").exists():
        return "nothing of the run on disk yet"
    metrics = run / "metrics.jsonl"
    torn = metrics.exists() and metrics.read_bytes()[-1:] not in (b"", b"\n")
    steps, saved = [row.step for row in read_metrics(run)], checkpoints(run)
    half = sorted(path.name.removeprefix(".writing-") for path in run.glob("checkpoints/.writing-*"))
    other = sorted(path.name for pattern in ("*/.*", ".*") for path in run.glob(pattern)
                   if not path.name.startswith((".writing-", ".lock")))  # fmt: skip
    words = [f"after step {steps[-1] if steps else 0}", f"checkpoints {saved or 'none'}"]
    words += [f"{'removing' if saved and int(name[5:]) < saved[-1] else 'writing'} the checkpoint {name}"
              for name in half]  # fmt: skip
    return ", ".join([*words, *(["a torn row"] if torn else []), *(f"writing {name}" for name in other)])


def assert_nothing_lost(run: Path, before: list[int]) -> list[int]:
    """A kill never takes the last whole checkpoint away."""
    after = checkpoints(run)
    assert not before or (after and after[-1] >= before[-1]), (before, after)
    return after


def assert_same(folder: Path, steps: int = STEPS) -> None:
    """Each step once, and all that is deterministic equal to the unbroken run: metrics, weights, state, files."""
    run, other = folder / "run", folder / "unbroken"
    assert [row.step for row in read_metrics(run)] == list(range(1, steps + 1))
    assert metrics_of(run) == metrics_of(other)
    assert checkpoints(run) == checkpoints(other) and checkpoints(run)[-1] == steps
    for step in checkpoints(run):
        assert_equal_weights(weights_of(run, step), weights_of(other, step))
        states = [path / "checkpoints" / f"step-{step:06d}" / "state" / "trainer.json" for path in (run, other)]
        assert json.loads(states[0].read_text()) == json.loads(states[1].read_text())
    for pattern in ("rollouts/step-??????.parquet", "evaluations/step-??????.json"):
        names = sorted(path.name for path in run.glob(pattern))
        assert names == sorted(path.name for path in other.glob(pattern))
        for path in run.glob(pattern):
            twin = other / path.relative_to(run)
            if path.suffix == ".json":
                assert json.loads(path.read_text()) == json.loads(twin.read_text())
            else:
                assert pq.read_table(path).equals(pq.read_table(twin))
    assert not [path for path in run.rglob(".*") if path.name.endswith((".tmp", ".writing")) or "writing-" in path.name]
    assert all(event["kind"] in ("resume", "evaluation", "environment") for event in read_events(run))


def curves(run: Path) -> dict[int, float]:
    """TensorBoard's reward by step, as its own reader sees it."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    return {event.step: event.value for event in events.Scalars("reward/mean")}


def storm(one: Unbroken, kills: int, draw: random.Random, say: Callable[[str], None] = print) -> None:
    """Kill, resume, kill again until the run is whole; then compare and begin anew, until `kills` have hit."""
    run, saved = one.folder / "run", list[int]()
    for number in range(1, kills + 1):
        if STEPS in saved:
            finish(one, say)
            saved = []
        had = None
        while had is None:
            working = draw.random() < 0.8  # a fifth of the kills hits what happens before the run is opened
            budget = one.startup_s + draw.uniform(0, one.work_s) if working else draw.uniform(0, one.startup_s)
            had = killed_at(one, budget, draw.uniform(0, 0.02))
            if had is None:
                finish(one, say)
                saved = []
        saved = assert_nothing_lost(run, saved)
        say(f"{one.name}: kill {number}, {had:.2f} s of processor time: {place(run)}")
    finish(one, say)


def finish(one: Unbroken, say: Callable[[str], None]) -> None:
    """Resume to the end, compare, and make room for the next run."""
    process = start("train", str(one.recipe), f"output={one.folder / 'run'}")
    _, error = process.communicate(timeout=900)
    assert process.returncode == 0, error
    assert_same(one.folder)
    shutil.rmtree(one.folder / "last", ignore_errors=True)
    (one.folder / "run").rename(one.folder / "last")
    say(f"{one.name}: whole, and equal to the unbroken run")


@pytest.mark.full
@pytest.mark.parametrize("number", range(len(RECIPES)), ids=list(RECIPES))
def test_a_storm_of_kills(number: int, tmp_path: Path) -> None:
    """50 kills over the four recipes: 13, 13, 12 and 12."""
    name = list(RECIPES)[number]
    faulthandler.cancel_dump_traceback_later()  # long by design, and a dump of running threads can crash
    one = unbroken(name, tmp_path)
    share = KILLS // len(RECIPES) + (number < KILLS % len(RECIPES))
    storm(one, share, random.Random(f"storm {name}"), lambda line: print(line, flush=True))
    if name == "lora":
        assert curves(tmp_path / "last") == curves(tmp_path / "unbroken")
    if name == "dapo":
        refills = [row.metrics["refill/groups"] for row in read_metrics(tmp_path / "last")]
        assert sum(groups > 4 for groups in refills) >= STEPS // 2, refills  # groups were really replaced


def kill_at_line(path: Path, beginning: str) -> None:
    """Kill a process once it prints a line that begins so."""
    process = start("train", str(path), "train.steps=7")
    try:
        for line in process.stdout or ():
            if line.strip().startswith(beginning):
                break
        else:
            pytest.fail(f"over before {beginning!r}: {process.stderr.read() if process.stderr else ''}")
    finally:
        process.kill()
        process.communicate(timeout=60)
    assert process.returncode == -9


def test_three_kills_of_a_real_process(tmp_path: Path) -> None:
    """While it loads, in the middle, and again in what was resumed."""
    path = write("dapo", tmp_path)
    data = yaml.safe_load(path.read_text())
    whole = validate_recipe({**data, "train": {**data["train"], "steps": 7}, "output": str(tmp_path / "unbroken")})
    assert in_child(whole) == 0
    for beginning in ("loading", "2/", "5/"):
        kill_at_line(path, beginning)
    assert in_child(whole.model_copy(update={"output": str(tmp_path / "run")})) == 0
    assert len([event for event in read_events(tmp_path / "run") if event["kind"] == "resume"]) == 2
    assert_same(tmp_path, 7)
