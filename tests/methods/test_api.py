"""Quatrain as a stranger's session uses it: scripts, `python -`, cells of a notebook; settings in every form."""

import asyncio
import io
import linecache
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import pandas
import pytest
import yaml

import quatrain
from quatrain.config import OfflineRecipe, Recipe
from quatrain.data.sources import load_rows
from quatrain.errors import ResumeError, SettingError
from quatrain.methods import online
from quatrain.methods.session import OFFLINE_SECTIONS, SECTIONS, Keeper, session_recipe
from quatrain.methods.summary import summarise
from quatrain.recipe_file import load_recipe
from quatrain.telemetry.console import Console
from tests.runs import assert_equal_weights, metrics_of, recipe_file, weights_of
from tests.tiny import save_tiny

ROOT = Path(__file__).parents[2]
ROWS = [{"prompt": f"say {a}{b}:", "answer": "7"} for a in "abcde" for b in "12345"]
SESSION = """
import re
import quatrain
LETTERS = re.compile("[a-m]")

def share(text):
    return len(LETTERS.findall(text)) / max(1, len(text))

def low(completion, **columns):
    return share(completion)

rows = [{"prompt": f"say {a}{b}:", "answer": "7"} for a in "abcde" for b in "12345"]
result = quatrain.train(
    model="model", prompts=rows[6:], held_out=rows[:6], verifiers=low, steps=4, prompts_per_step=2, group_size=4,
    max_tokens=4, learning_rate=1e-2, checkpoint={"every": 1}, log={"tensorboard": False}, threads=1, output="OUTPUT",
    quiet=True,
)
print(result)
"""


def python(*arguments: str, folder: Path, text: str | None = None) -> str:
    """What a Python process in `folder` prints."""
    result = subprocess.run([sys.executable, *arguments], input=text, capture_output=True, text=True, cwd=folder,
                            timeout=900, env={**os.environ, "PYTHONPATH": str(ROOT)})  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result.stdout


def in_session(text: str, filename: str = "<stdin>") -> dict[str, Any]:
    """The names of a session that has run `text` in the current folder."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, filename, "exec"), names)
    return names


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a stranger works; FOLDER/unbroken holds the run of SESSION."""
    folder = tmp_path_factory.mktemp("stranger")
    save_tiny(folder / "model")
    before = Path.cwd()
    os.chdir(folder)
    try:
        in_session(SESSION.replace("OUTPUT", "unbroken"))
    finally:
        os.chdir(before)
    return folder


def killed_in_step(step: int, text: str, folder: Path) -> None:
    """Run `text` in a forked process that kills itself in the middle of `step`."""
    child = os.fork()
    if child:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        return
    try:
        online_step = online.online_step

        def last(run: Any, number: int) -> Any:
            if number == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return online_step(run, number)

        online.online_step = last
        os.chdir(folder)
        in_session(text)
    finally:
        os._exit(1)


# --- whole sessions ---------------------------------------------------------------------------------------------------


def test_a_killed_session_is_resumed_by_another_bit_for_bit(folder: Path) -> None:
    """Rows and function exist only in the first process; the second is `python -`, which has no source file."""
    text = SESSION.replace("OUTPUT", "resumed")
    killed_in_step(3, text, folder)
    assert list(metrics_of(folder / "resumed")) == [1, 2]
    printed = python("-", folder=folder, text=text)
    assert "run resumed: 4 steps" in printed and "held-out (6 prompts)" in printed
    assert metrics_of(folder / "resumed") == metrics_of(folder / "unbroken")
    assert_equal_weights(weights_of(folder / "resumed", 4), weights_of(folder / "unbroken", 4))


