"""The checkpoints of the steps that answered best stay, whatever else is dropped."""

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from quatrain.errors import SettingError
from quatrain.methods import record as record_module
from quatrain.methods import run as run_module
from quatrain.methods.evaluate import Answer, Evaluation, question_key
from quatrain.methods.online import train
from quatrain.methods.run_folder import best_step, best_steps
from quatrain.telemetry.console import Console
from quatrain.telemetry.run_log import read_metrics
from quatrain.train.checkpoint import checkpoint_path, checkpoints
from tests.runs import assert_equal_weights, recipe, weights_of

NAN = float("nan")


def evaluation(step: int, reward: float, asked: str = "the same") -> Evaluation:
    parts = {"letter": reward} if reward == reward else {}  # what could not be judged has no parts
    answer = Answer(prompt_index=0, source="s", prompt="p", question="p", completion="c", tokens=1, stop_reason="eos",
                    reward=reward, correct=reward, in_form=reward, parts=parts)  # fmt: skip
    return Evaluation(step, 1, (answer,), asked)


def record(folder: Path, rewards: dict[int, float], asked: str = "the same") -> None:
    for step, reward in rewards.items():
        checkpoint_path(folder, step).mkdir(parents=True)
        evaluation(step, reward, asked).save(folder)


def test_the_highest_ties_nan_and_the_start(tmp_path: Path) -> None:
    record(tmp_path, {0: 1.0, 2: 0.5, 4: 0.9, 6: 0.9, 8: NAN, 10: 0.7})
    assert best_steps(tmp_path, "eval/reward", 1) == [4]
    assert best_steps(tmp_path, "eval/reward", 3) == [4, 6, 10]
    assert best_steps(tmp_path, "eval/letter", 9) == [4, 6, 10, 2]
    assert best_step(tmp_path, "eval/reward") == 4


def test_a_step_without_checkpoint_counts_only_when_it_is_named(tmp_path: Path) -> None:
    record(tmp_path, {2: 0.5})
    evaluation(4, 0.9).save(tmp_path)
    assert best_steps(tmp_path, "eval/reward", 2) == [2]
    assert best_steps(tmp_path, "eval/reward", 2, 4) == [4, 2]


def test_what_was_set_aside_or_asked_otherwise_does_not_compete(tmp_path: Path) -> None:
    record(tmp_path, {2: 0.9}, asked="other prompts")
    record(tmp_path, {4: 0.2, 6: 0.3})
    path = tmp_path / "evaluations" / "step-000006.json"
    path.rename(path.with_name("step-000006.set-aside.json"))
    assert best_steps(tmp_path, "eval/reward", 5) == [4]


@pytest.mark.parametrize("rewards", [{}, {2: NAN}])
def test_no_best_is_one_line(tmp_path: Path, rewards: dict[int, float]) -> None:
    record(tmp_path, rewards)
    with pytest.raises(SettingError, match=r"^--step: got best, need a checkpoint in .* evaluated with eval/accuracy"):
        best_step(tmp_path, "eval/accuracy")


def scripted(monkeypatch: pytest.MonkeyPatch, rewards: dict[int, float]) -> list[int]:
    """Every evaluation of a run says what the table says; returns the steps that are saved, as they come."""

    def evaluate(_engine: Any, prompts: Any, _verifiers: Any, sampling: Any, *, samples: int, step: int,
                 **_: Any) -> Evaluation:  # fmt: skip
        return evaluation(step, rewards[step], question_key(prompts, sampling, samples))

    saved: list[int] = []
    original = record_module.save_checkpoint

    def save(folder: Path, step: int, *rest: Any, **named: Any) -> Path:
        if not checkpoint_path(folder, step).exists():
            saved.append(step)
        return original(folder, step, *rest, **named)

    monkeypatch.setattr(run_module, "evaluate", evaluate)
    monkeypatch.setattr(record_module, "save_checkpoint", save)
    return saved


