"""The curves of a run as one matplotlib figure; matplotlib is imported when a figure is asked for."""

import io
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from quatrain.errors import SettingError, nearest
from quatrain.methods.evaluate import Floats
from quatrain.methods.result import Curves, Result, label, measures, points
from quatrain.telemetry.console import COLUMNS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ENDINGS = (".png", ".svg", ".pdf")
MAIN, GREY = "#1a7f5a", "#8a8f98"
COLOURS = (MAIN, "#b0413e", "#2b6cb0", "#a8741a")
# title, names of which the first one that the run has is drawn, unit; as on the console
PANELS = tuple(
    (title, next(names for heading, names, _, _ in COLUMNS if heading == title), unit)
    for title, unit in (("entropy", "nats per token"), ("zero-var", "share"), ("length", "tokens"), ("KL", "nats"))
)
TITLES = {"zero-var": "groups without variance", "length": "length of a completion", "KL": "KL"}


def curves_figure(result: Result) -> "Figure":
    """Reward with its trailing mean, held-out measures with 95 % intervals, entropy, zero variance, length and KL.

    A panel is drawn where the run has its metric (KL only where it is ever above 0).
    Raises SettingError without matplotlib and before the first step.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError:
        raise SettingError("plot", "no matplotlib", "matplotlib to be installed",
                           "pip install 'quatrain[plot]'") from None  # fmt: skip
    curves = result.metrics
    panels = _panels(result, curves)
    if not panels:
        raise SettingError("plot", str(result.folder), "a run with at least one step", "wait for its first step")
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(3.9 * columns, 2.7 * rows), layout="constrained", facecolor="white")
    for number, draw in enumerate(panels, 1):
        axes = figure.add_subplot(rows, columns, number)
        draw(axes)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("step", fontsize=8)
    figure.suptitle(str(result.folder), fontsize=10, color=GREY)
    # A figure made without pyplot is shown by a notebook through this method.
    figure._repr_png_ = partial(png, figure)  # type: ignore[attr-defined]
    return figure


def plot(result: Result, path: Path | None) -> "Figure":
    """The figure, written to `path` as PNG, SVG or PDF by its ending when there is one."""
    if path is None:
        return curves_figure(result)
    if path.suffix.lower() not in ENDINGS:
        raise SettingError("path", str(path), f"a name ending in {', '.join(ENDINGS)}", nearest(path.suffix, ENDINGS))
    figure = curves_figure(result)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return figure


def png(figure: "Figure") -> bytes:
    """The figure as a PNG file for a page."""
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=110)
    return data.getvalue()


def _panels(result: Result, curves: Curves) -> list[Callable[["Axes"], None]]:
    """What draws each panel."""
    panels: list[Callable[[Any], None]] = []
    if "reward/mean" in curves:
        panels.append(partial(_line, curves=curves, name="reward/mean", title="training reward", unit="mean score"))
    if result.evaluations:
        panels.append(partial(_held_out, result=result))
    for heading, names, unit in PANELS:
        name = next((one for one in names if one in curves and not np.isnan(curves[one]).all()), None)
        if name is not None and (heading != "KL" or np.nan_to_num(curves[name]).any()):
            title = TITLES.get(heading, heading) + (f" ({name})" if heading == "KL" else "")
            panels.append(partial(_line, curves=curves, name=name, title=title, unit=unit))
    return panels


def _line(axes: "Axes", curves: Curves, name: str, title: str, unit: str) -> None:
    """Every step pale, the trailing mean over it."""
    steps, values = curves.steps, curves[name]
    window = max(1, min(20, len(values) // 5))
    marker = "o" if len(values) < 3 else None
    axes.plot(steps, values, color=MAIN, alpha=1 if window == 1 else 0.3, linewidth=1, marker=marker, markersize=4)
    if window > 1:
        axes.plot(steps, trailing_mean(values, window), color=MAIN, linewidth=2)
        title += f" (thick: mean of {window} steps)" if name == "reward/mean" else ""
    if unit == "share" or (name == "reward/mean" and ((values >= 0) & (values <= 1)).all()):
        axes.set_ylim(0, 1.03)
    elif name != "reward/mean":
        axes.set_ylim(0, 1.05 * axes.get_ylim()[1])
    axes.set_title(title, fontsize=9, loc="left")
    axes.set_ylabel(unit, fontsize=8)


def trailing_mean(values: Floats, window: int) -> Floats:
    """Mean of each value and those before it, `window` in all; NaN values are left out."""
    parts = [values[max(0, end - window) : end] for end in range(1, len(values) + 1)]
    return np.array([np.nanmean(part) if not np.isnan(part).all() else np.nan for part in parts])


def _held_out(axes: "Axes", result: Result) -> None:
    """What the summary compares, over all evaluations of the same prompts, with bootstrap intervals."""
    evaluations = result.evaluations
    shown = measures(*(one for _, one in sorted(evaluations.items())))[: len(COLOURS)]
    shift = 0.01 * max(evaluations) if len(shown) > 1 else 0.0  # side by side rather than over each other
    for number, (name, colour) in enumerate(zip(shown, COLOURS, strict=False)):
        steps, means, bounds = points(evaluations, name)
        axes.errorbar(np.array(steps) + shift * number, means, yerr=np.abs(bounds - means), color=colour, marker="o",
                      markersize=4, linewidth=1.5, capsize=2, label=label(name))  # fmt: skip
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, 0), max(high, 1))
    axes.set_title("held-out prompts, 95 % intervals", fontsize=9, loc="left")
    axes.set_ylabel("mean", fontsize=8)
    axes.legend(frameon=False, fontsize=7, loc="best")