def test_the_saved_recipe_needs_no_session(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `quatrain train RUN/recipe.yaml` does goes on where a session was killed."""
    killed_in_step(2, SESSION.replace("OUTPUT", "whole"), folder)
    monkeypatch.chdir(folder)
    online.train(load_recipe("whole/recipe.yaml"), Console(stream := io.StringIO(), terminal=False))
    assert "continuing whole after step 1" in stream.getvalue()
    assert_equal_weights(weights_of(folder / "whole", 4), weights_of(folder / "unbroken", 4))


def test_another_function_is_another_recipe(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    kept = sorted(Path("unbroken/session").iterdir())
    with pytest.raises(ResumeError, match=r"unbroken holds a run of another recipe \(verifiers\.default\.low\.kind"):
        in_session(SESSION.replace("OUTPUT", "unbroken").replace("a-m", "a-n"))
    with pytest.raises(ResumeError, match=r"another recipe \(prompts"):
        in_session(SESSION.replace("OUTPUT", "unbroken").replace('"7"', '"8"'))
    assert sorted(Path("unbroken/session").iterdir()) == kept, "nothing is written into another run's folder"


def test_cells_of_a_notebook(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel has a running event loop, and the source of its cells."""
    monkeypatch.chdir(folder)
    definitions, call = SESSION.replace("OUTPUT", "notebook").replace("steps=4", "steps=1").split("\nrows =")
    names: dict[str, Any] = {"__name__": "__main__"}

    async def cell(number: int, text: str) -> None:
        name = f"<cell {number}>"
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        exec(compile(text, name, "exec"), names)

    async def kernel() -> None:
        await cell(1, definitions)
        await cell(2, f"rows ={call}")

    asyncio.run(kernel())
    assert "<img" in names["result"]._repr_html_()
    [file] = Path("notebook/session").glob("low-*.py")
    assert "#     def low(completion, **columns):\n#         return share(completion)\n" in file.read_text()


def test_the_result_is_the_one_that_is_loaded(folder: Path) -> None:
    result = quatrain.load_run(folder / "unbroken")
    assert result.steps == 4 and list(result.evaluations) == [0, 4]
    found = result.gain("part low")
    assert found is not None and found["prompts"] == 6
    assert result.completions(4)[0]["parts"].keys() == {"low"}
    assert result.metrics["reward/mean"][-1] == pytest.approx(
        sum(row["score"] for row in result.completions(4)) / 8, abs=1e-12
    )


def test_evaluate_with_rows_and_a_function(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    names = in_session("def low(completion): return float(completion[:1] < 'n')")
    report = quatrain.evaluate("unbroken", task=ROWS[:3], verifier=names["low"], samples=2, temperature=1.0, quiet=True)
    assert report.to_json()["prompts"] == 3 and len(report.modes["sampled"].answers) == 6
    for answer in report.modes["sampled"].answers:
        assert answer.reward == float(answer.completion[:1] < "n")


@pytest.mark.parametrize(
    "task", [[], [{"source": "a.jsonl"}, {"source": "b.jsonl"}], {"source": "a.jsonl", "limit": 2}]
)
def test_a_task_of_which_a_part_would_be_dropped(task: Any) -> None:
    with pytest.raises(SettingError, match=r"^task: got .*, need rows, or one source without settings of its own"):
        quatrain.evaluate("unbroken", task=task, quiet=True)


def test_the_summary_of_the_command_line_reads_a_result(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summarise(quatrain.load_run(folder / "unbroken"), Console(terminal=False))
    assert "6 held-out prompts" in (printed := capsys.readouterr().out) and "quatrain sample" in printed


# --- the README's script ----------------------------------------------------------------------------------------------


def readme_script() -> str:
    """The first block of Python under "From Python"."""
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("## From Python\n")[2]
    return re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)[0]


def test_the_readme_prints_the_recipe() -> None:
    assert readme_script() == (ROOT / "recipes" / "ten_lines.py").read_text(encoding="utf-8")


def test_the_readme_script_runs_as_printed(folder: Path) -> None:
    """With the tiny model, and less of everything."""
    text = readme_script()
    changes = {
        '"smollm2-135m"': '"model"', '"steps": 24': '"threads": 1, "steps": 1', "[:96]": "[:4]",
    }  # fmt: skip
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    (folder / "script.py").write_text(text)
    printed = python("script.py", folder=folder)
    assert "run runs/larger: 1 step" in printed and "right answer" in printed
    assert (folder / "runs/larger/curves.png").read_bytes().startswith(b"\x89PNG")


# --- settings ---------------------------------------------------------------------------------------------------------


def settled(*arguments: str, **settings: Any) -> Recipe:
    """The recipe of a call; a part is taken for granted unless it is given."""
    given = {"model": "m", "prompts": "rows.jsonl", "verifiers": "numeric", **settings}
    return session_recipe(None, arguments, given)[0]


@pytest.mark.parametrize(("top", "sections"), [(Recipe, SECTIONS), (OfflineRecipe, OFFLINE_SECTIONS)])
def test_every_setting_of_a_section_has_a_name_of_its_own(top: Any, sections: Any) -> None:
    names = [name for section in sections.values() for name in section.model_fields]
    assert names and len(names) == len({*names} - {*top.model_fields})


def test_settings_go_where_they_belong() -> None:
    recipe = settled(
        "rollout.top_p=0.9", steps=7, preset="dr_grpo", group_size=4, kl={"placement": "none"}, seed=3,
        train={"learning_rate": 1e-4}, evaluation={"every": 2}, output=Path("runs/x"),
    )  # fmt: skip
    assert (recipe.train.steps, recipe.train.learning_rate, recipe.seed, recipe.output) == (7, 1e-4, 3, "runs/x")
    assert (recipe.algorithm.preset, recipe.algorithm.scale, recipe.rollout.group_size) == ("dr_grpo", "none", 4)
    assert (recipe.rollout.top_p, recipe.evaluation.every, recipe.model.path) == (0.9, 2, "m")
    assert recipe.prompts[0].source == "rows.jsonl" and recipe.verifiers["default"]["numeric"].kind == "numeric"


def test_a_recipe_with_keywords_and_overrides(tmp_path: Path) -> None:
    path = recipe_file(tmp_path)
    plain = load_recipe(path, ["train.steps=9"])
    assert session_recipe(path, ["train.steps=9"], {})[0] == plain
    recipe, _ = session_recipe(path, ["train.steps=9"], {"steps": 5, "preset": "gspo", "train": {"epochs": 2}})
    assert (recipe.train.steps, recipe.train.epochs, recipe.train.prompts_per_step) == (9, 2, 2)
    assert recipe.algorithm.ratio == "sequence" and recipe.verifiers == plain.verifiers
    assert session_recipe(yaml.safe_load(path.read_text()), [], {"steps": 9})[0] == plain


def low(completion: str) -> float:
    return len(completion)


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ("numeric", {"numeric": "numeric"}),
        ("mine.py:short", {"short": "mine.py:short"}),
        (low, {"low": "low"}),
        (lambda completion: len(completion), {"reward": "reward"}),
        (["numeric", low], {"numeric": "numeric", "low": "low"}),
        ({"kind": low, "weight": 0.5}, {"low": "low"}),
        ({"right": "numeric", "short": {"kind": low}}, {"right": "numeric", "short": "low"}),
        ({"default": {"right": {"kind": "numeric"}}}, {"right": "numeric"}),
    ],
)
def test_forms_of_verifiers(given: Any, parts: dict[str, str]) -> None:
    found = settled(verifiers=given, output="runs/y").verifiers["default"]
    for (name, part), (wanted, kind) in zip(found.items(), parts.items(), strict=True):
        kept = re.fullmatch(r"runs/y/session/(\w+)-[0-9a-f]{8}\.py:\1", part.kind)
        assert (name, kept[1] if kept else part.kind) == (wanted, kind)


