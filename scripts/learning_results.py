"""Learning runs of three tasks, beside TRL's GRPOTrainer: the record, the tables and the picture.

for task in gym-chain-sum gym-arithmetic mawps; do for seed in 0 1; do
  quatrain train recipes/$task.yaml seed=$seed output=runs/$task-$seed 'log.trackers=[benchmarks/trl_grpo.py:Clock]'
done; python benchmarks/trl_grpo.py recipes/$task.yaml output=runs/trl-$task-0; done
python scripts/learning_results.py collect runs docs/results/learning.json
python scripts/learning_results.py show docs/results/learning.json docs/results/learning.svg
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from statistics import mean, median
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("svg")
import matplotlib.pyplot as plt

from quatrain.data.sources import Row, load_rows
from quatrain.methods.evaluate import interval, load_evaluation
from quatrain.methods.run_folder import read_recipe

TASKS = {"gym-chain-sum": "chain_sum", "gym-arithmetic": "basic_arithmetic", "mawps": "MAWPS"}
TRAINERS = {"quatrain": "Quatrain", "trl": "TRL"}
COLOURS = {"quatrain": "#1a7f5a", "trl": "#b0413e"}
LAST = 10  # steps that a figure of the training reward is the mean of


@dataclass(frozen=True, slots=True)
class Run:
    """One run: its steps (reward, tokens, wall_s, cpu_s), and right or wrong for every held-out prompt by step."""

    task: str
    trainer: str
    seed: int
    steps: list[dict[str, float]]
    held_out: dict[int, list[int]]
    blind: tuple[str, float]  # the best answer that needs no reading of the question, and its accuracy

    def reward(self, until: int) -> float:
        """Mean training reward of the last steps up to a step."""
        return mean(row["reward"] for row in self.steps[max(0, until - LAST) : until])

    def done_by(self, cpu_s: float) -> int:
        """Steps finished within so many CPU seconds."""
        return sum(row["cpu_s"] <= cpu_s for row in self.steps)

    def seconds(self, clock: str) -> float:
        """Median seconds of a step."""
        times = [0.0, *(row[clock] for row in self.steps)]
        return median(after - before for before, after in pairwise(times))


def collect(root: Path) -> list[Run]:
    """The runs below `root`, by task, trainer and seed."""
    runs = []
    for task in TASKS:
        for trainer, prefix in (("quatrain", ""), ("trl", "trl-")):
            for folder in sorted(root.glob(f"{prefix}{task}-[0-9]")):
                runs.append(read_run(folder, task, trainer))
    return runs


def read_run(folder: Path, task: str, trainer: str) -> Run:
    """A run's folder."""
    recipe = read_recipe(folder)
    lines = (folder / "steps.jsonl").read_text(encoding="utf-8").splitlines()
    held_out = {}
    for path in sorted((folder / "evaluations").glob("step-*.json")):
        step = int(path.stem.removeprefix("step-"))
        evaluation = load_evaluation(folder, step)
        assert evaluation is not None, path
        held_out[step] = [int(right) for right in evaluation.per_prompt("correct")]
    rows = load_rows(recipe.held_out[0], "held_out[0]")
    blind = best_rule(rows) if task == "mawps" else best_constant(rows)
    return Run(task, trainer, recipe.seed, list(map(json.loads, lines)), held_out, blind)


def best_constant(rows: list[Row]) -> tuple[str, float]:
    """The gold that the most prompts have."""
    golds = Counter(str(row.columns["answer"]).removesuffix(".0") for row in rows)
    gold, count = golds.most_common(1)[0]
    return f"always {gold}", count / golds.total()


RULES: dict[str, Callable[[list[float]], float]] = {
    "the sum of all numbers": sum,
    "the first two numbers added": lambda numbers: sum(numbers[:2]),
    "the first number less the second": lambda numbers: numbers[0] - numbers[1],
    "the first two numbers multiplied": lambda numbers: prod(numbers[:2]),
    "the largest number less the smallest": lambda numbers: max(numbers) - min(numbers),
}


def best_rule(rows: list[Row]) -> tuple[str, float]:
    """The same calculation with the numbers of every question."""
    right: Counter[str] = Counter()
    for row in rows:
        numbers = [float(text) for text in re.findall(r"\d+(?:\.\d+)?", row.question)]
        right.update(
            name for name, rule in RULES.items() if len(numbers) > 1 and rule(numbers) == row.columns["answer"]
        )
    name, count = right.most_common(1)[0]
    return name, count / len(rows)


def load(path: Path) -> list[Run]:
    """What `collect` wrote."""
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return [Run(**{**row, "held_out": {int(step): v for step, v in row["held_out"].items()}}) for row in rows]


