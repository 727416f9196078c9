"""Every command on a tiny run, from the recipe to the exported folder."""

import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from quatrain.config import OfflineRecipe, Recipe
from quatrain.methods.subject import Asking, load_subject, settle
from quatrain.recipe_file import load_recipe
from tests.cli.test_mistakes import quatrain
from tests.runs import metrics_of, recipe_file, start, weights_of

COMMANDS = ("train", "probe", "eval", "sample", "score", "export")
LABEL = Path(__file__).parents[2] / "recipes" / "label.yaml"
RECIPES = sorted({*(Path(__file__).parents[2] / "recipes").glob("*.yaml")} - {LABEL})
IDS = torch.arange(5, 25)[None]


def output(capfd: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """What a command that must succeed prints."""
    capfd.readouterr()
    code = quatrain(*arguments)
    captured = capfd.readouterr()
    assert code == 0, captured
    return captured.out


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example_that_names_the_command(capfd: pytest.CaptureFixture[str], command: str) -> None:
    assert f"Example: quatrain {command} " in output(capfd, command, "--help")


def test_help_lists_every_command(capfd: pytest.CaptureFixture[str]) -> None:
    text = output(capfd, "--help")
    assert all(re.search(rf"^\s+{command}\s", text, re.M) for command in COMMANDS)


def test_the_schema_is_that_of_the_recipe(capfd: pytest.CaptureFixture[str]) -> None:
    both = json.loads(output(capfd, "train", "--schema"))
    assert {"Recipe", "OfflineRecipe"} <= set(both["$defs"]) and len(both["anyOf"]) == 2
    for path, kind in (("demo", Recipe), ("dpo-hh", OfflineRecipe)):
        schema = json.loads(output(capfd, "train", str(RECIPES[0].parent / f"{path}.yaml"), "--schema"))
        assert schema == kind.model_json_schema() and set(schema["properties"]) == set(kind.model_fields)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_passes_a_dry_run(
    path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    root = path.parents[1]
    data = Path(os.environ.get("QUATRAIN_DATA") or root.parent / "shared" / "data")
    monkeypatch.setenv("QUATRAIN_DATA", str(data))
    monkeypatch.setenv("QUATRAIN_CACHE", str(tmp_path))  # the embedded model is not converted for this
    monkeypatch.setattr("quatrain.methods.dry_run._render_one", lambda *_: None)
    monkeypatch.setattr("quatrain.methods.dry_run._render_examples", lambda *_: None)
    monkeypatch.chdir(root)
    recipe = load_recipe(path)
    sources = recipe.data if isinstance(recipe, OfflineRecipe) else recipe.prompts
    files = [Path(source.source) for source in (*sources, *recipe.held_out)]
    missing = [file for file in files if file.suffix in (".jsonl", ".parquet") and not file.exists()]
    if missing:
        pytest.skip(f"data that is not here: {missing[0]}")
    text = output(capfd, "train", path, "--dry-run")
    assert "the recipe is whole" in text
    assert isinstance(recipe, OfflineRecipe) or "none of them is a training prompt" in text


def test_a_recipe_for_labelling_is_sent_to_its_command(capfd: pytest.CaptureFixture[str]) -> None:
    assert quatrain("train", LABEL, "--dry-run") == 1
    assert "run it with `quatrain label`" in capfd.readouterr().err


def test_a_dry_run_reads_data_and_renders_a_prompt(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = recipe_file(tmp_path, held_out=[{"source": str(tmp_path / "test.jsonl")}])
    text = output(capfd, "train", path, "--dry-run")
    assert "2 prompts x 4 completions = 8 completions a step; 8 / 8 per update x 1 epoch(s)" in text
    assert "verifiers: default.letter" in text and "first prompt, 7 tokens:\nsay a1:" in text
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module", params=["full", "lora"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bool]:
    """A folder with a recipe and its finished run."""
    folder = tmp_path_factory.mktemp("commands")
    lora = request.param == "lora"
    path = recipe_file(
        folder, model={"lora": {"rank": 4}} if lora else {}, train={"steps": 4, "learning_rate": 3e-2},
        held_out=[{"source": str(folder / "test.jsonl")}], checkpoint={"every": 2},
    )  # fmt: skip
    assert quatrain("train", path) == 0
    return folder, lora


def test_train_tells_what_it_did(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = recipe_file(tmp_path, held_out=[{"source": str(tmp_path / "test.jsonl")}])
    text = output(capfd, "train", path, "train.steps=2")
    assert re.search(r"^\s*2/2 ", text, re.M) and "6 held-out prompts, 95 % bootstrap intervals" in text
    assert f"quatrain sample {tmp_path / 'run'}" in text.replace("\n", "")
    assert "continuing" not in text
    assert "continuing" in output(capfd, "train", path, "train.steps=3")
    assert list(metrics_of(tmp_path / "run")) == [1, 2, 3]


def test_probe(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text = output(capfd, "probe", recipe_file(tmp_path), "--prompts", "3")
    assert "3 prompts x 4 completions" in text and "informative groups" in text
    assert "warning: only" in text or "good: " in text
    assert not (tmp_path / "run").exists()


def test_probe_of_a_run(trained: tuple[Path, bool], capfd: pytest.CaptureFixture[str]) -> None:
    folder, _ = trained
    text = output(capfd, "probe", folder / "run", "--prompts", "2")
    assert "after step 4: prompts by source" in text and text.count("say ") == 4
    assert len(json.loads(output(capfd, "probe", folder / "run", "--json"))["prompts"]) == 8
    assert quatrain("probe", folder / "run", "seed=1") != 0


def test_eval_of_a_run(trained: tuple[Path, bool], capfd: pytest.CaptureFixture[str]) -> None:
    folder, _ = trained
    text = output(capfd, "eval", folder / "run")
    assert "6 prompts" in text and "greedy: 1 completion a prompt at temperature 0" in text and "pass@1" in text
    found = json.loads(output(capfd, "eval", folder / "run", "--samples", "4", "--json", "--limit", "3"))
    assert found["prompts"] == 3 and found["target"] == f"{folder / 'run'} at step 4"
    assert {"pass@1", "pass@2", "pass@4", "mean@4", "reward"} <= set(found["sampled"]["measures"])


def test_eval_is_what_the_run_measured(trained: tuple[Path, bool], capfd: pytest.CaptureFixture[str]) -> None:
    folder, _ = trained
    for step in (0, 4):
        saved = json.loads((folder / "run" / "evaluations" / f"step-{step:06d}.json").read_text())
        expected = sum(answer["reward"] for answer in saved["answers"]) / len(saved["answers"])
        found = json.loads(output(capfd, "eval", folder / "run", "--json", "--step", str(step)))
        assert found["greedy"]["measures"]["reward"]["value"] == pytest.approx(expected, abs=1e-12)


def test_eval_of_a_model(trained: tuple[Path, bool], capfd: pytest.CaptureFixture[str]) -> None:
    folder, lora = trained
    start = json.loads(output(capfd, "eval", folder / "run", "--json", "--step", "0"))
    found = json.loads(output(capfd, "eval", folder / "model", "--recipe", folder / "recipe.yaml", "--json"))
    assert found["greedy"]["measures"] == start["greedy"]["measures"]
    if not lora:
        text = output(
            capfd, "eval", folder / "model", "--task", folder / "test.jsonl", "--verifier", "exact", "--json",
            "--set", "rollout.max_tokens=6",
        )  # fmt: skip
        assert json.loads(text.splitlines()[-1])["prompts"] == 6


def test_sample(trained: tuple[Path, bool], capfd: pytest.CaptureFixture[str]) -> None:
    folder, _ = trained
    text = output(capfd, "sample", folder / "run", "--prompts", "2")
    assert text.count("rewards: ") == 2 and text.count("best (") == 2
    rewards = [[float(value) for value in line.split()[1:]] for line in text.splitlines() if line.startswith("rewards")]
    assert all(len(row) == 4 for row in rewards)
    for row in rewards:
        assert f"best ({max(row):g})" in text and f"worst ({min(row):g})" in text


def test_score(trained: tuple[Path, bool], capfd: pytest.CaptureFixture[str]) -> None:
    folder, _ = trained
    (folder / "answers.jsonl").write_text('{"completion": "aayy"}\n{"completion": "zz"}\n')
    lines = output(capfd, "score", f"{folder / 'letter.py'}:Letter", folder / "answers.jsonl").splitlines()
    assert [json.loads(line)["value"] for line in lines] == [0.5, 0.0]
    lines = output(
        capfd, "score", f"{folder / 'letter.py'}:Letter", folder / "answers.jsonl", "--set", "letters=z"
    ).splitlines()
    assert [json.loads(line)["value"] for line in lines] == [0.0, 1.0]


def checkpoint_logits(run: Path, step: int | None = None) -> torch.Tensor:
    with torch.no_grad():
        return load_subject(str(run), settle(str(run), Asking()), step).lm.module(IDS).logits


@pytest.mark.parametrize("step", [None, 2])
def test_an_export_is_a_plain_folder_with_the_same_logits(
    trained: tuple[Path, bool], tmp_path: Path, capfd: pytest.CaptureFixture[str], step: int | None
) -> None:
    folder, lora = trained
    chosen = [] if step is None else ["--step", str(step)]
    text = output(capfd, "export", folder / "run", "--to", tmp_path / "deep" / "exported", *chosen)
    exported = tmp_path / "deep" / "exported"
    assert f"{'adapter' if lora else 'model'} of {folder / 'run'} written to {exported}" in text
    expected = checkpoint_logits(folder / "run", step)
    if lora:
        from peft import PeftModel

        module: Any = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder / "model"), exported)
    else:
        module = AutoModelForCausalLM.from_pretrained(exported)
    with torch.no_grad():
        assert torch.equal(module.eval()(IDS).logits, expected)
    assert AutoTokenizer.from_pretrained(exported)("2+2=").input_ids
    assert not torch.equal(expected, checkpoint_logits(folder / "run", 0))
    other = checkpoint_logits(folder / "run", 2 if step is None else None)
    assert not torch.equal(expected, other)


def test_a_merged_export_needs_no_adapter(
    trained: tuple[Path, bool], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, lora = trained
    if not lora:
        pytest.skip("nothing to merge in a full run")
    output(capfd, "export", folder / "run", "--to", tmp_path / "merged", "--merge")
    module = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    with torch.no_grad():
        torch.testing.assert_close(module(IDS).logits, checkpoint_logits(folder / "run"), rtol=1e-4, atol=1e-5)
    assert not list((tmp_path / "merged").glob("adapter*"))
    text = output(
        capfd, "eval", tmp_path / "merged", "--recipe", folder / "recipe.yaml", "--json", "--set", "model.lora=null"
    )
    assert json.loads(text.splitlines()[-1])["prompts"] == 6


def test_ctrl_c_in_a_terminal_saves_and_says_how_to_go_on(tmp_path: Path) -> None:
    """The whole way once, in a process of its own."""
    path = recipe_file(tmp_path, model={"lora": {"rank": 2}}, train={"steps": 100_000}, checkpoint={"every": 0})
    process = start("train", str(path))
    log = tmp_path / "run" / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not (log.exists() and log.read_text().count("\n") >= 2) and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    lines = err.splitlines()
    assert len(lines) == 1 and re.match(
        r"stopped after step \d+, saved in .*; run the same command to go on$", lines[0]
    )
    assert "stopping: the state is saved first" in out
    steps = list(metrics_of(tmp_path / "run"))
    assert weights_of(tmp_path / "run", steps[-1])
