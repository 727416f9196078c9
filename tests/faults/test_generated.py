"""Generated recipes, overrides and rows: each is accepted or refused in one line, soon, and no file changes.

The gate runs some hundreds of them, `pytest -m full` 10,000; `QUATRAIN_GENERATED` sets another number.
"""

import contextlib
import hashlib
import io
import os
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quatrain import cli
from quatrain.config import Recipe, SourceConfig, VerifierConfig
from quatrain.data.overlap import check_disjoint, to_exclude
from quatrain.data.prompts import PromptStream, held_out_prompts
from quatrain.errors import QuatrainError
from quatrain.methods.dry_run import dry_run
from quatrain.methods.online import train
from quatrain.methods.run_folder import read_recipe, save_recipe
from quatrain.recipe_file import load_recipe
from quatrain.rewards import build_verifiers
from quatrain.telemetry.console import Console
from quatrain.types import Rollout
from tests.faults import generate
from tests.runs import recipe, recipe_data, rows, start
from tests.tiny import tiny_tokenizer

MANY = int(os.environ.get("QUATRAIN_GENERATED", "10000"))
SECONDS = 60.0  # of processor time that a case may take; prompts of a megabyte, rendered 14 times, take 20
LINE = 3000  # characters that a message may have
CHAT = "{% for m in messages %}{{ m['role'] }}={{ m['content'] }}?{% endfor %}"


class Tally:
    """What the cases ended in; `faults` are those that must not be."""

    def __init__(self) -> None:
        self.ends: Counter[str] = Counter()
        self.faults: list[str] = []
        self.slowest = 0.0

    def run(self, name: str, case: Callable[[], Any]) -> Any:
        """The case's value, or None when it was refused or failed."""
        began = time.process_time()
        try:
            value = case()
            self.ends["accepted"] += 1
            return value
        except QuatrainError as error:
            self.ends["refused"] += 1
            text = str(error)
            if len(text.splitlines()) != 1 or len(text) > LINE or not text.isprintable():
                self.faults.append(f"{name}: not one clear line: {text[:200]!r} ({len(text)} characters)")
        except Exception as error:  # noqa: BLE001 - this is what must not happen
            self.faults.append(f"{name}: {type(error).__name__}: {str(error)[:200]}")
        finally:
            seconds = time.process_time() - began
            self.slowest = max(self.slowest, seconds)
            if seconds > SECONDS:
                self.faults.append(f"{name}: took {seconds:.1f} s")
        return None

    def settle(self, least: int) -> None:
        """Fail with the faults; and when too few cases were accepted or refused for the test to mean anything."""
        shown = "\n".join(self.faults[:40])
        assert not self.faults, f"{len(self.faults)} faults, {dict(self.ends)}\n{shown}"
        assert min(self.ends["accepted"], self.ends["refused"]) >= least, self.ends
        print(f"\n{dict(self.ends)}, slowest {self.slowest:.2f} s")