def settings(folder: Path, **checkpoint: Any) -> dict[str, Any]:
    return {
        "held_out": [{"source": str(folder / "test.jsonl")}], "evaluation": {"every": 1}, "train": {"steps": 5},
        "checkpoint": {"every": 0, "keep_last": 1, "keep_best": 1, "best_metric": "eval/reward", **checkpoint},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("rewards", "keep_best", "saved", "kept"),
    [
        ({1: 0.2, 2: 0.9, 3: 0.5, 4: 0.9, 5: 0.1}, 1, [1, 2, 5], [2, 5]),  # a tie: the earlier
        ({1: 0.2, 2: 0.9, 3: 0.5, 4: 0.9, 5: 1.0}, 1, [1, 2, 5], [5]),  # the evaluation after the last step counts
        ({1: 0.2, 2: NAN, 3: 0.9, 4: 0.5, 5: NAN}, 2, [1, 3, 4, 5], [3, 4, 5]),
    ],
)
def test_the_best_and_the_last_of_a_run_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rewards: dict[int, float], keep_best: int, saved: list[int],
    kept: list[int],
) -> None:  # fmt: skip
    found = scripted(monkeypatch, {0: 2.0, **rewards})
    train(recipe(tmp_path, **settings(tmp_path, keep_best=keep_best)), Console(StringIO(), terminal=False))
    assert (found, checkpoints(tmp_path / "run")) == (saved, kept)


class Killed(Exception):
    """Stands for a kill."""


def test_a_resume_keeps_the_same_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between the evaluation of the new best (step 4) and its checkpoint, which would also drop step 2."""
    wanted = recipe(tmp_path, **settings(tmp_path))
    console = Console(StringIO(), terminal=False)
    found = scripted(monkeypatch, {0: 0.0, 1: 0.2, 2: 0.9, 3: 0.5, 4: 0.95, 5: 0.1})
    with monkeypatch.context() as patched:
        save = record_module.save_checkpoint

        def killed(folder: Path, step: int, *rest: Any, **named: Any) -> Path:
            if step == 4:
                raise Killed
            return save(folder, step, *rest, **named)

        patched.setattr(record_module, "save_checkpoint", killed)
        with pytest.raises(Killed):
            train(wanted, console)
    assert checkpoints(tmp_path / "run") == [2]
    assert json.loads((tmp_path / "run" / "evaluations" / "step-000004.json").read_text())["step"] == 4
    train(wanted, console)
    assert (found, checkpoints(tmp_path / "run")) == ([1, 2, 4, 5], [4, 5])
    assert best_step(tmp_path / "run", "eval/reward") == 4


def test_evaluating_on_the_way_changes_nothing(tmp_path: Path) -> None:
    """Bit for bit: completions sampled for an evaluation, saved bests and what else it does leave no trace."""
    kl = {"placement": "loss", "estimator": "k3", "coefficient": 0.1, "ema": 0.5}
    common: dict[str, Any] = {"algorithm": {"kl": kl, "refill_rounds": 1}, "train": {"steps": 4, "epochs": 2}}
    held_out = settings(tmp_path)
    sampled = {"every": 1, "samples": 2, "temperature": 1.0, "max_tokens": 3}
    rows = []
    for name, changes in (("without", {}), ("with", {**held_out, "evaluation": sampled})):
        result = train(recipe(tmp_path, **{**changes, **common}, output=str(tmp_path / name)),
                       Console(StringIO(), terminal=False))  # fmt: skip
        found = [row.metrics for row in read_metrics(tmp_path / name)]
        rows.append([repr({key: row[key] for key in row if not key.startswith("eval/")}) for row in found])
        assert any(key.startswith("eval/") for row in found for key in row) == bool(changes) == bool(result.before)
    assert rows[0] == rows[1] and len(rows[0]) == 4
    for part in ("policy", "reference"):
        one, other = (weights_of(tmp_path / name, 4, part) for name in ("without", "with"))
        assert_equal_weights(one, other)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"held_out": []}, "checkpoint.keep_best: got 1, need held_out prompts and evaluation.every above 0"),
        ({"evaluation": {"every": 0}}, "checkpoint.keep_best: got 1, need held_out prompts and evaluation.every"),
    ],
)
def test_keep_best_needs_evaluations(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingError) as caught:
        recipe(tmp_path, **{**settings(tmp_path), **changes})
    assert said in str(caught.value)


def test_an_unknown_metric_names_the_nearest_before_anything_is_loaded(tmp_path: Path) -> None:
    wanted = recipe(tmp_path, **settings(tmp_path, best_metric="eval/acuracy"))
    with pytest.raises(SettingError) as caught:
        train(wanted, Console(StringIO(), terminal=False))
    assert "checkpoint.best_metric: got eval/acuracy" in str(caught.value)
    assert "did you mean 'eval/accuracy'?" in str(caught.value)
    assert not (tmp_path / "run").exists()
