"""An offline run that was killed or stopped at any moment ends bit for bit as the run that was not."""

import errno
import json
import os
import random
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quatrain.config import OfflineRecipe
from quatrain.errors import Interrupted, QuatrainError, ResumeError
from quatrain.methods import offline, offline_run
from quatrain.methods.offline import train
from quatrain.telemetry.console import Console
from quatrain.telemetry.run_log import read_events, read_metrics
from quatrain.train.checkpoint import checkpoint_path, checkpoints
from quatrain.train.learner import Learner
from tests.faults.killing import kill_and_resume
from tests.runs import assert_equal_weights, in_child, metrics_of, offline_recipe, quiet, weights_of

STEPS = 6
LORA = {"lora": {"rank": 2}}
EVALUATED = {"evaluation": {"every": 2}}
CASES: dict[str, dict[str, Any]] = {
    "sft": {**EVALUATED, "train": {"schedule": "cosine", "warmup_steps": 2, "weight_decay": 0.1}},
    "sft lora": {"model": LORA, "log": {"tensorboard": True}},
    "sft qlora": {"model": {"lora": {"rank": 2, "quantise": "nf4"}}},
    "dpo": EVALUATED,
    "dpo lora": {**EVALUATED, "model": LORA, "checkpoint": {"keep_best": 1}},
    "ipo": {},
    "kto": EVALUATED,
    "kto lora": {"model": LORA},
    "orpo": {"train": {"examples_per_step": 11}},  # the second epoch begins within step 3
    "simpo": {"model": LORA},
    "reward_model": {**EVALUATED, "checkpoint": {"keep_best": 1}},
    "reward_model lora": {"model": LORA},
}
GATE = ("sft", "sft qlora", "dpo", "dpo lora", "kto lora", "reward_model")  # the others are in the long tier
FEWEST_FLUSHES = 30  # every case flushes at least as often