def test_several_rubrics() -> None:
    recipe = settled(
        verifiers={"a": {"right": "numeric"}, "b": {"low": low}}, prompts={"source": ROWS, "verifier": "b"}
    )
    assert list(recipe.verifiers) == ["a", "b"] and recipe.prompts[0].verifier == "b"


@pytest.mark.parametrize(
    "given",
    [
        ROWS,
        (dict(row) for row in ROWS),
        {"source": ROWS, "prompt": "prompt"},
        [{"source": ROWS}],
        [{**row, "numbers": numpy.arange(2)} for row in ROWS],
        pandas.DataFrame(ROWS),
    ],
    ids=["rows", "generator", "source", "sources", "arrays", "frame"],
)
def test_forms_of_prompts(given: Any, tmp_path: Path) -> None:
    recipe, keeper = session_recipe(
        None, [], {"model": "m", "prompts": given, "verifiers": "numeric", "output": tmp_path / "r"}
    )
    keeper.write()
    rows = load_rows(recipe.prompts[0])
    assert [(row.prompt, row.columns["answer"]) for row in rows] == [(row["prompt"], "7") for row in ROWS]
    assert rows[0].columns.get("numbers", [0, 1]) == [0, 1]


def test_texts_are_prompts_and_files_are_sources(tmp_path: Path) -> None:
    given = {"prompts": ["one", "two"], "held_out": tmp_path / "a.jsonl", "output": tmp_path / "r"}
    recipe, keeper = session_recipe(None, [], {"model": "m", "verifiers": "numeric", **given})
    keeper.write()
    assert [row.prompt for row in load_rows(recipe.prompts[0])] == ["one", "two"]
    assert recipe.held_out[0].source == str(tmp_path / "a.jsonl") and recipe.prompts[0].name == "prompts"


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"stepz": 3}, r"stepz: got an unknown keyword, need a known setting; did you mean 'steps'\?"),
        ({"steps": 3, "train": {"steps": 4}}, r"steps: got 3, need one of steps and train\['steps'\]"),
        ({"steps": 0}, r"train\.steps: got 0, need greater than 0"),
        ({"preset": "grop"}, r"algorithm\.preset: got grop, .* did you mean 'grpo'"),
        ({"verifiers": None}, r"verifiers: got None"),
        ({"verifiers": [low, low]}, r"verifiers: got 2 parts called low, need a name for each"),
        ({"verifiers": 3}, r"verifiers\.default\.int: got the function int, need a function"),
        ({"prompts": 3}, r"prompts: got 3, need rows, texts, a file or a source"),
        ({"prompts": [3]}, r"prompts\[0\]: got 3, need a mapping of columns, or a text"),
        ({"prompts": ["rows.jsonl"]}, r"prompts\[0\]: got rows\.jsonl, need the text of a prompt; for files"),
        ({"prompts": [{"prompt": "a", "x": {1, 2}}]}, r"prompts\[0\]\.x: got set \{1, 2\}, need text, a number"),
        ({"held_out": [{"prompt": "a", 3: 4}]}, r"held_out\[0\]: got the keys .*, need keys that are texts"),
        ({"prompts": []}, r"prompts: got \[\], need"),
    ],
)
def test_mistakes_are_one_line(settings: dict[str, Any], line: str) -> None:
    with pytest.raises(SettingError, match=f"^{line}") as caught:
        settled(**settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("recipe", [3, ["a.yaml"]])
def test_what_is_no_recipe(recipe: Any) -> None:
    with pytest.raises(SettingError, match=r"^recipe: got .*, need a YAML file or a mapping of settings"):
        quatrain.train(recipe)


def test_values_that_contain_themselves(tmp_path: Path) -> None:
    row: dict[str, Any] = {"prompt": "a"}
    row["row"] = row
    with pytest.raises(SettingError, match=r"prompts: got rows that contain themselves"):
        Keeper(tmp_path).rows([row], "prompts")


# --- scores -----------------------------------------------------------------------------------------------------------


def test_scores_of_rows(tmp_path: Path) -> None:
    rows = [{"prompt": "q", "completion": "it is 4", "answer": 4}, {"completion": "5 or 6", "answer": "7"}]
    short = in_session("short = lambda completion: len(completion) < 7")["short"]
    scores = quatrain.score({"right": "numeric", "short": {"kind": short, "weight": 0.5}}, rows)
    assert [score.value for score in scores] == [1.0, 0.5] and scores[0].parts == {"right": 1.0, "short": 0.0}
    path = tmp_path / "rows.jsonl"
    path.write_text('{"completion": "4", "answer": 4}\n')
    assert quatrain.score("numeric", path)[0].value == 1.0
    with pytest.raises(SettingError, match=r"rows\[0\]: got .*, need a mapping with the text 'completion'"):
        quatrain.score("numeric", [{"text": "4"}])
    with pytest.raises(SettingError, match=r"verifiers\.default\.numeric\.wieght: got an unknown key"):
        quatrain.score({"kind": "numeric", "wieght": 2}, rows)


def test_a_mapping_by_keyword_is_laid_on_the_recipes_own() -> None:
    base = {"algorithm": {"preset": "ppo", "kl": {"placement": "reward", "target": None}}}
    recipe = session_recipe({**base, "model": "m", "prompts": [{"source": "rows.jsonl"}], "verifiers": "numeric"}, (),
                            {"kl": {"coefficient": 0.1}})[0]  # fmt: skip
    assert isinstance(recipe, Recipe)
    assert (recipe.algorithm.kl.coefficient, recipe.algorithm.kl.target) == (0.1, None)
