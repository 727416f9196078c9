"""What the walk through RLHF gained: a table, answers before and after, and a picture, from the folders of its runs.

python recipes/rlhf/results.py runs/rlhf
"""

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import numpy as np

import quatrain
from quatrain.methods.evaluate import interval

LAST = 5  # steps whose completions say how far the policy is from where it began
MEASURES = {"preference": "the reward model", "gold": "the gold score", "declines": "words of refusal"}
CURVES = {"preference": "reward/preference", "gold": "reward/gold", "kl": "kl/per_sequence"}
TITLES = {"preference": "reward model (deviations)", "gold": "gold score", "kl": "KL to the SFT model (nats an answer)"}
COLOURS = {"preference": "#4c6ef5", "gold": "#c98a00", "kl": "#1a7f5a"}
SHOWN = 4


def main(folder: Path) -> None:
    """Write `results.json` and `results.svg` into the folder, and print the tables."""
    found = collect(folder)
    (folder / "results.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    picture(found, folder / "results.svg")
    print(f"{win_rates(found)}\n\n{side_by_side(found)}\n\npicture: {folder / 'results.svg'}")


def collect(folder: Path) -> dict[str, Any]:
    """All figures: held-out comparison, KL, curves, answers."""
    ppo = quatrain.load_run(folder / "ppo")
    saved = json.loads((folder / "compared.json").read_text(encoding="utf-8"))
    compared, curves = saved["comparison"]["sampled"]["measures"], ppo.metrics
    measured = {name: f"part {name}" for name in MEASURES if f"part {name}" in compared} or {"preference": "reward"}
    first, second = (saved[side]["sampled"]["answers"] for side in ("against", "target"))
    return {
        "measures": {name: compared[key] for name, key in measured.items()},
        "completions": len(first),
        "length": {side: compared["length"][side]["value"] for side in ("against", "target")},
        "kl": kl_per_sequence(ppo),
        "curves": {name: curves[metric].tolist() for name, metric in CURVES.items() if metric in curves},
        "answers": [
            {"prompt": one["question"].strip(), "before": [one["completion"], one["parts"]],
             "after": [other["completion"], other["parts"]]}
            for one, other in zip(first, second, strict=True)
        ],
    }  # fmt: skip


def kl_per_sequence(run: Any) -> dict[str, float]:
    """KL(policy || SFT model) of the last steps' completions, summed over each: mean and 95 % interval over prompts."""
    steps = range(max(1, run.steps - LAST + 1), run.steps + 1)
    sums: dict[tuple[int, str], list[float]] = {}
    for step in steps:
        for row in run.completions(step):
            sums.setdefault((step, row["prompt"]), []).append(float(np.sum(row["kl_k1"])))
    values = np.array([np.mean(own) for own in sums.values()])
    low, high = interval(values)
    return {"value": float(values.mean()), "low": low, "high": high, "steps": len(steps)}


def win_rates(found: dict[str, Any]) -> str:
    """A Markdown table of the held-out comparison."""
    lines = ["| judged by | SFT | PPO | difference | win rate of PPO | higher / lower / equal |", "| --- " * 6 + "|"]
    for name, one in found["measures"].items():
        lines.append(f"| {MEASURES[name]} | {one['against']['value']:.2f} | {one['target']['value']:.2f} "
                     f"| {spread(one['difference'], '+.2f')} | {spread(one['win_rate'], '.1%')} "
                     f"| {one['higher']} / {one['lower']} / {one['equal']} |")  # fmt: skip
    lengths = " and ".join(f"{found['length'][side]:.1f}" for side in ("against", "target"))
    lines += [
        "",
        f"{one['target']['prompts']} held-out prompts, {found['completions']} answers of each model, 95 % "
        f"intervals over prompts; mean length {lengths} tokens.",
        f"KL to the SFT model: {spread(found['kl'], '.2f')} nats per answer, over the answers of the last "
        f"{found['kl']['steps']} steps.",
    ]
    return "\n".join(lines)


def spread(cell: dict[str, float], form: str) -> str:
    """`0.50 [0.40, 0.60]`; `-` where nothing was judged."""
    if cell["value"] is None:
        return "-"
    return f"{cell['value']:{form}} [{cell['low']:{form}}, {cell['high']:{form}}]"


def side_by_side(found: dict[str, Any]) -> str:
    """A few held-out prompts with the answer of both models; in brackets what judged them said."""
    lines = ["| prompt | SFT | PPO |", "| --- | --- | --- |"]
    for row in found["answers"][:: max(1, len(found["answers"]) // SHOWN)][:SHOWN]:
        cells = [row["prompt"]]
        for text, parts in (row["before"], row["after"]):
            cells.append(f"{text} ({', '.join(f'{name} {value:+.1f}' for name, value in parts.items())})")
        lines.append("| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in cells) + " |")
    return "\n".join(lines)


def picture(found: dict[str, Any], path: Path) -> None:
    """A panel for each curve over the steps of PPO."""
    curves = found["curves"]
    figure, panels = plt.subplots(1, len(curves), figsize=(3.2 * len(curves), 2.7), layout="constrained")
    for axes, (name, values) in zip(panels, curves.items(), strict=True):
        axes.plot(np.arange(1, len(values) + 1), values, color=COLOURS[name], linewidth=1.6)
        axes.set_title(TITLES[name], fontsize=9, loc="left")
        axes.set_xlabel("PPO step", fontsize=8)
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, facecolor="white", metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
