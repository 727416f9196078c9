"""What a run left, to look at from Python: curves, held-out answers, completions, a picture. Imports without torch."""

import html
import json
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from quatrain.errors import SettingError, nearest
from quatrain.methods.evaluate import Evaluation, Floats, compare, interval, load_evaluation, mean
from quatrain.telemetry.run_log import read_events, read_metrics

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LABELS = {
    "correct": "right answer",
    "in_form": "right answer in the asked form",
    "reward": "mean reward",
}


class Curves(dict[str, Floats]):
    """Metrics by name, each an array over `steps` (NaN where a step has none). `curves["reward/mean"][-1]`."""

    def __init__(self, folder: Path) -> None:
        rows = read_metrics(folder)
        values = [{**row.metrics, **row.timing} for row in rows]
        names = dict.fromkeys(name for row in values for name in row)
        super().__init__({name: np.array([row.get(name, np.nan) for row in values], np.float64) for name in names})
        self.steps = np.array([row.step for row in rows], dtype=np.int64)

    def __missing__(self, name: str) -> Floats:
        raise SettingError("metrics", name, "a metric of this run", nearest(name, self))

    def to_pandas(self) -> Any:
        """A DataFrame with a row per step. Raises SettingError without pandas."""
        try:
            pandas = import_module("pandas")
        except ImportError:
            raise SettingError("to_pandas", "no pandas", "pandas to be installed", "pip install pandas") from None
        return pandas.DataFrame(dict(self), index=pandas.Index(self.steps, name="step"))