def case(name: str, folder: Path, output: str = "run", **changes: Any) -> OfflineRecipe:
    settings = {**CASES[name], **changes}
    settings["train"] = {"steps": STEPS, **settings.get("train", {})}
    settings["checkpoint"] = {"every": 1, **settings.get("checkpoint", {})}
    return offline_recipe(folder, name.split()[0], **settings, output=str(folder / output))


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=[] if name in GATE else pytest.mark.full) for name in CASES]
)
def unbroken(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The uninterrupted run of every case, in FOLDER/unbroken."""
    folder = tmp_path_factory.mktemp("resume")
    train(case(request.param, folder, "unbroken"), quiet())
    return request.param, folder


def part(folder: Path) -> str:
    return "reward" if (checkpoint_path(folder, STEPS) / "reward").exists() else "policy"


def measures(folder: Path) -> dict[str, Any]:
    """Every evaluation that counts."""
    return {path.name: json.loads(path.read_text()) for path in (folder / "evaluations").glob("step-??????.json")}


def assert_same(folder: Path, name: str = "run") -> None:
    """The same rows, each step once, the same weights, evaluations and kept checkpoints, and one saved reference."""
    run, whole = folder / name, folder / "unbroken"
    assert [row.step for row in read_metrics(run)] == list(range(1, STEPS + 1))
    assert metrics_of(run) == metrics_of(whole)
    assert_equal_weights(weights_of(run, STEPS, part(run)), weights_of(whole, STEPS, part(whole)))
    assert measures(run) == measures(whole)
    assert checkpoints(run) == checkpoints(whole)
    config = checkpoint_path(run, STEPS) / part(run) / "config.json"
    if config.exists():
        assert config.read_text() == (checkpoint_path(whole, STEPS) / part(whole) / "config.json").read_text()
    if (whole / "reference.npz").exists():
        with np.load(run / "reference.npz") as mine, np.load(whole / "reference.npz") as other:
            assert all((mine[key] == other[key]).all() for key in ("keys", "counts", "values"))


def killed_and_resumed(name: str, folder: Path, flush: int) -> None:
    kill_and_resume(case(name, folder), flush, FEWEST_FLUSHES)
    assert_same(folder)


def test_killed_anywhere(unbroken: tuple[str, Path]) -> None:
    name, folder = unbroken
    killed_and_resumed(name, folder, random.Random(name).randrange(4, FEWEST_FLUSHES))


@pytest.mark.full
@pytest.mark.parametrize("flush", range(1, 75))
def test_killed_at_every_flush(unbroken: tuple[str, Path], flush: int) -> None:
    name, folder = unbroken
    killed_and_resumed(name, folder, flush)


def test_killed_while_the_reference_is_computed(unbroken: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of it is on disk; the rest is computed with the same bits."""
    name, folder = unbroken
    if name not in ("dpo", "kto lora"):
        pytest.skip("has no reference, or another case is enough")
    shutil.rmtree(folder / "run", ignore_errors=True)
    wanted = case(name, folder)

    def prepare() -> None:
        offline_run.ReferenceCache.fill.__globals__["WRITE_EVERY_S"] = 0.0
        original, calls = offline_run.ReferenceCache._write, [0]

        def write(cache: Any) -> None:
            original(cache)
            calls[0] += 1
            if calls[0] == 3:
                os.kill(os.getpid(), signal.SIGKILL)

        monkeypatch.setattr(offline_run.ReferenceCache, "_write", write)

    assert in_child(wanted, prepare) == -signal.SIGKILL
    with np.load(folder / "run" / "reference.npz") as saved:
        assert 0 < len(saved["keys"]) < 40
    train(wanted, quiet())
    assert_same(folder)


@pytest.mark.parametrize("damage", ["torn", "gone", "of other parts"])
def test_a_reference_that_cannot_be_read_is_computed_anew(unbroken: tuple[str, Path], damage: str) -> None:
    """In the middle of a run, when the policy is no longer the reference."""
    name, folder = unbroken
    if name != "dpo":
        pytest.skip("one case is enough")
    shutil.rmtree(folder / "run", ignore_errors=True)
    train(case(name, folder, train={"steps": 3}), quiet())
    path = folder / "run" / "reference.npz"
    if damage == "torn":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif damage == "gone":
        path.unlink()
    else:
        np.savez(path, keys=np.zeros((2, 16), np.uint8), counts=np.array([1, 2]), values=np.zeros(9))
    train(case(name, folder), quiet())
    assert_same_weights_and_rows(folder)


def assert_same_weights_and_rows(folder: Path) -> None:
    """As `assert_same`, for a run that was given more steps: the evaluation at its first end stands in no row."""
    run, whole = folder / "run", folder / "unbroken"
    assert_equal_weights(weights_of(run, STEPS, part(run)), weights_of(whole, STEPS, part(whole)))
    found, wanted = read_metrics(run), read_metrics(whole)
    for row, other in zip(found, wanted, strict=True):
        own = {name: value for name, value in row.metrics.items() if not name.startswith("eval/")}
        assert own == {name: value for name, value in other.metrics.items() if not name.startswith("eval/")}


def test_more_steps_later_are_the_steps_of_the_longer_run(unbroken: tuple[str, Path]) -> None:
    """The reference of new examples is computed as the longer run had it: batch by batch."""
    name, folder = unbroken
    if name not in ("dpo", "kto lora"):
        pytest.skip("the other cases are enough")
    shutil.rmtree(folder / "run", ignore_errors=True)
    train(case(name, folder, train={"steps": 2}), quiet())
    train(case(name, folder), quiet())
    assert_same_weights_and_rows(folder)


@pytest.mark.parametrize("name", ["dpo", pytest.param("kto", marks=pytest.mark.full)])
def test_other_held_out_data_between_the_parts(tmp_path: Path, name: str) -> None:
    """Row n of the new file is not row n of the old one: its reference is its own."""
    train(case(name, tmp_path, "unbroken"), quiet())
    train(case(name, tmp_path, train={"steps": 3}), quiet())
    test = tmp_path / f"{name}-test.jsonl"
    lines = test.read_text().splitlines()[::-1]
    (tmp_path / "other.jsonl").write_text("\n".join(lines[2:]) + "\n")
    held_out = [{"source": str(tmp_path / "other.jsonl")}]
    train(case(name, tmp_path, held_out=held_out), quiet())
    assert_same_weights_and_rows(tmp_path)
    whole = offline_recipe(tmp_path, name, train={"steps": STEPS}, held_out=held_out, output=str(tmp_path / "again"))
    train(whole, quiet())
    assert measures(tmp_path / "run")[f"step-{STEPS:06d}.json"]["measures"] == pytest.approx(
        measures(tmp_path / "again")[f"step-{STEPS:06d}.json"]["measures"], rel=1e-5, abs=1e-6
    )


# --- Ctrl-C -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("place", "finished"), [("to_samples", 2), ("with_beside", 2), ("merge_metrics", 3)])
def test_a_stop_saves_the_boundary_and_goes_on_from_it(
    unbroken: tuple[str, Path], monkeypatch: pytest.MonkeyPatch, place: str, finished: int
) -> None:
    """Asked in step 3: what has changed no weight yet is undone, examples included; otherwise the step is finished."""
    name, folder = unbroken
    if name != "kto lora":
        pytest.skip("the other cases are enough")
    shutil.rmtree(folder / "run", ignore_errors=True)
    wanted = case(name, folder, checkpoint={"every": 0}, held_out=[], evaluation={})
    train(wanted.model_copy(update={"output": str(folder / "alone")}), quiet())
    original, calls = getattr(offline, place), [0]

    def wrapped(*arguments: Any, **named: Any) -> Any:
        calls[0] += 1
        if calls[0] == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return original(*arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(offline, place, wrapped)
        with pytest.raises(Interrupted) as caught:
            train(wanted, quiet())
    path = checkpoint_path(folder / "run", finished)
    assert str(caught.value) == f"stopped after step {finished}, saved in {path}; run the same command to go on"
    train(wanted, quiet())
    assert metrics_of(folder / "run") == metrics_of(folder / "alone")
    assert_equal_weights(weights_of(folder / "run", STEPS), weights_of(folder / "alone", STEPS))
    assert [event["kind"] for event in read_events(folder / "run")] == ["interrupted", "resume"]


def test_a_stop_while_the_reference_is_computed_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = case("dpo", tmp_path)
    original, calls = Learner.annotate, [0]

    def annotate(*arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return original(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(Learner, "annotate", annotate)
        with pytest.raises(Interrupted, match=r"^stopped while the reference was computed; .*reference\.npz keeps"):
            train(wanted, quiet())
    with np.load(tmp_path / "run" / "reference.npz") as saved:
        assert len(saved["keys"]) == 24  # two batches of six pairs
    train(wanted, quiet())
    train(case("dpo", tmp_path, "unbroken"), quiet())
    assert_same(tmp_path)


def test_a_stop_while_held_out_examples_are_evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = case("dpo", tmp_path, evaluation={})
    original = Console.phase

    def phase(console: Console, name: str, done: int, total: int) -> None:
        original(console, name, done, total)
        if name == "evaluating":
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr(Console, "phase", phase)
        with pytest.raises(Interrupted, match="stopped after step 0, saved in"):
            train(wanted, quiet())
    train(wanted, quiet())
    train(case("dpo", tmp_path, "unbroken", evaluation={}), quiet())
    assert_same(tmp_path)


# --- disks, files and folders -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["reference.npz", "metrics.jsonl", "evaluations/step-000000.json"])
def test_a_full_disk_is_one_line_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    wanted = case("dpo", tmp_path)
    name = Path(file).name
    original = Path.open

    def refuse(path: Path, mode: str = "r", *rest: Any, **named: Any) -> Any:
        if name in path.name and set(mode) & set("wa"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(path, mode, *rest, **named)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", refuse)
        with pytest.raises(QuatrainError, match=r"^disk full: cannot write .*; free space and run the same command"):
            train(wanted, quiet())
    train(wanted, quiet())
    train(case("dpo", tmp_path, "unbroken"), quiet())
    assert_same(tmp_path)
    assert not list((tmp_path / "run").glob(".*writing"))


def test_a_changed_recipe_or_other_rows_are_refused(tmp_path: Path) -> None:
    train(case("dpo", tmp_path, train={"steps": 1}), quiet())
    with pytest.raises(ResumeError, match=r"algorithm\.beta: None -> 0\.3"):
        train(case("dpo", tmp_path, algorithm={"beta": 0.3}, train={"steps": 1}), quiet())
    rows = tmp_path / "dpo-train.jsonl"
    rows.write_text(rows.read_text().replace("zyx", "zzz"))
    with pytest.raises(ResumeError, match="digest of the examples"):
        train(case("dpo", tmp_path, train={"steps": 2}), quiet())


def test_more_epochs_may_follow(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"steps": None, "examples_per_step": 5}
    train(offline_recipe(tmp_path, "orpo", train={**settings, "epochs": 1}), quiet())
    train(offline_recipe(tmp_path, "orpo", train={**settings, "epochs": 2}), quiet())
    train(offline_recipe(tmp_path, "orpo", train={**settings, "epochs": 2}, output=str(tmp_path / "whole")), quiet())
    assert len(read_metrics(tmp_path / "run")) == 10
    assert metrics_of(tmp_path / "run") == metrics_of(tmp_path / "whole")


def test_a_finished_run_is_left_as_it_is(tmp_path: Path) -> None:
    wanted = case("reward_model", tmp_path)
    train(wanted, quiet())
    kept = ("metrics.jsonl", f"checkpoints/step-{STEPS:06d}/reward/config.json", "evaluations/step-000006.json")
    before = [(tmp_path / "run" / name).read_bytes() for name in kept]
    train(wanted, quiet())
    assert [(tmp_path / "run" / name).read_bytes() for name in kept] == before
