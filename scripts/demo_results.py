"""Table and picture of the demo's seeds and their controls.

for seed in 0 1 2; do for name in demo demo-shuffled; do
  quatrain train recipes/$name.yaml seed=$seed output=runs/$name-$seed; done; done
python scripts/demo_results.py runs docs/results/demo.svg > docs/results/demo.md
"""

import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

from quatrain.methods.evaluate import compare, evaluation_path, load_evaluation
from quatrain.telemetry.run_log import read_metrics

NAMES = {"demo": "true rewards", "demo-shuffled": "shuffled rewards (control)"}
COLOURS = {"demo": "#1a7f5a", "demo-shuffled": "#b0413e"}
MEASURES = {
    "correct": "right answer (as paid)",
    "part without_credit_for_form": "without credit for form (50 % is chance)",
}


def runs(root: Path, name: str) -> list[Path]:
    """Finished runs of a recipe, by seed."""
    return sorted(path for path in root.glob(f"{name}-[0-9]*") if len(list((path / "evaluations").glob("*.json"))) > 1)


def table(root: Path) -> str:
    """A Markdown row per run and measure."""
    lines = [
        "| rewards | seed | measure | before | after | difference, paired 95 % interval |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, title in NAMES.items():
        for run in runs(root, name):
            last = max(int(path.stem.removeprefix("step-")) for path in (run / "evaluations").glob("step-*.json"))
            before, after = load_evaluation(run, 0), load_evaluation(run, last)
            assert before is not None and after is not None, evaluation_path(run, last)
            for key, measure in MEASURES.items():
                found = compare(before, after, key)
                low, high = (100 * bound for bound in found["difference_interval"])
                lines.append(
                    f"| {title} | {run.name.rpartition('-')[2]} | {measure} | {found['before']:.1%} "
                    f"| {found['after']:.1%} | {found['difference'] * 100:+.1f} points [{low:+.1f}, {high:+.1f}] |"
                )
    return "\n".join(lines)


def picture(root: Path, path: Path) -> None:
    """Training reward of every step, a line per seed."""
    figure, axes = plt.subplots(figsize=(7, 3.4), layout="constrained")
    for name, title in NAMES.items():
        for number, run in enumerate(runs(root, name)):
            rows = read_metrics(run)
            rewards = [row.metrics["reward/correct"] for row in rows]
            axes.plot([row.step for row in rows], rewards, color=COLOURS[name], alpha=0.35, linewidth=1)
            windows = [rewards[max(0, i - 4) : i + 1] for i in range(len(rewards))]
            smooth = [sum(window) / len(window) for window in windows]
            label = title if number == 0 else None
            axes.plot([row.step for row in rows], smooth, color=COLOURS[name], linewidth=2, label=label)
    axes.set(xlabel="step (8 new questions x 8 answers each)", ylabel="share of right answers", ylim=(0, 1))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper left")
    figure.savefig(path, facecolor="white")


if __name__ == "__main__":
    picture(Path(sys.argv[1]), Path(sys.argv[2]))
    print(table(Path(sys.argv[1])))
