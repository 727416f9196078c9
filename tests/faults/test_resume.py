"""A run that was killed or stopped at any moment ends bit for bit as the run that was not."""

import os
import random
import shutil
import signal
from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
import yaml

from quatrain.config import Recipe
from quatrain.errors import Interrupted, ResumeError, SettingError
from quatrain.methods import online, updates
from quatrain.methods import record as record_module
from quatrain.methods import run as run_module
from quatrain.methods.online import train
from quatrain.methods.run import open_run
from quatrain.methods.run_folder import owned
from quatrain.telemetry.catalogue import is_deterministic
from quatrain.telemetry.console import Console
from quatrain.telemetry.run_log import read_events, read_metrics
from quatrain.train.checkpoint import checkpoint_path, checkpoints
from tests.faults.killing import kill_and_resume, kill_at, quiet
from tests.runs import assert_equal_weights, in_child, metrics_of, recipe, rows, weights_of

STEPS = 6
KL = {"placement": "loss", "estimator": "k3", "coefficient": 0.1}
CASES: dict[str, dict[str, Any]] = {
    "full with KL in the loss": {"algorithm": {"kl": KL}},
    "lora": {"model": {"lora": {"rank": 2}}, "algorithm": {"kl": {"placement": "reward", "estimator": "k1"}}},
    "two updates and two epochs": {
        "train": {"updates_per_step": 2, "epochs": 2, "schedule": "cosine", "warmup_steps": 2, "weight_decay": 0.1}
    },
    "mixture": {"checkpoint": {"every": 2}},
    "dynamic sampling": {"algorithm": {"preset": "dapo"}},
    "refreshed reference": {"model": {"lora": {"rank": 2}}, "algorithm": {"kl": {**KL, "refresh_every": 2}}},
    "averaged reference": {"algorithm": {"kl": {**KL, "estimator": "full", "ema": 0.5}}},
    "epochs of 2.5 steps": {"algorithm": {"truncated": "penalise"}, "log": {"tensorboard": True}},
}
STOPPED = list(CASES)[:5]  # cases in which a stop is tried at each place of a step


class Killed(Exception):
    """Stands for a kill in this process."""


def case(name: str, folder: Path, output: str = "run", **changes: Any) -> Recipe:
    settings = {"checkpoint": {"every": 1}, **CASES[name], **changes}
    settings["train"] = {"steps": STEPS, **settings.get("train", {})}
    sources = [{"source": str(folder / "train.jsonl"), "limit": 5 if name == "epochs of 2.5 steps" else None}]
    if name == "mixture":
        rows(folder / "more.jsonl", ["more x:", "more y:", "more z:"], answer="7")
        sources.append({"source": str(folder / "more.jsonl"), "name": "more", "weight": 0.4})
    if name == "dynamic sampling":  # few letters pay, so that many groups get nothing
        letter = {"kind": f"{folder / 'letter.py'}:Letter", "letters": "a", "measures": "correctness"}
        settings["verifiers"] = {"default": {"letter": letter}}
    settings["rollout"] = {"max_tokens": 4, "temperature": 0.9}
    return recipe(folder, **settings, prompts=sources, output=str(folder / output))


@pytest.fixture(scope="module", params=CASES)
def unbroken(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The uninterrupted run of every case, in FOLDER/unbroken."""
    folder = tmp_path_factory.mktemp("resume")
    train(case(request.param, folder, "unbroken"), quiet())
    if request.param == "dynamic sampling":
        assert sum(row.metrics["refill/groups"] > 2 for row in read_metrics(folder / "unbroken")) >= STEPS // 2
    return request.param, folder


def assert_same(folder: Path, name: str = "run") -> None:
    """The same rows, each step once, and the same weights as the unbroken run."""
    assert [row.step for row in read_metrics(folder / name)] == list(range(1, STEPS + 1))
    assert metrics_of(folder / name) == metrics_of(folder / "unbroken")
    for part in ("policy", "reference"):
        if (checkpoint_path(folder / "unbroken", STEPS) / part).exists():
            assert_equal_weights(weights_of(folder / name, STEPS, part), weights_of(folder / "unbroken", STEPS, part))
    assert curves(folder / name) == curves(folder / "unbroken")


def curves(run: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows of the steps; empty where the run has none."""
    if not (run / "tensorboard").exists():
        return {}
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    tags = [tag for tag in events.Tags()["scalars"] if is_deterministic(tag)]
    assert tags
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in tags}


