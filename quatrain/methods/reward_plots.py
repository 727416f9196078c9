"""The pictures of a reward model's report: calibration, accuracy by length, scores, and the front of two heads."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from quatrain.errors import SettingError
from quatrain.methods.plot import COLOURS, GREY, MAIN
from quatrain.telemetry.files import replace_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def save_picture(report: dict[str, Any], path: Path) -> None:
    """Draw `report` into an SVG file. Raises SettingError without matplotlib."""
    try:
        from matplotlib import rc_context
    except ImportError:
        raise SettingError("plot", "no matplotlib", "matplotlib to be installed",
                           "pip install 'quatrain[plot]'") from None  # fmt: skip
    text = io.StringIO()
    with rc_context({"svg.hashsalt": "reward report"}):  # the same report gives the same file
        report_figure(report).savefig(text, format="svg", metadata={"Date": None})
    replace_text(path, text.getvalue())


def report_figure(report: dict[str, Any]) -> "Figure":
    """A panel for each part that the report has."""
    from matplotlib.figure import Figure

    draws: list[Callable[[Axes, dict[str, Any]], None]] = [_calibration, _lengths, _scores]
    draws += [_front] if "heads" in report else []
    figure = Figure(figsize=(4.2 * len(draws), 3.6), layout="constrained", facecolor="white")
    for number, draw in enumerate(draws, 1):
        axes = figure.add_subplot(1, len(draws), number)
        draw(axes, report)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    figure.suptitle(f"{report['pairs']} pairs of {report['examples']} {report['measured_on']}, 95 % intervals",
                    fontsize=9, color=GREY)  # fmt: skip
    return figure


def _calibration(axes: "Axes", report: dict[str, Any]) -> None:
    """Observed over predicted, with the diagonal of a perfect one and the number of pairs of each bin."""
    bins = report["calibration"]["bins"]
    axes.plot([0.5, 1], [0.5, 1], color=GREY, linewidth=1, linestyle="--", label="perfect")
    _points(axes, [one["predicted"] for one in bins], [one["observed"] for one in bins], "observed")
    axes.set_ylim(min([0.4, *(one["observed"]["low"] for one in bins)]) - 0.1, 1.02)
    for one in bins:
        axes.annotate(str(one["pairs"]), (one["predicted"], 0), xycoords=("data", "axes fraction"), xytext=(0, 3),
                      textcoords="offset points", fontsize=7, color=GREY, ha="center")  # fmt: skip
    _titles(axes, f"calibration (error {report['calibration']['error']:.3f})",
            "predicted probability of the preferred answer", "share in which it was chosen")  # fmt: skip
    axes.legend(frameon=False, fontsize=7, loc="upper left")


def _lengths(axes: "Axes", report: dict[str, Any]) -> None:
    """Accuracy in bins of the difference in length."""
    bins = report["by_length_difference"]
    axes.axhline(0.5, color=GREY, linewidth=1, linestyle="--", label="chance")
    if report["accuracy"]["value"] is not None:
        axes.axhline(report["accuracy"]["value"], color=COLOURS[2], linewidth=1, label="all pairs")
    _points(axes, list(range(len(bins))), bins, "in the bin")
    ranges = [" to ".join(dict.fromkeys(f"{one[end]:+.0f}" for end in ("from", "to"))) for one in bins]
    axes.set_xticks(range(len(bins)), [f"{own}\n{one['pairs']}" for own, one in zip(ranges, bins, strict=True)])
    axes.set_ylim(0, 1.02)
    _titles(axes, "accuracy by difference in length", "chosen less rejected tokens; pairs", "accuracy")
    axes.legend(frameon=False, fontsize=7, loc="lower left")


def _scores(axes: "Axes", report: dict[str, Any]) -> None:
    """Histograms of both sides over the same edges."""
    for name, colour in (("chosen", MAIN), ("rejected", COLOURS[1])):
        if report["scores"]:
            own = report["scores"][name]
            axes.stairs(own["counts"], report["scores"]["edges"], color=colour, fill=True, alpha=0.25)
            axes.stairs(own["counts"], report["scores"]["edges"], color=colour, linewidth=1.5,
                        label=f"{name}: mean {own['mean']:+.2f}")  # fmt: skip
            axes.axvline(own["mean"], color=colour, linewidth=1, linestyle="--")
    _titles(axes, "scores (normalised)", "score", "answers")
    if report["scores"]:
        axes.legend(frameon=False, fontsize=7)


def _front(axes: "Axes", report: dict[str, Any]) -> None:
    """Answers by the scores of the first two heads, and those that no other one beats in both."""
    heads = report["heads"]
    points_A2 = np.array(heads["points"])
    front_F2 = np.array([one["scores"][:2] for one in heads["front"]])
    axes.scatter(points_A2[:, 0], points_A2[:, 1], s=6, color=GREY, alpha=0.5, linewidths=0)
    axes.plot(front_F2[:, 0], front_F2[:, 1], color=COLOURS[1], marker="o", markersize=4, linewidth=1.2,
              drawstyle="steps-post", label=f"front: {len(front_F2)} answers")  # fmt: skip
    first, second = heads["front_attributes"]
    _titles(axes, f"two heads (correlation {heads['correlation'][0][1]:+.2f})", first, second)
    axes.legend(frameon=False, fontsize=7)


def _points(axes: "Axes", x: list[Any], cells: list[dict[str, Any]], label: str) -> None:
    values = np.array([one["value"] for one in cells])
    bounds = np.array([[one["low"], one["high"]] for one in cells]).reshape(-1, 2).T
    axes.errorbar(x, values, yerr=np.abs(bounds - values), color=MAIN, marker="o", markersize=5, linewidth=1.5,
                  capsize=3, label=label)  # fmt: skip


def _titles(axes: "Axes", title: str, x: str, y: str) -> None:
    axes.set_title(title, fontsize=9, loc="left")
    axes.set_xlabel(x, fontsize=8)
    axes.set_ylabel(y, fontsize=8)
