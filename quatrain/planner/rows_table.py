"""Predictions of a file of measurements, as data and as a table, with the error of every source."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from quatrain.planner.constants import DEFAULTS, Constants
from quatrain.planner.frameworks import framework_of
from quatrain.planner.hardware import GIB
from quatrain.planner.rows import predict_row, read_rows

GB_PER_GIB = GIB / 1e9


def row_data(path: Path, constants: Constants = DEFAULTS) -> list[dict[str, Any]]:
    """A prediction for every row of a JSONL file: GB, error, or why there is none."""
    found = []
    for number, row in read_rows(path):
        said = predict_row(row, constants)
        found.append({
            "row": number, "source": row.get("source"), "system": framework_of(str(row.get("source", ""))).name,
            "model": row.get("model"), "method": row.get("method"), "metric": said.metric,
            "measured_gb": None if said.measured_gib is None else said.measured_gib * GB_PER_GIB,
            "predicted_gb": None if said.predicted_gib is None else said.predicted_gib * GB_PER_GIB,
            "error": said.error, "phase": said.phase, "why": said.why,
        })  # fmt: skip
    return found


def text_rows(data: Sequence[dict[str, Any]]) -> str:
    """The table, worst first, then rows without a prediction, then the error by source and metric."""
    return "\n".join([*_lines(data), "", *_summary(data)])


def _lines(data: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield f"{'row':>4}  {'model':<34}{'method':<16}{'metric':<11}{'measured':>9}{'predicted':>10}{'error':>8}  phase"
    told = [line for line in data if line["error"] is not None]
    for line in sorted(told, key=lambda line: -abs(line["error"])):
        figures = f"{line['measured_gb']:>9.2f}{line['predicted_gb']:>10.2f}{line['error']:>+8.1%}"
        yield f"{_name(line)}{line['metric']:<11}{figures}  {line['phase']}"
    for line in data:
        if line["error"] is None:
            value = "" if line["predicted_gb"] is None else f"{line['predicted_gb']:.2f} GB predicted; "
            why = line["why"] or "the row has no measured peak"
            yield f"{_name(line)}{value}{why}"


def _name(line: dict[str, Any]) -> str:
    return f"{line['row']:>4}  {str(line['model'])[:33]:<34}{str(line['method'])[:15]:<16}"


def _summary(data: Sequence[dict[str, Any]]) -> Iterator[str]:
    groups = defaultdict(list)
    for line in data:
        if line["error"] is not None:
            groups[line["system"], line["metric"]].append(line["error"])
    everything = [error for errors in groups.values() for error in errors]
    yield f"{'source':<18}{'metric':<12}{'rows':>5}{'mean |error|':>14}{'worst':>9}"
    for (system, metric), errors in sorted(groups.items()):
        yield f"{system:<18}{metric:<12}{_figures(errors)}"
    if everything:
        yield f"{'all':<30}{_figures(everything)}"
    yield f"{len(data) - len(everything)} of {len(data)} rows without a prediction"


def _figures(errors: Sequence[float]) -> str:
    return f"{len(errors):>5}{sum(map(abs, errors)) / len(errors):>14.1%}{max(errors, key=abs):>+9.1%}"