def held_out_table(runs: list[Run]) -> str:
    """A row per run: accuracy before and after, and the paired difference."""
    lines = [
        "| task | trainer | seed | steps | before | after | difference, paired 95 % interval |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for run in runs:
        before = np.array(run.held_out[0])
        for step, values in sorted(run.held_out.items())[1:]:
            difference = np.array(values) - before
            low, high = (100 * bound for bound in interval(difference))
            lines.append(
                f"| {TASKS[run.task]} | {TRAINERS[run.trainer]} | {run.seed} | {step} | {before.mean():.1%} "
                f"| {mean(values):.1%} | {100 * difference.mean():+.1f} points [{low:+.1f}, {high:+.1f}] |"
            )
    return "\n".join(lines)


def comparison_table(runs: list[Run]) -> str:
    """Quatrain and TRL with the same seed: reward at equal samples and at equal CPU time, and the cost of a step."""
    lines = [
        "| task, seed | reward of steps | Quatrain | TRL | at CPU seconds | Quatrain | TRL "
        "| CPU s a step: Quatrain | TRL | ratio |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    ours = {(run.task, run.seed): run for run in runs if run.trainer == "quatrain"}
    for other in (run for run in runs if run.trainer == "trl" and (run.task, run.seed) in ours):
        run = ours[other.task, other.seed]
        same = min(len(run.steps), len(other.steps))
        budget = min(run.steps[-1]["cpu_s"], other.steps[-1]["cpu_s"])
        cost, other_cost = run.seconds("cpu_s"), other.seconds("cpu_s")
        lines.append(
            f"| {TASKS[run.task]}, {run.seed} | {max(1, same - LAST + 1)} to {same} | {run.reward(same):.3f} "
            f"| {other.reward(same):.3f} | {budget:.0f} | {at(run, budget)} | {at(other, budget)} "
            f"| {cost:.1f} | {other_cost:.1f} | {other_cost / cost:.1f} |"
        )
    return "\n".join(lines)


def at(run: Run, cpu_s: float) -> str:
    """Training reward when so many CPU seconds were used, with the step."""
    step = run.done_by(cpu_s)
    return f"{run.reward(step):.3f} (step {step})" if step else "no step"


def blind_table(runs: list[Run]) -> str:
    """What can be had on the held-out prompts without understanding them."""
    lines = ["| task | held-out prompts | best blind answer | its accuracy |", "| --- | --- | --- | --- |"]
    for task, run in {run.task: run for run in runs}.items():
        lines.append(f"| {TASKS[task]} | {len(run.held_out[0])} | {run.blind[0]} | {run.blind[1]:.1%} |")
    return "\n".join(lines)


def smooth(values: list[float]) -> list[float]:
    """Running mean of the last steps."""
    return [mean(values[max(0, i - LAST + 1) : i + 1]) for i in range(len(values))]


def picture(runs: list[Run], path: Path) -> None:
    """A row per task: reward by step, reward by CPU time, held-out accuracy (dotted: the best blind answer)."""
    matplotlib.rcParams["svg.fonttype"] = "none"  # text as text: a small file
    tasks = [task for task in TASKS if any(run.task == task for run in runs)]
    figure, grid = plt.subplots(len(tasks), 3, figsize=(10, 2.7 * len(tasks)), layout="constrained", squeeze=False)
    for task, axes in zip(tasks, grid, strict=True):
        mine = [run for run in runs if run.task == task]
        for run in mine:
            rewards = [row["reward"] for row in run.steps]
            style = {"color": COLOURS[run.trainer], "linestyle": ("-", "--", ":")[run.seed], "linewidth": 1.6}
            for axis, xs in ((axes[0], [row["step"] for row in run.steps]),
                             (axes[1], [row["cpu_s"] / 60 for row in run.steps])):  # fmt: skip
                axis.plot(xs, rewards, **{**style, "linewidth": 0.8}, alpha=0.2)
                axis.plot(xs, smooth(rewards), **style, label=f"{TRAINERS[run.trainer]}, seed {run.seed}")
        bars(axes[2], mine)
        axes[0].set(title=TASKS[task], xlabel="step", ylabel="training reward", ylim=(0, None))
        axes[1].set(title="the same by time", xlabel="CPU minutes", ylabel="training reward", ylim=(0, None))
        axes[2].set(title="held out", ylabel="accuracy", ylim=(0, None))
        axes[1].legend(frameon=False, fontsize=7)
        for axis in axes:
            axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, facecolor="white")
    text = path.read_text(encoding="utf-8")
    path.write_text(re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE), encoding="utf-8")


def bars(axis: Any, runs: list[Run]) -> None:
    """Accuracy before and after each run, with the 95 % intervals over prompts."""
    names = ["start"]
    values, colours = [np.array(runs[0].held_out[0])], ["#888888"]
    for run in runs:
        if len(run.held_out) > 1:
            step = max(run.held_out)
            names.append(f"{TRAINERS[run.trainer]} {run.seed}\nstep {step}")
            values.append(np.array(run.held_out[step]))
            colours.append(COLOURS[run.trainer])
    centres = [float(value.mean()) for value in values]
    bounds = [interval(value) for value in values]
    errors = [[c - low for c, (low, _) in zip(centres, bounds, strict=True)],
              [high - c for c, (_, high) in zip(centres, bounds, strict=True)]]  # fmt: skip
    axis.bar(range(len(names)), centres, color=colours, yerr=errors, capsize=3, width=0.6)
    axis.set_xticks(range(len(names)), names, fontsize=6)
    axis.axhline(runs[0].blind[1], color="black", linewidth=0.8, linestyle=":")


if __name__ == "__main__":
    command, source, target = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    if command == "collect":
        rows = ",\n".join(json.dumps(asdict(run)) for run in collect(source))
        target.write_text(f"[\n{rows}\n]\n", encoding="utf-8")
    else:
        found = load(source)
        picture(found, target)
        print(held_out_table(found), comparison_table(found), blind_table(found), sep="\n\n")
