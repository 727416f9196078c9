"""Runs that a reward model pays: nothing in them is called right, and another reward model is noticed."""

import io
import json
import math
from pathlib import Path
from typing import Any

import pytest

from quatrain.config import Recipe
from quatrain.errors import ResumeError, SettingError
from quatrain.methods.measures import measures
from quatrain.methods.online import train
from quatrain.methods.summary import summarise
from quatrain.telemetry.console import Console
from tests.runs import quiet, recipe
from tests.tiny import tiny_reward_model


def paid_by_a_model(folder: Path, **changes: Any) -> Recipe:
    reward = folder / "reward"
    if not reward.exists():
        reward.mkdir()
        tiny_reward_model(reward)
    parts = {"preference": {"kind": "reward_model", "path": str(reward), "device": "cpu"}}
    held_out = [{"source": str(folder / "test.jsonl")}]
    return recipe(folder, verifiers={"default": parts}, held_out=held_out, train={"steps": 2}, **changes)


def test_no_value_of_a_reward_model_is_a_right_answer(tmp_path: Path) -> None:
    result = train(paid_by_a_model(tmp_path), quiet())
    assert result.after is not None
    assert all(math.isnan(one.correct) and math.isnan(one.in_form) for one in result.after.answers)
    assert not any(math.isnan(one.reward) for one in result.after.answers)
    assert all(math.isnan(value) for value in measures(result.after)["pass@1"])
    text = io.StringIO()
    summarise(result, Console(text, terminal=False))
    assert "preference" in text.getvalue() and "right answer" not in text.getvalue()


def test_a_part_that_can_tell_says_what_is_right(tmp_path: Path) -> None:
    wanted = paid_by_a_model(tmp_path).model_dump(mode="json")
    wanted["verifiers"]["default"]["correct"] = {"kind": "exact"}
    result = train(Recipe.model_validate(wanted), quiet())
    assert result.after is not None and all(one.correct in (0.0, 1.0) for one in result.after.answers)


def test_the_best_checkpoints_need_a_metric_that_it_tells(tmp_path: Path) -> None:
    every = {"evaluation": {"every": 1}}
    with pytest.raises(SettingError, match=r"checkpoint.best_metric: got eval/accuracy, .*use eval/reward"):
        train(paid_by_a_model(tmp_path, checkpoint={"keep_best": 1}, **every), quiet())
    best = {"keep_best": 1, "best_metric": "eval/reward"}
    assert train(paid_by_a_model(tmp_path, checkpoint=best, **every), quiet()).steps == 2


def test_another_reward_model_in_the_same_place_is_noticed(tmp_path: Path) -> None:
    train(paid_by_a_model(tmp_path), quiet())
    assert "verifiers.default.preference.path" in json.loads((tmp_path / "run" / "model.json").read_text())
    config = tmp_path / "reward" / "config.json"
    config.write_text(config.read_text().replace('"weights"', '"weights" '))
    with pytest.raises(ResumeError, match=r"verifiers.default.preference.path: got other files in .*config.json"):
        train(paid_by_a_model(tmp_path), quiet())