def digest(folder: Path) -> str:
    """All files below a folder with their contents, but for what the interpreter compiled beside a verifier's file."""
    found = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if "__pycache__" not in path.parts):
        found.update(str(path).encode())
        found.update(path.read_bytes() if path.is_file() else b"folder")
    return found.hexdigest()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a user: model, rows, a verifier, a recipe."""
    folder = tmp_path_factory.mktemp("generated")
    recipe_data(folder)
    rows(folder / "some.jsonl", ["say some:"], answer="7", verifier="default", note="n")
    return folder


def base(home: Path) -> dict[str, Any]:
    """A recipe with every setting in it, as the resolved one of a run has them."""
    data = recipe(home, held_out=[{"source": str(home / "test.jsonl")}]).model_dump(mode="json")
    data["verifiers"]["default"]["exact"] = {"kind": "exact", "weight": 0.5}
    data["model"]["lora"] = {"rank": 2, "targets": "all-linear"}
    data["prompts"].append({"source": str(home / "some.jsonl"), "verifier": "default", "columns": {"gold": "answer"},
                            "options": {}})  # fmt: skip
    return data


def round_trip(wanted: Recipe, folder: Path) -> Recipe:
    """Saved with the run and read again, it is the same recipe."""
    save_recipe(folder, wanted)
    assert read_recipe(folder).model_dump(mode="json") == wanted.model_dump(mode="json"), "another recipe after saving"
    return wanted


def generated_recipes(home: Path, work: Path, count: int, seed: str) -> None:
    tally, whole, short = Tally(), base(home), recipe_data(home)
    before = digest(home)
    for number in range(count):
        draw = random.Random(f"{seed} {number}")
        data = draw.choice((whole, short, short))  # every setting, or as a user writes it
        path = work / "generated.yaml"
        path.write_bytes(content := generate.recipe_bytes(data, draw))
        overrides = [generate.override(data, draw) for _ in range(draw.choice((0, 0, 0, 1, 2)))]
        name = f"recipe {seed} {number}"
        loaded = tally.run(name, lambda path=path, overrides=overrides: load_recipe(path, overrides))
        assert path.read_bytes() == content
        if loaded is not None:
            if draw.random() < 0.4:
                tally.run(f"{name} saved", lambda loaded=loaded: round_trip(loaded, work))
            if draw.random() < 0.4:
                with contextlib.redirect_stdout(io.StringIO()):
                    tally.run(f"{name} tried", lambda loaded=loaded: dry_run(loaded))
    assert digest(home) == before
    tally.settle(count // 20)


def generated_rows(home: Path, work: Path, count: int, seed: str) -> None:
    tally, tokenizers = Tally(), (tiny_tokenizer(), tiny_tokenizer())
    tokenizers[1].chat_template = CHAT
    sections = {"default": {name: {"kind": name} for name in ("exact", "numeric", "json_object")},
                "other": {"exact": {"kind": "exact", "on_error": "stop"}}}  # fmt: skip
    held_out = SourceConfig(source=str(home / "test.jsonl"))
    with build_verifiers({name: {part: VerifierConfig.model_validate(one) for part, one in parts.items()}
                          for name, parts in sections.items()}) as verifiers:  # fmt: skip
        for number in range(count):
            draw = random.Random(f"{seed} {number}")
            path = write_rows(work, draw)
            before = digest(work)
            changes = {"verifier": "default", **draw.choice(generate.SOURCE_CHANGES)}
            source = SourceConfig.model_validate({"source": str(path), **changes})

            def use(source: SourceConfig = source, draw: random.Random = draw) -> None:
                tokenizer = draw.choice(tokenizers)
                kept = held_out_prompts([held_out], tokenizer, 60)
                drop = to_exclude([], "drop")
                stream = PromptStream([source], tokenizer, 0, 60, draw.choice(("skip", "error")),
                                      verifiers=sections, exclude=drop)  # fmt: skip
                check_disjoint(stream.rows(), [])
                state = stream.state_dict()
                prompts = stream.take(7)
                stream.load_state_dict(state)
                assert stream.take(7) == prompts and kept
                texts = ("7", "", draw.choice(("x" * 2000, "\x00", "1e999", "[" * 500, '{"a": 1}', "9" * 5000, "½")))
                verifiers.score([Rollout(prompt=prompt, group=0, index=index, trajectories=(), text=text,
                                         stop_reason="eos")
                                 for prompt in prompts for index, text in enumerate(texts)])  # fmt: skip

            tally.run(f"rows {seed} {number}", use)
            assert digest(work) == before
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    tally.settle(count // 20)


def write_rows(work: Path, draw: random.Random) -> Path:
    """A file of rows, or what stands in its place."""
    kind = draw.choice(("jsonl",) * 12 + ("parquet", "parquet", "junk.parquet", "folder", "absent", "csv"))
    path = work / f"rows.{'jsonl' if kind in ('folder', 'absent') else kind}"
    if kind == "folder":
        path.mkdir()
    elif kind == "parquet":
        write_parquet(path, draw)
    elif kind != "absent":
        path.write_bytes(generate.rows_bytes(draw))
    return path


def write_parquet(path: Path, draw: random.Random) -> None:
    """Columns of the kinds that Parquet has and JSON has not, and a file that is cut short."""
    import datetime
    import decimal

    import pyarrow as pa
    import pyarrow.parquet as pq

    odd = (b"\x80bytes", datetime.datetime(2024, 1, 2), decimal.Decimal("1.50"), None, [1, None], {"a": b"x"},
           float("nan"), "text", 2**62, datetime.timedelta(1))  # fmt: skip
    count = draw.choice((0, 1, 3))
    columns = {name: [draw.choice(odd)] * count for name in ("prompt", "answer", "verifier", "note")}
    if draw.random() < 0.6:
        columns["prompt"] = [f"say {number}:" for number in range(count)]
    pq.write_table(pa.table(columns), path)
    if draw.random() < 0.2:
        data = path.read_bytes()
        path.write_bytes(generate.change_bytes(data, draw))


def same_recipes(home: Path, work: Path, count: int, seed: str) -> None:
    data = base(home)
    wanted = Recipe.model_validate(data)
    for number in range(count):
        path = work / "same.yaml"
        path.write_bytes(generate.same_recipe_bytes(data, random.Random(f"{seed} {number}")))
        assert load_recipe(path) == wanted, path.read_text()


def quatrain(*arguments: str) -> int:
    """The command line in this process; what it would print a traceback for is raised."""
    before, hook = sys.argv, sys.excepthook
    sys.argv = ["quatrain", *arguments]
    try:
        cli.main()
    except SystemExit as left:
        return left.code if isinstance(left.code, int) else 0 if left.code is None else 1
    finally:
        sys.argv, sys.excepthook = before, hook
    return 0


def generated_commands(home: Path, work: Path, count: int, seed: str, capfd: pytest.CaptureFixture[str]) -> None:
    data, codes = base(home), Counter[int]()
    for number in range(count):
        draw = random.Random(f"{seed} {number}")
        path = work / "generated.yaml"
        path.write_bytes(generate.recipe_bytes(data, draw))
        overrides = [generate.override(data, draw) for _ in range(draw.choice((0, 1, 2)))]
        overrides = [text.replace("\x00", "0") for text in overrides if not text.startswith("-")]
        code = quatrain("train", str(path), *overrides, "--dry-run")
        captured = capfd.readouterr()
        codes[code] += 1
        assert code in (0, 1), (number, code, captured.err)
        lines = [line for line in captured.err.splitlines() if line]
        assert code == 0 or (len(lines) == 1 and lines[0].startswith("error: ")), (number, captured.err[:500])
        assert "Traceback" not in captured.out
    assert codes[1] > count // 2 > 0, codes


OTHERS = {"metrics.jsonl": "my,own,table\n1,2", "events.jsonl": "[1, 2]", "environment.json": "[]",
          "recipe.yaml": "- soup\n- bread\n"}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_a_folder_with_somebody_elses_files_is_not_written_to(home: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(OTHERS[name])
    with pytest.raises(QuatrainError) as caught:
        train(recipe(home, train={"steps": 1}, output=str(tmp_path)), Console(io.StringIO(), terminal=False))
    assert len(str(caught.value).splitlines()) == 1 and (tmp_path / name).read_text() == OTHERS[name]
    assert {path.name for path in tmp_path.iterdir()} == {name, ".lock"}


def test_some_generated_recipes(home: Path, tmp_path: Path) -> None:
    generated_recipes(home, tmp_path, 200, "gate")


def test_some_generated_rows(home: Path, tmp_path: Path) -> None:
    generated_rows(home, tmp_path, 300, "gate")


def test_some_recipes_that_are_written_otherwise(home: Path, tmp_path: Path) -> None:
    same_recipes(home, tmp_path, 20, "gate")


def test_some_generated_commands(home: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    generated_commands(home, tmp_path, 20, "gate", capfd)


@pytest.mark.full
@pytest.mark.parametrize("part", range(10))
def test_generated_recipes(home: Path, tmp_path: Path, part: int) -> None:
    generated_recipes(home, tmp_path, MANY // 20, f"long {part}")


@pytest.mark.full
@pytest.mark.parametrize("part", range(10))
def test_generated_rows(home: Path, tmp_path: Path, part: int) -> None:
    generated_rows(home, tmp_path, MANY // 20, f"long {part}")


@pytest.mark.full
def test_recipes_that_are_written_otherwise(home: Path, tmp_path: Path) -> None:
    same_recipes(home, tmp_path, 500, "long")


@pytest.mark.full
def test_generated_commands(home: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    generated_commands(home, tmp_path, 300, "long", capfd)


@pytest.mark.full
def test_generated_recipes_in_processes_of_their_own(home: Path, tmp_path: Path) -> None:
    """The real command line, weights and all: what is refused leaves one line and status 1."""
    data, codes = base(home), Counter[int]()
    before = digest(home)
    for number in range(12):
        draw = random.Random(f"process {number}")
        path = tmp_path / "generated.yaml"
        path.write_bytes(generate.recipe_bytes(data, draw))
        process = start("train", str(path), "train.steps=1", f"output={tmp_path / f'run-{number}'}")
        _, error = process.communicate(timeout=120)
        codes[process.returncode] += 1
        assert process.returncode in (0, 1) and "Traceback" not in error, (number, error)
        last = error.splitlines()[-1] if error else ""
        assert process.returncode == 0 or last.startswith("error: "), (number, error)
    assert digest(home) == before and codes[1] >= 6, codes
