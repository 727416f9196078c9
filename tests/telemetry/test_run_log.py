"""The record of a run survives kills, full disks and numbers that JSON does not know."""

import errno
import io
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from quatrain.errors import QuatrainError, SettingError
from quatrain.telemetry import files
from quatrain.telemetry.metrics import Last, Mean, Sum
from quatrain.telemetry.run_log import RunLog, read_events, read_metrics


def log_steps(folder: Path, *steps: int) -> RunLog:
    """A log with one row per step, train/loss = the step."""
    log = RunLog(folder)
    for step in steps:
        log.metrics(step, {"train/loss": Last(step)})
    return log


def steps_of(folder: Path) -> list[int]:
    """Steps in metrics.jsonl, in order."""
    return [row.step for row in read_metrics(folder)]


def test_a_row_keeps_apart_what_a_clock_decides(tmp_path: Path) -> None:
    RunLog(tmp_path).metrics(3, {"reward/mean": Mean(3, 2), "time/step_s": Last(1.5), "train/updates": Sum(1)})
    written = json.loads((tmp_path / "metrics.jsonl").read_text())
    expected = {"reward/mean": 1.5, "train/updates": 1.0}
    assert written == {"step": 3, "metrics": expected, "timing": {"time/step_s": 1.5}}
    (row,) = read_metrics(tmp_path)
    assert (row.step, row.metrics, row.timing) == (3, expected, {"time/step_s": 1.5})


def test_floats_come_back_bit_for_bit(tmp_path: Path) -> None:
    values = [0.1 + 0.2, 1e-300, 5e-324, 1 / 3]
    RunLog(tmp_path).metrics(1, {f"x/{index}": Last(value) for index, value in enumerate(values)})
    assert list(read_metrics(tmp_path)[0].metrics.values()) == values


def test_values_that_are_not_finite_are_kept_in_valid_json(tmp_path: Path) -> None:
    RunLog(tmp_path).metrics(1, {"a": Last(math.nan), "b": Last(math.inf), "c": Last(-math.inf), "d": Mean(0, 0)})

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    json.loads((tmp_path / "metrics.jsonl").read_text(), parse_constant=refuse)
    metrics = read_metrics(tmp_path)[0].metrics
    assert math.isnan(metrics["a"])
    assert math.isnan(metrics["d"])
    assert (metrics["b"], metrics["c"]) == (math.inf, -math.inf)


def test_events_carry_their_fields(tmp_path: Path) -> None:
    log = RunLog(tmp_path)
    log.event("verifier", "two\nlines", 4, path=Path("x"), worst=math.nan, rows=(1, 2), nested={"a": None})
    (row,) = read_events(tmp_path)
    assert row.pop("time_s") > 0
    assert row == {"kind": "verifier", "message": "two\nlines", "step": 4, "path": "x", "worst": "NaN",
                   "rows": [1, 2], "nested": {"a": None}}  # fmt: skip


@pytest.mark.parametrize("cut", [1, 10, 20])
def test_a_torn_last_line_is_left_out_and_then_written_over(tmp_path: Path, cut: int) -> None:
    log_steps(tmp_path, 1, 2)
    path = tmp_path / "metrics.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + whole.splitlines()[0][:cut])
    assert steps_of(tmp_path) == [1, 2]
    log_steps(tmp_path, 3)
    assert steps_of(tmp_path) == [1, 2, 3]


def test_a_row_that_lacks_only_its_newline_is_kept(tmp_path: Path) -> None:
    log_steps(tmp_path, 1, 2)
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-1])
    log_steps(tmp_path, 3)
    assert steps_of(tmp_path) == [1, 2, 3]


def test_a_bad_line_in_the_middle_is_named(tmp_path: Path) -> None:
    log_steps(tmp_path, 1, 2)
    path = tmp_path / "metrics.jsonl"
    first, second = path.read_text().splitlines()
    path.write_text(f"{first}\nnonsense\n{second}\n")
    with pytest.raises(SettingError, match=r"metrics\.jsonl:2: got nonsense"):
        read_metrics(tmp_path)


def test_a_folder_without_rows_reads_as_empty(tmp_path: Path) -> None:
    assert read_metrics(tmp_path) == []
    assert read_events(tmp_path) == []


def test_rows_past_the_checkpoint_are_set_aside_not_deleted(tmp_path: Path) -> None:
    log = log_steps(tmp_path, 1, 2, 3, 4)
    assert log.set_aside(after_step=2) == 2
    assert steps_of(tmp_path) == [1, 2]
    log.metrics(3, {"train/loss": Last(30)})
    assert RunLog(tmp_path).set_aside(after_step=2) == 1
    aside = [json.loads(line) for line in (tmp_path / "metrics.set-aside.jsonl").read_text().splitlines()]
    assert [(row["step"], row["metrics"]["train/loss"]) for row in aside] == [(3, 3), (4, 4), (3, 30)]
    assert log.set_aside(after_step=2) == 0


def test_a_kill_between_the_two_writes_loses_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = log_steps(tmp_path, 1, 2, 3)
    original = os.replace

    def killed(path: Path, target: Path) -> Any:
        if Path(target).name == "metrics.jsonl":
            raise KeyboardInterrupt
        original(path, target)

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        log.set_aside(after_step=1)
    monkeypatch.undo()
    assert steps_of(tmp_path) == [1, 2, 3]
    assert RunLog(tmp_path).set_aside(after_step=1) == 2
    assert steps_of(tmp_path) == [1]
    assert len((tmp_path / "metrics.set-aside.jsonl").read_text().splitlines()) == 2


def test_a_full_disk_is_one_line_and_leaves_whole_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_steps(tmp_path, 1)
    before = (tmp_path / "metrics.jsonl").read_bytes()

    class Full(io.FileIO):
        """Takes ten bytes, then the disk is full."""

        def write(self, data: Any) -> int:
            if self.tell() > len(before):
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(bytes(data)[:10])

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", lambda path, mode, **_: Full(path, mode.replace("b", "")))
        with pytest.raises(QuatrainError, match=r"disk full: .*; free space and run the same command again"):
            log.metrics(2, {"train/loss": Last(2)})
    assert (tmp_path / "metrics.jsonl").read_bytes() == before
    log.metrics(2, {"train/loss": Last(2)})
    assert steps_of(tmp_path) == [1, 2]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_the_system_s_own_full_disk_is_recognised() -> None:
    with pytest.raises(QuatrainError, match="disk full"), files.disk_errors(Path("x")), open("/dev/full", "w") as file:
        file.write("x")
        file.flush()


def test_other_errors_of_the_disk_keep_their_traceback(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files.append_line(tmp_path / "absent" / "x", "row")


def full_disk(_descriptor: int) -> None:
    """What the system says when there is no space."""
    raise OSError(errno.ENOSPC, "No space left on device")


def test_replacing_a_file_leaves_the_old_one_or_the_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state.json"
    files.replace_text(path, "old")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full_disk)
        with pytest.raises(QuatrainError, match="disk full"):
            files.replace_text(path, "new")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("state.json", "old")]
    files.replace_text(path, "new")
    assert path.read_text() == "new"
