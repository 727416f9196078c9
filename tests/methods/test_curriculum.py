"""Whole runs that remember their prompts: what is recorded, passed over and resumed."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from quatrain.config import Recipe
from quatrain.data.history import PromptHistory
from quatrain.errors import Interrupted
from quatrain.methods import online
from quatrain.methods.online import train
from quatrain.methods.prompt_report import prompt_report
from quatrain.methods.refill import attempts
from quatrain.telemetry.run_log import read_metrics
from tests.runs import assert_equal_weights, metrics_of, quiet, recipe, weights_of

STEPS = 6
VERIFIER = '''
from quatrain.config import Section
from quatrain.types import Score

class Settings(Section):
    pass

class Known:
    """Prompts with a are always solved, those with b never, and c cannot be judged."""

    Settings, scope, kind, examples = Settings, "completion", "correctness", ()

    def __init__(self, settings, limits):
        pass

    async def score(self, rollouts):
        return [self.one(rollout.prompt.text[4], rollout.text) for rollout in rollouts]

    def one(self, letter, text):
        if letter == "c":
            return Score(status="error", error="the judge is away")
        known = {"a": 1.0, "b": 0.0}
        return Score(value=known.get(letter, float(len(text) % 2)))

    def close(self):
        pass
'''
REFILL = {"refill_rounds": 2}
FILTERS = {"skip_right": 1, "skip_wrong": 2, "retry_after": 3}


def wanted(folder: Path, output: str = "run", steps: int = STEPS, **changes: Any) -> Recipe:
    changes = {"curriculum": FILTERS, "checkpoint": {"every": 1, "keep_last": STEPS}, **changes}
    made = recipe(folder, train={"steps": steps, "prompts_per_step": 4}, rollout={"max_tokens": 3},
                  output=str(folder / output), **changes)  # fmt: skip
    (folder / "known.py").write_text(VERIFIER)
    data = {**made.model_dump(), "verifiers": {"default": {"known": {"kind": f"{folder / 'known.py'}:Known"}}}}
    return Recipe.model_validate(data)


def saved(folder: Path, step: int) -> dict[str, Any]:
    path = folder / "checkpoints" / f"step-{step:06d}" / "state" / "trainer.json"
    return json.loads(path.read_text())  # type: ignore[no-any-return]


def history_of(folder: Path, step: int) -> PromptHistory:
    made = PromptHistory()
    made.load_state_dict(saved(folder, step)["history"])
    return made


@pytest.fixture(scope="module", params=[{}, REFILL], ids=["plain", "refill"])
def unbroken(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("curriculum")
    changes = {"algorithm": request.param} if request.param else {}
    tried: list[int] = []

    def noting(prompts: Any, *others: Any) -> Any:
        tried.extend(prompt.index for prompt in prompts)
        return attempts(prompts, *others)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(online, "attempts", noting)
        train(wanted(folder, "unbroken", **changes), quiet())
    (folder / "tried.json").write_text(json.dumps(tried))
    return folder, changes


def assert_same(folder: Path, name: str) -> None:
    assert metrics_of(folder / name) == metrics_of(folder / "unbroken")
    assert_equal_weights(weights_of(folder / name, STEPS), weights_of(folder / "unbroken", STEPS))
    assert saved(folder / name, STEPS) == saved(folder / "unbroken", STEPS)


def test_every_group_that_was_sampled_is_recorded(unbroken: tuple[Path, dict[str, Any]]) -> None:
    """Rows are a1..a5, b1..b5, ..., e5; those that a refill left out count as well, the c's cannot be judged."""
    folder, changes = unbroken
    records = history_of(folder / "unbroken", STEPS).records
    tried = Counter(json.loads((folder / "tried.json").read_text()))
    assert {index: record.groups for index, record in records.items()} == {
        index: groups for index, groups in tried.items() if not 10 <= index < 15
    }
    assert (sum(tried.values()) > 4 * STEPS) is bool(changes) and set(tried) & set(range(10, 15))
    for index, record in records.items():
        assert record.judged == 4 * record.groups
        if index < 10:
            expected = (record.judged, record.groups) if index < 5 else (0, -record.groups)
            assert (record.right, record.streak) == expected