@dataclass(frozen=True, slots=True)
class Result:
    """A run that is finished or under way: `steps` are done, `before` and `after` its first and last evaluation.

    All else is read from `folder` when it is asked for. Printed, it shows what was gained; in a notebook, with curves.
    """

    folder: Path
    steps: int
    before: Evaluation | None = None
    after: Evaluation | None = None

    @property
    def metrics(self) -> Curves:
        """All metrics (docs/metrics.md) by name over the steps so far."""
        return Curves(self.folder)

    @property
    def events(self) -> list[dict[str, Any]]:
        """Resumes, interruptions, evaluations: what happened besides steps."""
        return read_events(self.folder)

    @property
    def evaluations(self) -> dict[int, Evaluation]:
        """Held-out evaluations by step."""
        steps = _numbered(self.folder / "evaluations", ".json")
        found = {step: load_evaluation(self.folder, step) for step in steps}
        return {step: one for step, one in found.items() if one is not None}

    @property
    def measured(self) -> dict[int, dict[str, float]]:
        """What the evaluations of an offline run say, by step: `result.measured[40]["eval/loss"]`."""
        folder = self.folder / "evaluations"
        saved = {step: json.loads((folder / f"step-{step:06d}.json").read_text(encoding="utf-8"))
                 for step in _numbered(folder, ".json")}  # fmt: skip
        return {
            step: {name: float("nan") if value is None else value for name, value in data["measures"].items()}
            for step, data in saved.items()
            if "measures" in data
        }

    def gain(self, name: str = "correct") -> dict[str, Any] | None:
        """Held-out means before and after with 95 % intervals; None without an evaluation of both.

        `name`: correct, in_form, reward, tokens, or `part NAME` for one part of the rubric.
        """
        if self.before is None or self.after is None:
            return None
        known = [*LABELS, "tokens", *self.after.parts()]
        if name not in known:
            raise SettingError("gain", name, "a measure of the evaluation", nearest(name, known))
        return compare(self.before, self.after, name)

    def completions(self, step: int | None = None) -> list[dict[str, Any]]:
        """The saved completions of a step (default: the last), a mapping each: prompt, completion, score, parts, ..."""
        saved = _numbered(self.folder / "rollouts", ".parquet")
        if not saved:
            raise SettingError("completions", str(self.folder), "a run with saved rollouts", "set log.rollouts_every=1")
        if step is not None and step not in saved:
            shown = ", ".join(map(str, saved)) if len(saved) < 12 else f"{saved[0]} to {saved[-1]}"
            raise SettingError("step", step, f"a step with saved rollouts ({shown})", "choose one of these")
        import pyarrow.parquet

        path = self.folder / "rollouts" / f"step-{saved[-1] if step is None else step:06d}.parquet"
        rows = pyarrow.parquet.read_table(path).to_pylist()
        return [{**row, "parts": json.loads(row["parts"])} for row in rows]

    def plot(self, path: str | Path | None = None) -> "Figure":
        """Curves of the run as a matplotlib Figure, saved to `path` (PNG, SVG or PDF by its ending) when one is given.

        Raises SettingError without matplotlib, before the first step, and for another ending.
        """
        from quatrain.methods.plot import plot

        return plot(self, None if path is None else Path(path))

    def gains(self) -> list[tuple[str, str, str, str]]:
        """The rows of the summary: measure, before, after and paired difference, each with its 95 % interval."""
        if self.before is None or self.after is None:
            return []
        return [
            (label(name), *_cells(compare(self.before, self.after, name), percent=name in ("correct", "in_form")))
            for name in measures(self.before, self.after)
        ]

    def __str__(self) -> str:
        lines = [f"run {self.folder}: {_steps(self.steps)}", *(f"  {name}: {text}" for name, text in self._facts())]
        return "\n".join([*lines, *_aligned(self._table())])

    def _facts(self) -> list[tuple[str, str]]:
        """Reward (offline: loss) at the start and the end, and what is missing for a comparison."""
        curves = self.metrics
        facts = []
        name = next((name for name in ("reward/mean", "train/loss") if name in curves), None)
        if name is not None:
            values = curves[name]
            share = max(1, len(values) // 5)
            first, last, few = mean(values[:share]), mean(values[-share:]), _steps(share).removeprefix("1 ")
            facts.append((f"training {'loss' if name.endswith('loss') else 'reward'}",
                          f"{first:.3f} in the first {few}, {last:.3f} in the last {few}"
                          if len(values) > 1 else f"{first:.3f}"))  # fmt: skip
        if measured := self.measured:
            facts.append(("held-out loss", ", ".join(f"{measured[step]['eval/loss']:.4g} at step {step}"
                                                     for step in sorted({min(measured), max(measured)}))))  # fmt: skip
        elif self.before is None or self.after is None:
            why = "evaluated at the end" if self.evaluations else "none (give the run held_out prompts to measure it)"
            facts.append(("held-out", why))
        return facts

    def _table(self) -> list[tuple[str, ...]]:
        if self.after is None or not (rows := self.gains()):
            return []
        asked = f"held-out ({len(self.after.per_prompt('correct'))} prompts)"
        return [(asked, "before", "after", "difference (95 % interval, paired)"), *rows]

    def _repr_html_(self) -> str:
        """Table and picture for a notebook, all in this text: nothing is loaded from elsewhere."""
        facts = "".join(f"<br>{html.escape(name)}: {html.escape(text)}" for name, text in self._facts())
        rows = [
            "<tr>" + "".join(f"<{tag} style='text-align:left'>{html.escape(cell)}</{tag}>" for cell in row) + "</tr>"
            for tag, row in zip(["th", *["td"] * 99], self._table(), strict=False)
        ]
        table = f"<table>{''.join(rows)}</table>" if rows else ""
        heading = f"<b>{html.escape(str(self.folder))}</b>: {_steps(self.steps)}{facts}"
        return f"<div>{heading}{table}{self._picture()}</div>"

    def _picture(self) -> str:
        from quatrain.methods.plot import curves_figure, png

        try:
            data = png(curves_figure(self))
        except SettingError as error:
            return f"<p>{html.escape(str(error))}</p>"
        return f"<img style='max-width:100%' src='data:image/png;base64,{b64encode(data).decode()}'>"


def read_result(folder: Path) -> Result:
    """The result of the run in `folder`. Raises SettingError for another folder."""
    if not (folder / "recipe.yaml").is_file():
        raise SettingError("run", str(folder), "a run folder (with recipe.yaml)", "give the `output` of a training run")
    rows = read_metrics(folder)
    found = Result(folder, rows[-1].step if rows else 0)
    evaluations = found.evaluations
    before, last = evaluations.get(0), evaluations[max(evaluations)] if evaluations else None
    after = last if last is not None and last.step > 0 else None
    if before is not None and after is not None and before.asked != after.asked:
        before = None  # other held-out prompts: no comparison
    return Result(folder, found.steps, before, after)


def label(measure: str) -> str:
    """A measure in words."""
    return LABELS.get(measure, measure.removeprefix("part ").replace("_", " "))


def measures(*evaluations: Evaluation) -> list[str]:
    """What is worth showing: accuracy, accuracy in form, and the parts that say something else (or the reward).

    Accuracy is left out where nothing measures it: no completion is right, and no part says so.
    """
    told = {name: _tells_more(name, *evaluations) for name in evaluations[-1].parts()}
    right = any(answer.correct > 0 for evaluation in evaluations for answer in evaluation.answers)
    names = ["correct"] if right or not all(told.values()) else []
    names += ["in_form"] if _has_form(*evaluations) else []
    more = [name for name, tells in told.items() if tells]
    if not more and (not names or _tells_more("reward", *evaluations)):
        more = ["reward"]
    return names + more


def points(evaluations: Mapping[int, Evaluation], name: str) -> tuple[list[int], Floats, Floats]:
    """Steps, means and 95 % bounds (2 x steps) of a measure over the evaluations that asked what the last one did."""
    asked = [one for _, one in sorted(evaluations.items()) if one.asked == evaluations[max(evaluations)].asked]
    values = [one.per_prompt(name) for one in asked]
    bounds = np.array([interval(row) for row in values]).T
    return [one.step for one in asked], np.array([mean(row) for row in values]), bounds


def _numbered(folder: Path, suffix: str) -> list[int]:
    """Steps of files such as `step-000012.parquet`."""
    return sorted(int(path.stem.removeprefix("step-")) for path in folder.glob(f"step-??????{suffix}"))


def _steps(count: int) -> str:
    return f"{count} step" + ("" if count == 1 else "s")


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    """Rows of text as lines with columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _tells_more(part: str, *evaluations: Evaluation) -> bool:
    """False for a part that repeats the accuracy."""
    return any((each.per_prompt(part) != each.per_prompt("correct")).any() for each in evaluations)


def _has_form(*evaluations: Evaluation) -> bool:
    return any(answer.correct > answer.in_form for evaluation in evaluations for answer in evaluation.answers)


def _cells(found: dict[str, Any], percent: bool) -> tuple[str, str, str]:
    scale, digits = (100, 1) if percent else (1, 3)

    def span(bounds: tuple[float, float], sign: str = "") -> str:
        return f"[{bounds[0] * scale:{sign}.{digits}f}, {bounds[1] * scale:{sign}.{digits}f}]"

    unit = " %" if percent else ""
    return (
        f"{found['before'] * scale:.{digits}f}{unit} {span(found['before_interval'])}",
        f"{found['after'] * scale:.{digits}f}{unit} {span(found['after_interval'])}",
        f"{found['difference'] * scale:+.{digits}f} {span(found['difference_interval'], '+')}",
    )
