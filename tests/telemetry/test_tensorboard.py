"""What TensorBoard reads back is what was logged, also after a resume."""

import builtins
import errno
import math
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer.record_writer import RecordWriter

from quatrain.errors import QuatrainError, SettingError
from quatrain.telemetry import TRACKERS


def log(folder: Path, first_step: int, values: dict[int, float]) -> None:
    """One session of a run."""
    tracker = TRACKERS.get("tensorboard")(folder, first_step)
    for step, value in values.items():
        tracker.log(step, {"reward/mean": value})
    tracker.close()


def curve(folder: Path) -> list[tuple[int, float]]:
    """(step, value) of reward/mean as TensorBoard sees it."""
    events = EventAccumulator(str(folder / "tensorboard")).Reload()
    return [(point.step, point.value) for point in events.Scalars("reward/mean")]


def test_values_come_back(tmp_path: Path) -> None:
    log(tmp_path, 1, {1: 0.5, 2: math.inf})
    assert curve(tmp_path) == [(1, 0.5), (2, math.inf)]


def test_a_resume_replaces_the_steps_after_the_checkpoint(tmp_path: Path) -> None:
    log(tmp_path, 1, {1: 0.25, 2: 0.5, 3: 0.75})
    log(tmp_path, 3, {3: 2.0, 4: 3.0})
    assert curve(tmp_path) == [(1, 0.25), (2, 0.5), (3, 2.0), (4, 3.0)]


@pytest.mark.parametrize("place", ["write", "flush", "close"])
def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    tracker = TRACKERS.get("tensorboard")(tmp_path, 1)
    monkeypatch.setattr(RecordWriter, place, full)
    with pytest.raises(QuatrainError, match=r"^disk full: cannot write .*tensorboard.*; free space and run the same"):
        tracker.log(1, {"reward/mean": 0.5})
        tracker.close()


def test_without_the_package_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *args: Any) -> Any:
        if name.startswith("tensorboard"):
            raise ImportError(name)
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(SettingError, match=r"log\.tensorboard: .*pip install tensorboard"):
        TRACKERS.get("tensorboard")(tmp_path, 1)
