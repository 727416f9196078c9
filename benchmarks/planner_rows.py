"""Public memory measurements against the planner's, the allowances fitted with each source left out in turn.

    python benchmarks/planner_rows.py MEMORY.jsonl            tables
    python benchmarks/planner_rows.py MEMORY.jsonl --write    and docs/results/planner-rows.md

Allocated bytes are the planner's own and take nothing from the rows. One allowance does: `reserved`, the median over
the other sources' rows of measured reserved over predicted allocated. The driver's context is the default everywhere:
too few sources give process bytes to take it from. A row that gives several of the three numbers counts for each.
"""

import argparse
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median
from typing import Any

from quatrain.planner.constants import DEFAULTS, Constants
from quatrain.planner.frameworks import framework_of
from quatrain.planner.rows import RowPrediction, predict_row, read_rows

RESULT = Path(__file__).parents[1] / "docs" / "results" / "planner-rows.md"
BEAT = 0.054  # mean absolute error of fitcheck-llm's own hold-out: one device, adapters only, process bytes


@dataclass(frozen=True, slots=True)
class Line:
    """A row with a prediction."""

    source: str
    row: dict[str, Any]
    said: RowPrediction

    @property
    def error(self) -> float:
        """(predicted - measured) / measured."""
        assert self.said.error is not None
        return self.said.error

    @property
    def label(self) -> str:
        setting = (self.row.get(key) for key in ("model", "method", "gpu", "num_gpus", "batch_size", "seq_len"))
        return ", ".join(str(part) for part in setting if part is not None)


def source_of(row: dict[str, Any]) -> str:
    """The system that was measured; the source itself where it is none of the known ones."""
    name = framework_of(str(row["source"])).name
    return str(row["source"]).split(" ")[0] if name == "other" else name


def predictions(rows: Sequence[dict[str, Any]], constants: Constants) -> tuple[list[Line], list[tuple[str, str]]]:
    """Rows with a prediction, and (label, reason) of those without."""
    lines, without = [], []
    for row in rows:
        said = predict_row(row, constants)
        line = Line(source_of(row), dict(row), said)
        if not row.get("setting_complete"):
            without.append((line.label, "the source does not give the whole setting"))
        elif said.error is None:
            without.append((line.label, said.why or "no measured peak"))
        else:
            lines += all_metrics(line)
    return lines, without


def all_metrics(line: Line) -> list[Line]:
    """The row's own metric, and the others of which it gives the measured value."""
    said, found = line.said, [line]
    for metric, key, value in (("reserved", "peak_reserved_gib", said.reserved_gib),
                               ("process", "process_gib", said.process_gib)):  # fmt: skip
        if metric != said.metric and line.row.get(key):
            other = replace(said, metric=metric, measured_gib=float(line.row[key]), predicted_gib=value)
            found.append(Line(line.source, line.row, other))
    return found


def fitted(lines: Sequence[Line]) -> Constants:
    """The defaults with the allowance that `lines` determine."""
    ratios = [line.said.measured_gib / line.said.allocated_gib for line in lines  # type: ignore[operator]
              if line.said.metric == "reserved"]  # fmt: skip
    reserved = max(1.0, median(ratios)) if ratios else DEFAULTS.reserved
    return replace(DEFAULTS, reserved=reserved)


def held_out(rows: Sequence[dict[str, Any]]) -> tuple[list[Line], dict[str, Constants]]:
    """Every row predicted with the allowances of the other sources, and those allowances."""
    lines, _ = predictions(rows, DEFAULTS)
    known = {source: fitted([line for line in lines if line.source != source]) for source in {x.source for x in lines}}
    found = []
    for source, constants in known.items():
        found += predictions([row for row in rows if source_of(row) == source], constants)[0]
    return found, known


def summary(lines: Sequence[Line], same: Sequence[Line]) -> list[str]:
    """Errors by source and metric, worst first; `same` are the lines with the default allowances."""
    groups: dict[tuple[str, str], list[float]] = defaultdict(list)
    plain: dict[tuple[str, str], list[float]] = defaultdict(list)
    for line in lines:
        groups[line.source, str(line.said.metric)].append(line.error)
    for line in same:
        plain[line.source, str(line.said.metric)].append(line.error)
    out = ["| source left out | metric | rows | mean abs. error | mean error | worst | with the default allowances |",
           "|---|---|---|---|---|---|---|"]  # fmt: skip
    for (source, metric), errors in sorted(groups.items(), key=lambda entry: -mean(map(abs, entry[1]))):
        out.append(f"| {source} | {metric} | {len(errors)} | {mean(map(abs, errors)):.1%} | {mean(errors):+.1%} | "
                   f"{max(errors, key=abs):+.1%} | {mean(map(abs, plain[source, metric])):.1%} |")  # fmt: skip
    return out


def report(rows: Sequence[dict[str, Any]]) -> str:
    """Every table as Markdown."""
    same, without = predictions(rows, DEFAULTS)
    lines, known = held_out(rows)
    errors = [abs(line.error) for line in lines]
    process = [abs(line.error) for line in lines if line.said.metric == "process"]
    tool = [abs(line.error) for line in lines if line.source == "fitcheck" and line.said.metric == "process"]
    out = [
        f"{len(rows) - len(without)} of {len(rows)} rows have a whole setting that the planner models; they give "
        f"{len(lines)} figures. Each source left out: mean of the absolute errors {mean(errors):.1%}, median "
        f"{median(errors):.1%}; process bytes alone {mean(process):.1%}.", "",
    ]  # fmt: skip
    if tool:
        out += [f"The figure to compare with is {BEAT:.1%}, another tool's hold-out over its own process rows; over "
                f"those, which the allowance has not seen, the planner's is {mean(tool):.1%}.", ""]  # fmt: skip
    out += [*summary(lines, same), "", "## The allowance without each source", ""]
    out += ["| left out | reserved / allocated |", "|---|---|"]
    out += [f"| {name} | {value.reserved:.3f} |" for name, value in sorted(known.items())]
    out += ["", "## The worst twenty", "", "| setting | metric | measured GiB | predicted GiB | error | peak in |",
            "|---|---|---|---|---|---|"]  # fmt: skip
    worst = sorted(lines, key=lambda line: -abs(line.error))[:20]
    for line in worst:
        said = line.said
        figures = f"{said.measured_gib:.2f} | {said.predicted_gib:.2f} | {line.error:+.1%}"
        out.append(f"| {line.source}: {line.label} | {said.metric} | {figures} | {said.phase} |")
    reasons: dict[str, int] = defaultdict(int)
    for _, why in without:
        reasons[why.partition("; ")[0][:140]] += 1
    why_not = [f"- {count} x {why}" for why, count in sorted(reasons.items())]
    out += ["", "## Rows without a prediction", "", *why_not, ""]
    return "\n".join(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    text = report([dict(row) for _, row in read_rows(arguments.file)])
    print(text)
    if arguments.write:
        RESULT.write_text(INTRODUCTION + text, encoding="utf-8")


INTRODUCTION = """# The planner's memory against public measurements on GPUs

2026-11-30. Made by `python benchmarks/planner_rows.py MEMORY.jsonl --write` from a file of public measurements.
"Peak" is three different numbers and a row says which: what tensors take (allocated), what the allocator holds
(reserved), what the machine shows (process). Errors are (predicted - measured) / measured. Rows of reinforcement
learning with an engine are few and partial: they bound, they do not fit.

"""

if __name__ == "__main__":
    main()