FEWEST_FLUSHES = 50  # every case flushes at least as often


def killed_and_resumed(name: str, folder: Path, flush: int) -> None:
    kill_and_resume(case(name, folder), flush, FEWEST_FLUSHES)
    assert_same(folder)


def test_case_c73_c69_c72_killed_anywhere(unbroken: tuple[str, Path]) -> None:
    name, folder = unbroken
    draw = random.Random(name)
    killed_and_resumed(name, folder, draw.randrange(5, FEWEST_FLUSHES))


@pytest.mark.full
@pytest.mark.parametrize("flush", range(1, 60))
def test_killed_at_every_flush(unbroken: tuple[str, Path], flush: int) -> None:
    name, folder = unbroken
    killed_and_resumed(name, folder, flush)


def test_killed_twice(unbroken: tuple[str, Path]) -> None:
    name, folder = unbroken
    if name != "mixture":
        pytest.skip("one case is enough")
    wanted = case(name, folder, "twice")
    assert in_child(wanted, kill_at(25)) == -signal.SIGKILL
    assert in_child(wanted, kill_at(18)) == -signal.SIGKILL
    assert in_child(wanted) == 0
    assert_same(folder, "twice")


PLACES = {
    "sampling": (online, "sample"),
    "scoring": (online, "to_samples"),
    "updating": (updates, "update_batches"),
    "after the step": (online, "rollout_metrics"),
}


def signal_at(monkeypatch: pytest.MonkeyPatch, place: str, number: int, refill: bool) -> None:
    """Send this process a signal once in step 3, at a function of the step or where its uniform groups are replaced."""
    module, name = PLACES[place]
    original, calls = getattr(module, name), [0]

    def wrapped(*arguments: Any, **named: Any) -> Any:
        calls[0] += arguments[2:] == (3, 2) if refill else 1
        if calls[0] == (1 if refill else 3):
            calls[0] += 1
            os.kill(os.getpid(), number)
        return original(*arguments, **named)

    monkeypatch.setattr(module, name, wrapped)


@pytest.mark.parametrize(
    ("place", "finished"), [("sampling", 2), ("scoring", 2), ("updating", 2), ("after the step", 3)]
)
def test_a_stop_saves_the_boundary_and_goes_on_from_it(
    unbroken: tuple[str, Path], monkeypatch: pytest.MonkeyPatch, place: str, finished: int
) -> None:
    """Asked in step 3: what has changed no weight yet is undone, prompts included; otherwise the step is finished."""
    name, folder = unbroken
    if name not in STOPPED:
        pytest.skip("the other cases are enough")
    shutil.rmtree(folder / "run", ignore_errors=True)
    number = signal.SIGTERM if place in ("sampling", "updating") else signal.SIGINT
    wanted = case(name, folder, checkpoint={"every": 0})
    with monkeypatch.context() as patched:
        signal_at(patched, place, number, refill=(name, place) == ("dynamic sampling", "sampling"))
        with pytest.raises(Interrupted) as caught:
            train(wanted, quiet())
    path = checkpoint_path(folder / "run", finished)
    assert str(caught.value) == f"stopped after step {finished}, saved in {path}; run the same command to go on"
    assert checkpoints(folder / "run")[-1] == finished
    assert [row.step for row in read_metrics(folder / "run")] == list(range(1, finished + 1))
    train(wanted, quiet())
    assert_same(folder)
    assert [event["kind"] for event in read_events(folder / "run")] == ["interrupted", "resume"]


