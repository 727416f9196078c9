"""A user's mistake is one line on standard error and exit code 1, whatever the command; tracebacks are for --debug."""

import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml

from quatrain import cli
from quatrain.methods.online import train
from quatrain.telemetry.console import Console
from tests.runs import recipe, recipe_data, recipe_file, rows


def quatrain(*arguments: str | Path) -> int:
    """The command line in this process; the exit code."""
    before, hook = sys.argv, sys.excepthook
    sys.argv = ["quatrain", *map(str, arguments)]
    try:
        cli.main()
    except SystemExit as left:
        return left.code if isinstance(left.code, int) else 0 if left.code is None else 1
    finally:
        sys.argv, sys.excepthook = before, hook
    return 0


def mistake(capfd: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """The one line of a command that must fail."""
    capfd.readouterr()
    code = quatrain(*arguments)
    captured = capfd.readouterr()
    lines = captured.err.splitlines()
    assert code == 1, captured
    assert len(lines) == 1 and lines[0].startswith("error: "), captured.err
    assert "Traceback" not in captured.out
    return lines[0].removeprefix("error: ")


OVERRIDES = {
    "unknown key": ("train.stepps=3", "train.stepps: got an unknown key, need a known setting; did you mean 'steps'?"),
    "unknown section": ("trian.steps=3", "trian: got an unknown key, need a known setting; did you mean 'train'?"),
    "wrong type": ("train.steps=many", "train.steps: got many, need "),
    "fraction for a count": ("train.steps=2.5", "train.steps: got 2.5, need "),
    "out of range": ("train.learning_rate=-1", "train.learning_rate: got -1, need greater than 0"),
    "not a number": ("train.learning_rate=.nan", "train.learning_rate: got nan, need "),
    "no value": ("train.steps", "override: got train.steps, need key.sub=value"),
    "no key": ("=3", "override: got =3, need key.sub=value"),
    "no section": ("seed.sub=3", "seed: got {'sub': 3}, need a valid integer"),
    "list position": ("prompts.7.limit=3", "override prompts.7.limit: got 7, need a list position from 0 to 0"),
    "bad YAML": ("train.steps=[1", "override train.steps: got [1, need a YAML value"),
    "case C03 group of one": ("rollout.group_size=1", "rollout.group_size: got 1, need at least 2 for a group"),
    "updates": ("train.updates_per_step=3", "train.updates_per_step: got 3, need a divisor of train.prompts_per_step"),
    "greedy training": ("rollout.temperature=0", "rollout.temperature: got 0"),
    "preset": ("algorithm.preset=grop", "algorithm.preset: got grop, need a known preset; did you mean 'grpo'?"),
    "dtype": ("model.dtype=float16", "model.dtype: got float16, need "),
    "k1 in the loss": ("algorithm.kl={placement: loss, estimator: k1}", "algorithm.kl.estimator: got k1, need "),
    "variable": ("model.path=${NO_SUCH_VARIABLE}", "model.path: got ${NO_SUCH_VARIABLE}, need the environment"),
    "model path": ("model.path=/no/such/folder", "model.path: got /no/such/folder, need an existing folder"),
    "model": ("model=./nothing-here", "model.path: got ./nothing-here, need an existing folder"),
    "device": ("model.device=cuda:99", "model.device: got cuda:99, need a device of this machine"),
    "adapter targets": ("model.lora={targets: [nothing]}", "model.lora.targets: got ['nothing'], need "),
    "data file": ("prompts.0.source=/no/such/rows.jsonl", "prompts[0].source: got /no/such/rows.jsonl, need "),
    "kind of source": ("prompts.0.source=nowhere:x", "prompts[0].source: got nowhere, need a known task"),
    "column": ("prompts.0.prompt=question", "prompts[0].prompt: got "),
    "template column": ("prompts.0.template={q}", "prompts[0].template: got "),
    "verifier": ("verifiers={default: {a: {kind: mahtt}}}", "verifiers.default.a.kind: got mahtt, need a known ver"),
    "verifier setting": (
        "verifiers={default: {a: {kind: numeric, tolerence: 1}}}",
        "verifiers.default.a.tolerence: got an unknown key, need a known setting; ",
    ),
    "verifier file": ("verifiers={default: {a: {kind: no.py:f}}}", "verifiers.default.a.kind: got no.py:f, need "),
    "name of a verifier": ("prompts.0.verifier=defualt", "prompts[0].verifier: got defualt, need a name under verif"),
    "algorithm": ("algorithm.name=gpro", "algorithm.name: got gpro, need a known algorithm; did you mean 'grpo'?"),
    "engine": ("rollout.engine=vlm", "rollout.engine: got vlm, need a known engine"),
    "context beyond the model": ("rollout.max_context=4096", "rollout.max_context: got 4096, need at most the m"),
    "case C79 no room for an answer": ("rollout.max_tokens=64", "rollout.max_tokens: got 64"),
    "case C79 prompts fill the context": ("rollout.max_tokens=60 & held_out=[]", "prompts[0]: all 25 prompts of "),
    "held-out fills the context": ("evaluation.max_tokens=60", "held_out: all 6 prompts are longer than the 4 tokens"),
    "no room for a held-out answer": ("evaluation.max_tokens=70", "evaluation.max_tokens: got 70, need fewer than the"),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("mistakes")
    (found / "answers.jsonl").write_text('{"completion": "a", "answer": "a"}\n')
    recipe_file(found, train={"steps": 1}, held_out=[{"source": str(found / "test.jsonl")}])
    return found


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    """A finished run."""
    train(recipe(folder, train={"steps": 1}), Console(StringIO(), terminal=False))
    return folder / "run"


@pytest.mark.parametrize("name", OVERRIDES)
def test_a_wrong_setting(folder: Path, capfd: pytest.CaptureFixture[str], name: str) -> None:
    override, expected = OVERRIDES[name]
    line = mistake(capfd, "train", folder / "recipe.yaml", *override.split(" & "), f"output={folder / 'wrong'}")
    assert line.startswith(expected or ""), line


def test_no_setting_was_written_for_a_run_that_never_began(folder: Path) -> None:
    assert not (folder / "wrong" / "recipe.yaml").exists()


@pytest.mark.parametrize("command", ["train", "probe"])
def test_a_missing_recipe(capfd: pytest.CaptureFixture[str], command: str) -> None:
    assert mistake(capfd, command, "absent.yaml").startswith("recipe: got absent.yaml, need an existing YAML file")


@pytest.mark.parametrize("content", ["a: [", "just text", "- 1", "", "\x00"])
def test_a_recipe_that_is_none(tmp_path: Path, capfd: pytest.CaptureFixture[str], content: str) -> None:
    (tmp_path / "bad.yaml").write_text(content)
    assert mistake(capfd, "train", tmp_path / "bad.yaml").startswith("recipe: got ")


def test_a_recipe_without_a_model(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data = recipe_data(tmp_path)
    del data["model"]
    (tmp_path / "bad.yaml").write_text(yaml.safe_dump(data))
    assert mistake(capfd, "train", tmp_path / "bad.yaml").startswith("model: got nothing, need a value")


def test_a_row_that_is_no_json(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = recipe_file(tmp_path)
    (tmp_path / "train.jsonl").write_text('{"prompt": "a"}\n{"prompt": \n')
    assert "line 2" in mistake(capfd, "train", path)


def test_a_verifier_without_its_column(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = recipe_file(tmp_path, verifiers={"default": {"correct": {"kind": "exact"}}})
    rows(tmp_path / "train.jsonl", ["say a:", "say b:"])
    assert "has no column 'answer'" in mistake(capfd, "train", path)


def test_the_same_mistakes_without_weights(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert mistake(capfd, "train", folder / "recipe.yaml", "train.stepps=1", "--dry-run").startswith("train.stepps")
    source = f"held_out.0.source={folder / 'train.jsonl'}"
    assert "also trained on" in mistake(capfd, "train", folder / "recipe.yaml", source, "--dry-run")


WRONG_TARGETS: dict[str, tuple[list[str], str]] = {
    "eval of a folder that is no run": (["eval", "{folder}"], "target: got "),
    "eval of nothing": (["eval", "/no/such/run"], "target: got /no/such/run, need an online run, or a model with"),
    "sample of a folder that is no run": (["sample", "{folder}"], "target: got "),
    "a model that is not there": (
        ["eval", "/no/such/model", "--task", "{folder}/test.jsonl", "--verifier", "exact"],
        "model.path: got /no/such/model, need an existing folder",
    ),
    "an unknown verifier": (
        ["eval", "{folder}/model", "--task", "{folder}/test.jsonl", "--verifier", "exakt"],
        "verifiers.default.correct.kind: got exakt, need a known verifier; did you mean 'exact'?",
    ),
    "a task that is not there": (
        ["eval", "{folder}/model", "--task", "/no/rows.jsonl", "--verifier", "exact", "--set", "rollout.max_tokens=6"],
        "held_out[0].source: got /no/rows.jsonl, need ",
    ),
    "a set that nobody knows": (
        ["eval", "{folder}/model", "--task", "gsm9k"],
        "--task: got gsm9k, need a known set (gsm8k, mawps, reasoning-gym:TASK), FILE.jsonl",
    ),
    "a reasoning-gym task that is none": (
        ["eval", "{folder}/model", "--task", "reasoning-gym:chain_sums",
         "--set", "rollout.max_tokens=6", "--set", "evaluation.max_tokens=6"],
        "held_out[0].source: got reasoning-gym:chain_sums, need a reasoning-gym task; did you mean 'chain_sum'?",
    ),
    "results that are not there": (["eval", "/no/such.json"], "target: got /no/such.json, need a file of results"),
    "results that are none": (["eval", "{folder}/model/config.json"], "target: got "),
    "a step that is none": (["eval", "{run}", "--step", "last", "--task", "{folder}/test.jsonl"], "--step: got last"),
    "the step of a model": (
        ["eval", "{folder}/model", "--recipe", "{folder}/recipe.yaml", "--step", "1"],
        "--step: got 1, need a run, whose checkpoints have steps",
    ),
    "an output in no folder": (["eval", "{run}", "--out", "/no/such/folder/x.json"], "--out: got /no/such/folder"),
    "a step that is not saved": (["eval", "{run}", "--step", "7", "--task", "{folder}/test.jsonl"], "--step: got 7"),
    "a run without held-out prompts": (["eval", "{run}"], "held_out: got nothing, need held-out prompts"),
    "several greedy completions": (
        ["eval", "{run}", "--samples", "4", "--temperature", "0", "--task", "{folder}/test.jsonl"],
        "evaluation.samples: got 4, need 1 with temperature 0",
    ),
    "a bad setting": (["sample", "{run}", "--set", "rollout.max_tokns=3"], "rollout.max_tokns: got an unknown key"),
    "export of no run": (["export", "{folder}", "--to", "{folder}/x"], None),
    "export of a step that is not saved": (["export", "{run}", "--to", "{folder}/x", "--step", "9"], "--step: got 9"),
    "export onto a folder": (["export", "{run}", "--to", "{folder}/model"], "--to: got "),
    "export onto a file": (["export", "{run}", "--to", "{folder}/train.jsonl"], "--to: got "),
    "merge without adapters": (["export", "{run}", "--to", "{folder}/x", "--merge"], "--merge: got True, need a run"),
    "score with an unknown verifier": (["score", "numerik", "{folder}/answers.jsonl"], "verifier.kind: got numerik"),
    "score of nothing": (["score", "exact", "/no/rows.jsonl"], "rows: got /no/rows.jsonl, need a readable UTF-8 JSONL"),
    "score without completions": (["score", "exact", "{folder}/train.jsonl"], "train.jsonl line 1: got columns"),
    "score with an unknown setting": (["score", "exact", "{folder}/answers.jsonl", "--set", "a=1"], "verifier.a: got "),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_TARGETS)
def test_a_wrong_target(folder: Path, run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str) -> None:
    arguments, expected = WRONG_TARGETS[name]
    target = tmp_path if "no run" in name else folder
    line = mistake(capfd, *(text.format(folder=target, run=run) for text in arguments))
    assert line.startswith(expected or "run: got "), line
    assert not (folder / "x").exists()


def test_a_run_without_a_checkpoint(folder: Path, run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "recipe.yaml").write_text((run / "recipe.yaml").read_text())
    line = mistake(capfd, "eval", tmp_path, "--task", folder / "test.jsonl")
    assert "has no checkpoint yet" in line
    assert mistake(capfd, "export", tmp_path, "--to", tmp_path / "x").startswith("--step: got None, need a saved step")


def test_debug_shows_the_traceback(folder: Path) -> None:
    before = sys.argv
    sys.argv = ["quatrain", "train", str(folder / "recipe.yaml"), "train.stepps=3", "--debug"]
    try:
        with pytest.raises(Exception, match=r"train\.stepps") as caught:
            cli.main()
    finally:
        sys.argv = before
    assert not isinstance(caught.value, SystemExit) and len(caught.traceback) > 2


def test_a_fault_of_ours_is_one_line_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The hook that is in place when an error of no known kind reaches the top."""

    def fail(*_: Any) -> None:
        raise ZeroDivisionError("by accident")

    monkeypatch.setattr("quatrain.recipe_file.load_recipe", fail)
    monkeypatch.setattr(sys, "argv", ["quatrain", "train", str(folder / "recipe.yaml")])
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    try:
        cli.main()
    except ZeroDivisionError as error:
        sys.excepthook(type(error), error, error.__traceback__)
    assert capfd.readouterr().err == (
        "internal error: ZeroDivisionError: by accident; run again with --debug for the traceback\n"
    )


def test_unknown_commands_and_options_fail(capfd: pytest.CaptureFixture[str]) -> None:
    assert quatrain("trian") == quatrain("train", "x.yaml", "--stepps", "3") == quatrain("train") == 2
    assert quatrain("export", "run") == 2
    assert "Traceback" not in capfd.readouterr().err