def test_solved_prompts_make_room(unbroken: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = unbroken
    last = read_metrics(folder / "unbroken")[-1].metrics
    history = history_of(folder / "unbroken", STEPS)
    assert last["curriculum/seen"] == len(history.records)
    rates = [record.success for record in history.records.values()]
    assert last["curriculum/success"] == sum(rates) / len(rates)
    assert last["curriculum/passed_over_right"] > 0
    history.settings = wanted(folder).curriculum
    passed = [history.passed_over(index) for index in history.records]
    assert last["curriculum/passed_over_right"] == passed.count("right")
    assert last["curriculum/passed_over_wrong"] == passed.count("wrong")


def test_without_filters_the_order_is_the_old_one_and_nothing_is_shown(tmp_path: Path) -> None:
    first = wanted(tmp_path, "run", curriculum={}, log={"rollouts_every": 1}, steps=4)
    train(first, quiet())
    assert not [name for row in read_metrics(tmp_path / "run") for name in row.metrics if "curriculum" in name]
    assert sum(one.groups for one in history_of(tmp_path / "run", 4).records.values()) > 0
    assert saved(tmp_path / "run", 4)["prompts"]["position"] == [16]


def test_the_first_step_has_the_first_prompts_of_the_order(tmp_path: Path) -> None:
    """Nothing is passed over yet, so the filters change nothing."""
    for name, filters in (("off", {}), ("on", FILTERS)):
        train(wanted(tmp_path, name, steps=1, curriculum=filters), quiet())
    assert saved(tmp_path / "on", 1)["prompts"] == saved(tmp_path / "off", 1)["prompts"]
    assert list(history_of(tmp_path / "on", 1).records) == list(history_of(tmp_path / "off", 1).records)


@pytest.mark.parametrize("stop", [1, 5])
def test_a_resumed_run_is_the_unbroken_one(unbroken: tuple[Path, dict[str, Any]], stop: int) -> None:
    folder, changes = unbroken
    name = f"resumed-{stop}"
    train(wanted(folder, name, steps=stop, **changes), quiet())
    assert saved(folder / name, stop) == saved(folder / "unbroken", stop)
    train(wanted(folder, name, **changes), quiet())
    assert_same(folder, name)


@pytest.mark.parametrize("number", [1, 4])
def test_a_run_that_was_stopped_inside_a_step_is_the_unbroken_one(
    unbroken: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    folder, changes = unbroken
    plain, name, before = online.sample, f"stopped-{number}", number - 1

    def stopping(run: Any, prompts: Any, step: int, first: int) -> Any:
        if step == number:
            run.stop.signal = 15
        return plain(run, prompts, step, first)

    with monkeypatch.context() as patch:
        patch.setattr(online, "sample", stopping)
        with pytest.raises(Interrupted, match=f"stopped after step {before}"):
            train(wanted(folder, name, checkpoint={"every": 0}, **changes), quiet())
    if before:
        assert saved(folder / name, before)["history"] == saved(folder / "unbroken", before)["history"]
    train(wanted(folder, name, checkpoint={"every": 0}, **changes), quiet())
    assert_same(folder, name)


def test_a_checkpoint_without_a_history_goes_on(tmp_path: Path) -> None:
    train(wanted(tmp_path, steps=2), quiet())
    state = saved(tmp_path / "run", 2)
    del state["history"]
    (tmp_path / "run" / "checkpoints" / "step-000002" / "state" / "trainer.json").write_text(json.dumps(state))
    train(wanted(tmp_path, steps=3), quiet())
    assert history_of(tmp_path / "run", 3).step == 3


def test_the_report_of_a_run(unbroken: tuple[Path, dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    folder, _ = unbroken
    records = history_of(folder / "unbroken", STEPS).records
    prompt_report(folder / "unbroken", 2, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["step"] == STEPS and {one["index"] for one in found["prompts"]} == set(records)
    rates = [one["success"] for one in found["prompts"]]
    assert rates == sorted(rates)
    never = [one for one in found["prompts"] if one["success"] == 0]
    assert [one["judged"] for one in never] == sorted((one["judged"] for one in never), reverse=True)
    hardest = found["prompts"][0]
    assert hardest["question"] == f"say {'abcde'[hardest['index'] // 5]}{hardest['index'] % 5 + 1}:"
    assert hardest["row"] == hardest["index"] + 1
    assert {**records[hardest["index"]]._asdict()}.items() <= hardest.items()
    (source,) = found["sources"].values()
    assert source["seen"] == len(records) and source["never_right"] == len(never)
    prompt_report(folder / "unbroken", 2)
    text = capsys.readouterr().out
    assert "the hardest prompts" in text and "the easiest prompts" in text and hardest["question"] in text
    assert text.count("say ") == 4
