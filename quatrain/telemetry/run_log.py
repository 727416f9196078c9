"""The run's own record: `metrics.jsonl` (a row per step) and `events.jsonl` (what happened), append-only."""

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quatrain.errors import SettingError
from quatrain.telemetry.catalogue import is_deterministic
from quatrain.telemetry.files import append_line, replace_text
from quatrain.telemetry.metrics import Metric

METRICS = "metrics.jsonl"
EVENTS = "events.jsonl"
SET_ASIDE = "metrics.set-aside.jsonl"


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricsRow:
    """One step. `metrics` repeat bit for bit on the same machine and seed, `timing` does not."""

    step: int
    metrics: Mapping[str, float]
    timing: Mapping[str, float]


class RunLog:
    """Writer of one run folder. A last line that a kill cut short is dropped when the folder is opened."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in (METRICS, EVENTS, SET_ASIDE):
            _mend(self.folder / name)

    def metrics(self, step: int, metrics: Mapping[str, Metric]) -> None:
        """Append one row, `{"step": 3, "metrics": {...}, "timing": {...}}`, and flush it to disk."""
        parts: dict[bool, dict[str, float | str]] = {True: {}, False: {}}
        for name, metric in metrics.items():
            parts[is_deterministic(name)][name] = _to_json(metric.value)
        append_line(self.folder / METRICS, _dump({"step": step, "metrics": parts[True], "timing": parts[False]}))

    def event(self, kind: str, message: str, step: int, **fields: Any) -> None:
        """Append what happened (resume, interruption, verifier failure, ...) with the wall-clock time in seconds."""
        row = {"time_s": round(time.time(), 3), "kind": kind, "step": step, "message": message, **fields}
        append_line(self.folder / EVENTS, _dump(_plain(row)))

    def set_aside(self, after_step: int) -> int:
        """Move rows of steps past `after_step` into `metrics.set-aside.jsonl`; returns how many.

        The copy is on disk before the original is replaced, and a second attempt after a kill adds nothing twice.
        """
        path, aside = self.folder / METRICS, self.folder / SET_ASIDE
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        later = [line for line in lines if json.loads(line)["step"] > after_step]
        if not later:
            return 0
        block = "".join(f"{line}\n" for line in later)
        earlier = aside.read_text(encoding="utf-8") if aside.exists() else ""
        if not earlier.endswith(block):
            replace_text(aside, earlier + block)
        replace_text(path, "".join(f"{line}\n" for line in lines if json.loads(line)["step"] <= after_step))
        return len(later)


def read_metrics(folder: str | Path) -> list[MetricsRow]:
    """Rows of `metrics.jsonl` in order; a torn last line is left out, any other bad line is a SettingError."""
    return [
        MetricsRow(
            step=row["step"],
            metrics={name: float(value) for name, value in row["metrics"].items()},
            timing={name: float(value) for name, value in row["timing"].items()},
        )
        for row in _read(Path(folder) / METRICS)
    ]


def read_events(folder: str | Path) -> list[dict[str, Any]]:
    """Rows of `events.jsonl` in order, as they were written."""
    return _read(Path(folder) / EVENTS)


def _read(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    rows = []
    for number, line in enumerate(lines, start=1):
        row = _parsed(line)
        if row is not None:
            rows.append(row)
        elif line and number < len(lines):
            raise SettingError(f"{path}:{number}", line.decode(errors="replace"), "one JSON object a line",
                               "the file was changed by something else; remove that line")  # fmt: skip
    return rows


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def _mend(path: Path) -> None:
    """End the file with a whole line: complete a row that lacks only its newline, cut one that is torn."""
    if not path.exists():
        return
    data = path.read_bytes()
    tail = data.rpartition(b"\n")[2]
    if not tail:
        return
    if _parsed(tail) is not None:
        append_line(path, "")
    else:
        with path.open("r+b") as file:
            file.truncate(len(data) - len(tail))


def _dump(row: Mapping[str, Any]) -> str:
    return json.dumps(row, allow_nan=False, ensure_ascii=False)


def _to_json(value: float) -> float | str:
    """JSON has no NaN or infinities: they are kept as the strings that `float` reads back."""
    value = float(value)
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def _plain(value: Any) -> Any:
    """Floats inside mappings and sequences made valid JSON; anything unknown as its text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (str, bool, int)):
        return value
    return _to_json(value) if isinstance(value, float) else str(value)