def test_handlers_are_given_back(tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    train(recipe(tmp_path, train={"steps": 1}), quiet())
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.parametrize("call", [1, 2], ids=["before the first step", "after the last step"])
def test_a_stop_while_held_out_prompts_are_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    wanted = recipe(tmp_path, held_out=[{"source": str(tmp_path / "test.jsonl")}], train={"steps": 2})
    original, left = run_module.evaluate, [call]

    def interrupted(*arguments: Any, **named: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGINT)
        return original(*arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(run_module, "evaluate", interrupted)
        with pytest.raises(Interrupted, match=f"stopped after step {0 if call == 1 else 2}, saved in"):
            train(wanted, quiet())
    result = train(wanted, quiet())
    assert result.steps == 2 and result.gain("reward") is not None
    train(wanted.model_copy(update={"output": str(tmp_path / "unbroken")}), quiet())
    assert metrics_of(tmp_path / "run") == metrics_of(tmp_path / "unbroken")


def stop_before_checkpoint(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    original = record_module.save_checkpoint

    def save(folder: Path, at: int, *rest: Any) -> Path:
        if at == step:
            raise Killed
        return original(folder, at, *rest)

    monkeypatch.setattr(record_module, "save_checkpoint", save)


def test_what_lies_past_the_checkpoint_is_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = recipe(
        tmp_path, train={"steps": 5}, checkpoint={"every": 2}, log={"rollouts_every": 1}, evaluation={"every": 1},
        held_out=[{"source": str(tmp_path / "test.jsonl")}],
    )  # fmt: skip
    with monkeypatch.context() as patched:
        stop_before_checkpoint(patched, 4)
        with pytest.raises(Killed):
            train(wanted, quiet())
    folder = tmp_path / "run"
    assert [row.step for row in read_metrics(folder)] == [1, 2, 3, 4]
    first = pq.read_table(folder / "rollouts" / "step-000003.parquet")
    train(wanted, quiet())
    assert [row.step for row in read_metrics(folder)] == [1, 2, 3, 4, 5]
    aside = (folder / "metrics.set-aside.jsonl").read_text().splitlines()
    assert [line[:10] for line in aside] == ['{"step": 3', '{"step": 4']
    names = {path.name for path in (folder / "rollouts").iterdir()}
    assert names == {f"step-{n:06d}.parquet" for n in range(1, 6)} | {f"step-{n:06d}.set-aside.parquet" for n in (3, 4)}
    assert pq.read_table(folder / "rollouts" / "step-000003.parquet").equals(first)  # made again, equal
    evaluations = {path.name for path in (folder / "evaluations").iterdir()}
    assert evaluations == {f"step-{n:06d}.json" for n in range(6)} | {f"step-{n:06d}.set-aside.json" for n in (3, 4)}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"train": {"learning_rate": 2e-2}}, "train.learning_rate: 0.01 -> 0.02"),
        ({"seed": 5}, "seed: 0 -> 5"),
        ({"rollout": {"group_size": 6}, "train": {"prompts_per_step": 3}}, "train.prompts_per_step: 2 -> 3"),
        ({"train": {"schedule": "linear"}}, "train.schedule: 'constant' -> 'linear'"),
        ({"model": {"dtype": "float64"}}, "model.dtype: 'float32' -> 'float64'"),
    ],
)
def test_a_changed_recipe_is_refused_with_the_differences(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    train(recipe(tmp_path, train={"steps": 1}), quiet())
    saved = (tmp_path / "run" / "recipe.yaml").read_text()
    with pytest.raises(ResumeError) as caught:
        train(recipe(tmp_path, **{**changes, "train": {"steps": 1, **changes.get("train", {})}}), quiet())
    assert named in str(caught.value) and "set output=ANOTHER_FOLDER" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert (tmp_path / "run" / "recipe.yaml").read_text() == saved


def test_more_steps_are_refused_when_the_schedule_depends_on_them(tmp_path: Path) -> None:
    train(recipe(tmp_path, train={"steps": 1, "schedule": "cosine"}), quiet())
    with pytest.raises(ResumeError, match=r"train\.steps: 1 -> 2"):
        train(recipe(tmp_path, train={"steps": 2, "schedule": "cosine"}), quiet())


def test_what_the_result_does_not_depend_on_may_change(tmp_path: Path) -> None:
    train(recipe(tmp_path, train={"steps": 4}, output=str(tmp_path / "unbroken")), quiet())
    train(recipe(tmp_path, train={"steps": 2}), quiet())
    changed = recipe(
        tmp_path, train={"steps": 4}, checkpoint={"every": 3, "keep_last": 5}, evaluation={"every": 2},
        log={"rollouts_every": 2},
    )  # fmt: skip
    train(changed, quiet())
    assert metrics_of(tmp_path / "run") == metrics_of(tmp_path / "unbroken")
    assert yaml.safe_load((tmp_path / "run" / "recipe.yaml").read_text())["train"]["steps"] == 4
    (event,) = read_events(tmp_path / "run")
    assert event["kind"] == "resume" and "train.steps: 2 -> 4" in event["changed"]


def test_held_out_prompts_that_came_later_are_not_compared_with_the_start(tmp_path: Path) -> None:
    """The weights of the start are gone: an evaluation now must not pass for one of step 0."""
    train(recipe(tmp_path, train={"steps": 2}), quiet())
    held_out = [{"source": str(tmp_path / "test.jsonl")}]
    result = train(recipe(tmp_path, train={"steps": 4}, held_out=held_out), quiet())
    assert result.before is None and result.after is not None and result.gain() is None
    assert not (tmp_path / "run" / "evaluations" / "step-000000.json").exists()


def test_an_evaluation_with_other_settings_is_made_anew(tmp_path: Path) -> None:
    held_out = [{"source": str(tmp_path / "test.jsonl")}]
    train(recipe(tmp_path, train={"steps": 1}, held_out=held_out), quiet())
    again = train(recipe(tmp_path, train={"steps": 1}, held_out=held_out), quiet())
    assert again.before is not None and again.after is not None and len(again.after.answers) == 6
    changed = recipe(tmp_path, train={"steps": 1}, held_out=held_out, evaluation={"samples": 2, "temperature": 1.0})
    result = train(changed, quiet())
    assert result.before is None
    assert result.after is not None and len(result.after.answers) == 12


def test_a_mistake_in_the_recipe_can_be_mended_in_the_same_folder(tmp_path: Path) -> None:
    good = recipe(tmp_path, train={"steps": 1})
    absent = good.model.model_copy(update={"path": str(tmp_path / "absent")})
    with pytest.raises(SettingError, match=r"^model\.path"):
        train(good.model_copy(update={"model": absent}), quiet())
    assert not (tmp_path / "run" / "recipe.yaml").exists()
    train(good, quiet())


def test_a_second_process_on_the_folder_is_refused(tmp_path: Path) -> None:
    wanted = recipe(tmp_path, train={"steps": 1})
    with owned(tmp_path / "run"), pytest.raises(ResumeError, match="is in use by another process"):
        train(wanted, quiet())
    train(wanted, quiet())


def test_an_output_that_cannot_be_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for output in ("file", "file/run"):
        with pytest.raises(SettingError, match=r"^output: got .*, need a folder that can be written"):
            train(recipe(tmp_path, output=str(tmp_path / output)), quiet())


def test_another_machine_is_warned_of(tmp_path: Path) -> None:
    train(recipe(tmp_path, train={"steps": 1}), quiet())
    path = tmp_path / "run" / "environment.json"
    path.write_text(path.read_text().replace('"cpu_threads": 1', '"cpu_threads": 64'))
    text = StringIO()
    train(recipe(tmp_path, train={"steps": 2}), Console(text, terminal=False))
    assert "cpu_threads: 64 -> 1" in " ".join(text.getvalue().split())
    assert [event["kind"] for event in read_events(tmp_path / "run")] == ["resume", "environment"]


def test_case_c62_same_seed_same_adapter_at_the_start(tmp_path: Path) -> None:
    found = []
    for name, seed in (("one", 3), ("same", 3), ("other", 4)):
        wanted = recipe(tmp_path, model={"lora": {"rank": 2}}, seed=seed, output=str(tmp_path / name))
        torch.rand(len(name))  # what was drawn before must not matter
        with open_run(wanted, quiet()) as opened:
            trainable = opened.learner.roles["policy"].trainable
            found.append({key: value.detach().clone() for key, value in trainable.items()})
    assert_equal_weights(found[0], found[1])
    assert any(not torch.equal(found[0][key], found[2][key]) for key in found[0])


def test_a_finished_run_is_left_as_it_is(tmp_path: Path) -> None:
    wanted = recipe(tmp_path, train={"steps": 2})
    train(wanted, quiet())
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    result = train(wanted, quiet())
    assert result.steps == 2 and (tmp_path / "run" / "metrics.jsonl").read_bytes() == before
