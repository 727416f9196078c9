"""What a run reads again when it goes on has changed or is gone: one line that says so, and nothing is lost."""

import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from quatrain import cli
from quatrain import recipe_file as recipe_module
from quatrain.errors import Interrupted, QuatrainError
from quatrain.methods import run as run_module
from quatrain.methods.online import train
from quatrain.methods.run_folder import BLOCK_BYTES, BLOCKS, fingerprint
from quatrain.models.load import load_language_model
from tests.runs import metrics_of, quiet, recipe, recipe_file, start
from tests.tiny import save_tiny


def refused(folder: Path, **changes: Any) -> str:
    """The line of a resume that is refused; the record stays as it was."""
    record = folder / "run" / "metrics.jsonl"
    before = record.read_bytes()
    with pytest.raises(QuatrainError) as caught:
        train(recipe(folder, **{"train": {"steps": 3}, **changes}), quiet())
    assert record.read_bytes() == before and "\n" not in str(caught.value)
    return str(caught.value)


def remove(path: Path) -> None:
    path.unlink()


def shorten(path: Path) -> None:
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))


def retrain(path: Path) -> None:
    save_tiny(path, seed=7)


def another_end(path: Path) -> None:
    path.write_text(path.read_text().replace('"eos_token_id": 1', '"eos_token_id": 2'))


DAMAGES: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "prompts gone": ("train.jsonl", remove, "prompts[0].source: got {file}, need an existing file"),
    "prompts fewer": ("train.jsonl", shorten, "prompts: rows was [25] when the run was saved and is [24] now"),
    "held-out prompts gone": ("test.jsonl", remove, "held_out[0].source: got {file}, need an existing file"),
    "verifier gone": ("letter.py", remove, "letter.kind: got {file}:Letter, need an existing Python file"),
    "weights gone": ("model/model.safetensors", remove, "model.path: got {folder}/model, need "),
    "model of other weights": ("model", retrain, "model.path: got other files in"),
    "other end token": (
        "model/generation_config.json",
        another_end,
        "model.path: got other files in {folder}/model than at the start (generation_config.json), need the same ones",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one step with what it was made from."""
    folder = tmp_path_factory.mktemp("trained")
    train(recipe(folder, train={"steps": 1}, held_out=[{"source": str(folder / "test.jsonl")}]), quiet())
    return folder


@pytest.mark.parametrize("name", DAMAGES)
def test_what_changed_is_named(trained: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(trained, tmp_path / "before")
    file, damage, said = DAMAGES[name]
    try:
        damage(trained / file)
        line = refused(trained, held_out=[{"source": str(trained / "test.jsonl")}])
        assert said.format(file=trained / file, folder=trained) in line, line
    finally:
        shutil.rmtree(trained)
        shutil.copytree(tmp_path / "before", trained)


def test_a_changed_adapter_is_named(tmp_path: Path) -> None:
    """The weights of the policy come from the checkpoint; it is the reference that would silently be another."""
    lora: dict[str, Any] = {"rank": 2, "adapter": str(tmp_path / "sft")}
    recipe(tmp_path)  # writes the model
    plain = recipe(tmp_path, model={"lora": {"rank": 2}}).model
    for seed in (1, 2):
        torch.manual_seed(seed)
        load_language_model(plain).module.save_pretrained(tmp_path / "sft")
        if seed == 1:
            train(recipe(tmp_path, model={"lora": lora}, train={"steps": 1}), quiet())
    line = refused(tmp_path, model={"lora": lora})
    assert line == (
        f"model.lora.adapter: got other files in {tmp_path / 'sft'} than at the start (adapter_model.safetensors), "
        "need the same ones; put them back, or set output=ANOTHER_FOLDER"
    )


def test_a_file_beside_the_model_and_a_run_without_its_record_are_no_change(tmp_path: Path) -> None:
    train(recipe(tmp_path, train={"steps": 1}), quiet())
    (tmp_path / "model" / "notes.md").write_text("mine")
    train(recipe(tmp_path, train={"steps": 2}), quiet())
    (tmp_path / "run" / "model.json").unlink()
    train(recipe(tmp_path, train={"steps": 3}), quiet())
    assert (tmp_path / "run" / "model.json").is_file() and list(metrics_of(tmp_path / "run")) == [1, 2, 3]


@pytest.mark.parametrize("place", [0, 1 << 20, -1], ids=["first byte", "in the middle", "last byte"])
def test_large_files_are_known_by_pieces_of_them(tmp_path: Path, place: int) -> None:
    """Retrained weights differ in every piece; a size or one end alone would not tell them apart."""
    path = tmp_path / "model.safetensors"
    data = bytearray(2 * BLOCKS * BLOCK_BYTES * 4)
    path.write_bytes(data)
    before = fingerprint(tmp_path)
    assert before == fingerprint(tmp_path) and before["model.safetensors"].startswith(f"{len(data)} ")
    start_at = place if place >= 0 else len(data) - 1
    for at in range(start_at, len(data), 1000) if place > 0 else [start_at]:
        data[at] = 1
    path.write_bytes(data)
    assert fingerprint(tmp_path) != before
    assert fingerprint(tmp_path / "absent") == {}


def test_ctrl_c_while_the_model_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    wanted = recipe(tmp_path, train={"steps": 1})
    with monkeypatch.context() as patched:
        patched.setattr(run_module, "load_language_model", interrupted)
        with pytest.raises(Interrupted, match=r"^stopped while loading: nothing was changed; run"):
            train(wanted, quiet())
    assert train(wanted, quiet()).steps == 1


def test_ctrl_c_before_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["quatrain", "train", str(recipe_file(tmp_path))])
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt  # a signal itself would be ignored where the tests run in the background

    monkeypatch.setattr(recipe_module, "load_recipe", interrupted)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 130 and capfd.readouterr().err.splitlines()[-1] == "stopped"


@pytest.mark.full
def test_ctrl_c_in_a_terminal_while_the_model_loads(tmp_path: Path) -> None:
    process = start("train", str(recipe_file(tmp_path, train={"steps": 100_000})))
    assert process.stdout is not None and process.stdout.readline().startswith("loading")
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 130
    assert error.splitlines() == ["stopped while loading: nothing was changed; run the same command again"]
