"""Curves, fitted laws, tables and the picture of the over-optimisation experiment.

    python recipes/overoptimisation/results.py docs/results/overoptimisation.json docs/results/overoptimisation.svg

d = sqrt(KL), KL in nats per letter. Rewards are counted from the policy at the start, gold ones in deviations of the
gold score over its letters, a proxy's in deviations of its own. Errors are over the prompts.
"""

import json
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("svg")
import matplotlib.pyplot as plt
import pyarrow.parquet as pq

from quatrain.methods.evaluate import interval
from quatrain.ops.advantages import Floats
from quatrain.ops.scaling_laws import Law, LawFit, best_of_n, bon_kl, fit_law, gold_bon, gold_rl

WINDOW = 2  # steps that a point of a PPO curve is the mean of
LAST = 3  # points at the end of a curve that its end is the mean of
COLOURS = {"proxy": "#8a8f98", "gold": "#1a7f5a", "penalty": "#2b6cb0"}


@dataclass(frozen=True, slots=True)
class Curve:
    """One climb of a proxy: the points' KL (nats), and proxy and gold rewards of Q prompts at K points.

    `x` is n for best-of-n, the last step of a point's window for PPO. `beta` is None for best-of-n.
    """

    pairs: int
    seed: int
    beta: float | None
    x: list[int]
    kl: list[float]
    proxy: list[list[float]]
    gold: list[list[float]]

    @property
    def law(self) -> Law:
        """Which law Gao et al. found for it."""
        return "bon" if self.beta is None else "rl"

    @property
    def d(self) -> Floats:
        """sqrt(KL); a KL estimate below 0 counts as 0."""
        return np.sqrt(np.clip(np.array(self.kl), 0, None))

    def mean(self, name: str) -> Floats:
        """The rewards, mean over the prompts."""
        return np.array(getattr(self, name)).mean(axis=0)

    def fit(self) -> LawFit:
        """The law's a and b."""
        return fit_law(self.law, self.d, np.array(self.gold))

    def fitted(self, d: Floats) -> Floats:
        """The fitted law."""
        fit = self.fit()
        return (gold_bon if self.law == "bon" else gold_rl)(d, fit.a, fit.b)

    def explained(self) -> float:
        """R^2 of the fitted law on the mean gold curve."""
        gold = self.mean("gold")
        return float(1 - np.square(gold - self.fitted(self.d)).sum() / np.square(gold - gold.mean()).sum())

    def peak(self) -> int:
        """Point of the highest mean gold reward."""
        return int(self.mean("gold").argmax())

    def end(self, name: str) -> Floats:
        """Rewards of every prompt at the end."""
        ends: Floats = np.array(getattr(self, name))[:, -LAST:].mean(axis=1)
        return ends

    def change(self, name: str, over: str) -> Floats:
        """Change of every prompt's rewards `over` the deepest fall of gold, or over all that follows its best point.

        Where the fall begins and ends, and the best point, are chosen on the other half of the prompts: chosen on the
        same letters they would be lucky ones. What follows the best point is taken up to the end of the curve. Points
        are means of LAST neighbours here.
        """
        gold, values, end = smooth(np.array(self.gold)), smooth(np.array(getattr(self, name))), self.end(name)
        change = np.empty(len(gold))
        for half in (0, 1):
            other = gold[1 - half :: 2].mean(axis=0)
            low = int((np.maximum.accumulate(other) - other).argmax())
            if over == "fall":
                after, best = values[:, low], int(other[: low + 1].argmax())
            else:
                after, best = end, int(other.argmax())
            change[half::2] = (after - values[:, best])[half::2]
        return change


def smooth(values_QK: Floats) -> Floats:
    """Means of LAST neighbouring points; as many points as can have them."""
    means: Floats = np.lib.stride_tricks.sliding_window_view(values_QK, LAST, axis=1).mean(axis=-1)
    return means


# --- reading ----------------------------------------------------------------------------------------------------------

Letters = Mapping[str, Sequence[Mapping[str, Any]]]  # by prompt: `gold`, and what every proxy says by its name


@dataclass(frozen=True, slots=True)
class Proxy:
    """How well a proxy orders two letters of the policy to one prompt: as the gold score does, and correlation."""

    pairs: int
    seed: int
    agreement: float
    correlation: float


@dataclass(frozen=True, slots=True)
class Experiment:
    """Everything that is shown."""

    proxies: list[Proxy]
    curves: list[Curve]


def collect(out: Path, jobs: Sequence[Mapping[str, Any]]) -> Experiment:
    """The proxies of `jobs`, and every climb of them below `out`."""
    letters: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in json.loads((out / "best-of-n.json").read_text(encoding="utf-8")):
        letters[row["prompt"]].append(row)
    names = next(iter(letters.values()))[0].keys() - {"prompt", "completion"}
    scales = {name: float(np.std([row[name] for own in letters.values() for row in own])) for name in names}
    fewest = min(map(len, letters.values()))
    ns = [2**power for power in range(1, fewest.bit_length() - 1)]  # up to half of a prompt's letters
    found = sorted({(job["pairs"], job["seed"]) for job in jobs})
    return Experiment(
        proxies=[judge_proxy(letters, pairs, seed) for pairs, seed in found],
        curves=[best_of_n_curve(letters, pairs, seed, scales, ns) for pairs, seed in found]
        + [ppo_curve(out / "ppo" / job["folder"], job, letters, scales) for job in jobs],
    )


def judge_proxy(letters: Letters, pairs: int, seed: int) -> Proxy:
    """A proxy beside the gold score on neighbouring letters of every prompt; equal gold scores are left out."""
    name, same, said, true = f"{pairs}-{seed}", [], [], []
    for own in letters.values():
        for first, second in zip(own[::2], own[1::2], strict=False):
            if first["gold"] != second["gold"]:
                same.append((first["gold"] > second["gold"]) == (first[name] > second[name]))
        said += [row[name] for row in own]
        true += [row["gold"] for row in own]
    return Proxy(pairs, seed, float(np.mean(same)), float(np.corrcoef(said, true)[0, 1]))


def best_of_n_curve(letters: Letters, pairs: int, seed: int, scales: Mapping[str, float], ns: Sequence[int]) -> Curve:
    """Expected rewards of the best of n by a proxy."""
    name, proxy, gold = f"{pairs}-{seed}", [], []
    for own in letters.values():
        said = np.array([row[name] for row in own]) / scales[name]
        true = np.array([row["gold"] for row in own]) / scales["gold"]
        proxy.append([best_of_n(said, said, n) - float(said.mean()) for n in ns])
        gold.append([best_of_n(said, true, n) - float(true.mean()) for n in ns])
    return Curve(pairs, seed, None, list(ns), bon_kl(np.array(ns)).tolist(), proxy, gold)


def ppo_curve(folder: Path, job: Mapping[str, Any], letters: Letters, scales: Mapping[str, float]) -> Curve:
    """What the saved letters of a run say: means over windows of steps, for every prompt."""
    names = {"proxy": f"{job['pairs']}-{job['seed']}", "gold": "gold"}
    start = {part: {prompt: np.mean([row[name] for row in own]) for prompt, own in letters.items()}
             for part, name in names.items()}  # fmt: skip
    steps = [read_step(path) for path in sorted((folder / "rollouts").glob("step-??????.parquet"))]
    x, kl = [], []
    rewards: dict[str, list[list[float]]] = {"proxy": [], "gold": []}
    for first in range(0, len(steps) - WINDOW + 1, WINDOW):
        window = [row for step in steps[first : first + WINDOW] for row in step]
        x.append(first + WINDOW)
        kl.append(float(np.mean([row["kl"] for row in window])))
        for part, name in names.items():
            of = {prompt: [row[part] for row in window if row["prompt"] == prompt] for prompt in letters}
            rewards[part].append([float((np.mean(of[p]) - start[part][p]) / scales[name]) for p in letters])
    by_prompt = {part: [list(row) for row in zip(*points, strict=True)] for part, points in rewards.items()}
    return Curve(job["pairs"], job["seed"], job["beta"], x, kl, by_prompt["proxy"], by_prompt["gold"])


def read_step(path: Path) -> list[dict[str, Any]]:
    """Prompt, rewards and KL (the sum of k1 over the letter) of every letter of a step."""
    columns = ["prompt", "parts", "kl_k1"]
    return [{"prompt": row["prompt"], "kl": sum(row["kl_k1"]), **json.loads(row["parts"])}
            for row in pq.read_table(path, columns=columns).to_pylist()]  # fmt: skip


# --- tables -----------------------------------------------------------------------------------------------------------


def proxy_table(found: Experiment) -> str:
    """A row per proxy."""
    lines = ["| pairs | seed | orders two letters as the gold score does | correlation with it |",
             "| --- | --- | --- | --- |"]  # fmt: skip
    for one in found.proxies:
        lines.append(f"| {one.pairs} | {one.seed} | {one.agreement:.1%} | {one.correlation:.2f} |")
    return "\n".join(lines)


def law_table(found: Experiment) -> str:
    """A row per climb: the fitted law, where gold is highest, and what is left at the end."""
    lines = [
        "| climbed by | pairs | seed | a | b | R² | highest gold | at KL (point) | the law's peak: gold, KL "
        "| end: gold | proxy | KL |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for curve in sorted(found.curves, key=lambda one: (-1 if one.beta is None else one.beta, one.pairs, one.seed)):
        fit, top, gold = curve.fit(), curve.peak(), curve.mean("gold")
        how = "best of n" if curve.beta is None else f"PPO, beta {curve.beta:g}"
        lines.append(
            f"| {how} | {curve.pairs} | {curve.seed} "
            f"| {fit.a:.2f} ± {fit.a_error:.2f} | {fit.b:.2f} ± {fit.b_error:.2f} "
            f"| {curve.explained():.2f} | {gold[top]:+.2f} | {curve.kl[top]:.1f} ({curve.x[top]}) | {law_peak(curve)} "
            f"| {curve.end('gold').mean():+.2f} | {curve.end('proxy').mean():+.2f} | {np.mean(curve.kl[-LAST:]):.1f} |"
        )
    return "\n".join(lines)


def law_peak(curve: Curve) -> str:
    """Where the fitted law has its maximum, if it lies within twice the range of d that was seen."""
    fit = curve.fit()
    if fit.b <= 0:
        return "none (b <= 0)"
    d = fit.a / (2 * fit.b) if curve.law == "bon" else float(np.exp(min(fit.a / fit.b - 1, 50)))
    if d > 2 * curve.d.max():
        return "beyond"
    return f"{float(curve.fitted(np.array(d))):+.2f}, {d * d:.1f}"


def fall_table(found: Experiment) -> str:
    """Per PPO run, how far gold falls: over-optimisation is gold that falls while the proxy does not."""
    lines = [
        "| pairs | seed | beta | deepest fall: gold | proxy | from the best point to the end: gold | proxy |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    runs = [curve for curve in found.curves if curve.beta is not None]
    changes = [(name, over) for over in ("fall", "end") for name in ("gold", "proxy")]
    for curve in sorted(runs, key=lambda one: (one.beta, one.pairs, one.seed)):
        cells = " | ".join(difference(curve.change(*change)) for change in changes)
        lines.append(f"| {curve.pairs} | {curve.seed} | {curve.beta:g} | {cells} |")
    for beta in sorted({curve.beta for curve in runs if curve.beta is not None}):
        own = [curve for curve in runs if curve.beta == beta]
        means = [np.array([curve.change(*change).mean() for curve in own]) for change in changes]
        lines.append(f"| all | all | {beta:g} | {' | '.join(map(difference, means))} |")
    return "\n".join(lines)


def penalty_table(found: Experiment) -> str:
    """The penalty against none, with the same proxy and seed; the last row is over the proxies."""
    lines = [
        "| pairs | seed | beta | gold at the end, less that of beta 0 | proxy | KL: beta 0 | with the penalty "
        "| best point (step): beta 0 | with the penalty |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    pairs = sorted(penalty_pairs(found.curves), key=lambda both: (both[1].beta, both[1].pairs, both[1].seed))
    gains: dict[str, list[Floats]] = {name: [held.end(name) - free.end(name) for free, held in pairs]
                                      for name in ("gold", "proxy")}  # fmt: skip
    for (free, held), gold, proxy in zip(pairs, gains["gold"], gains["proxy"], strict=True):
        lines.append(
            f"| {held.pairs} | {held.seed} | {held.beta:g} | {difference(gold)} | {difference(proxy)} "
            f"| {np.mean(free.kl[-LAST:]):.1f} | {np.mean(held.kl[-LAST:]):.1f} | {free.x[free.peak()]} "
            f"| {held.x[held.peak()]} |"
        )
    cells = " | ".join(difference(np.array([row.mean() for row in gains[name]])) for name in ("gold", "proxy"))
    return "\n".join([*lines, f"| all | all | | {cells} | | | | |"])


def penalty_pairs(curves: Sequence[Curve]) -> Iterator[tuple[Curve, Curve]]:
    """PPO without and with a penalty on the same proxy with the same seed."""
    ppo = [curve for curve in curves if curve.beta is not None]
    free = {(curve.pairs, curve.seed): curve for curve in ppo if curve.beta == 0}
    yield from ((free[held.pairs, held.seed], held) for held in ppo if held.beta)


def difference(values: Floats) -> str:
    """Mean with its 95 % interval over what the values are of: prompts, or proxies."""
    low, high = interval(values)
    return f"{values.mean():+.2f} [{low:+.2f}, {high:+.2f}]"


TABLES = (proxy_table, law_table, fall_table, penalty_table)


# --- picture ----------------------------------------------------------------------------------------------------------


def picture(curves: Sequence[Curve], path: Path) -> None:
    """A column per number of pairs; rows: best-of-n, PPO without a penalty, with one (over d), and gold by step."""
    matplotlib.rcParams["svg.fonttype"] = "none"  # text as text: a small file
    sizes, betas = sorted({c.pairs for c in curves}), sorted({c.beta for c in curves if c.beta is not None})
    rows: list[tuple[str, Callable[[Curve], bool]]] = [("best of n", lambda c: c.beta is None)]
    rows += [(f"PPO, beta {beta:g}", lambda c, beta=beta: c.beta == beta) for beta in betas]
    figure, grid = plt.subplots(len(rows) + 1, len(sizes), figsize=(2.7 * len(sizes) + 0.6, 2.3 * (len(rows) + 1)),
                                layout="constrained", squeeze=False, sharey="row")  # fmt: skip
    for column, pairs in enumerate(sizes):
        mine = [curve for curve in curves if curve.pairs == pairs]
        for axis, (title, wanted) in zip(grid[:, column], rows, strict=False):
            for curve in filter(wanted, mine):
                over_distance(axis, curve)
            axis.set(xlabel="d = sqrt(KL)", title=f"{pairs} pairs" if axis is grid[0, column] else "")
            grid[rows.index((title, wanted)), 0].set_ylabel(title)
        by_step(grid[-1, column], [curve for curve in mine if curve.beta is not None])
    grid[-1, 0].set_ylabel("gold by step")
    for axis in grid.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.axhline(0, color="black", linewidth=0.5)
    grid[0, 0].legend(frameon=False, fontsize=7)
    grid[-1, 0].legend(frameon=False, fontsize=7)
    figure.savefig(path, facecolor="white")
    plt.close(figure)
    text = path.read_text(encoding="utf-8")
    path.write_text(re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE), encoding="utf-8")


def over_distance(axis: Any, curve: Curve) -> None:
    """Proxy and gold in the order of the steps (or of n), and the fitted law."""
    style, first = ("-", "--", ":")[curve.seed % 3], curve.seed == 0
    d = np.append(0.0, curve.d)
    for name in ("proxy", "gold"):
        axis.plot(d, np.append(0.0, curve.mean(name)), style, color=COLOURS[name], linewidth=1.3,
                  label=name if first else None)  # fmt: skip
    along = np.linspace(0, d.max(), 60)
    axis.plot(along, curve.fitted(along), style, color="#b0413e", linewidth=1, alpha=0.8,
              label="law of the gold" if first else None)  # fmt: skip


def by_step(axis: Any, curves: Sequence[Curve]) -> None:
    """Gold reward over the steps, with and without the penalty."""
    for curve in curves:
        axis.plot([0, *curve.x], [0.0, *curve.mean("gold")], ("-", "--", ":")[curve.seed % 3], linewidth=1.4,
                  color=COLOURS["penalty" if curve.beta else "gold"],
                  label=f"beta {curve.beta:g}" if curve.seed == 0 else None)  # fmt: skip
    axis.set_xlabel("step")


# --- files ------------------------------------------------------------------------------------------------------------


def write(found: Experiment, out: Path) -> None:
    """`overoptimisation.json`, `.svg` and the tables on the screen."""
    rounded = json.loads(json.dumps(asdict(found)), parse_float=lambda text: round(float(text), 4))
    parts = {name: ",\n".join(json.dumps(row) for row in rows) for name, rows in rounded.items()}
    text = ",\n".join(f'"{name}": [\n{rows}\n]' for name, rows in parts.items())
    (out / "overoptimisation.json").write_text(f"{{{text}}}\n", encoding="utf-8")
    show(out / "overoptimisation.json", out / "overoptimisation.svg")


def load(source: Path) -> Experiment:
    """What `write` wrote."""
    data = json.loads(source.read_text(encoding="utf-8"))
    return Experiment([Proxy(**row) for row in data["proxies"]], [Curve(**row) for row in data["curves"]])


def show(source: Path, target: Path) -> None:
    """The picture and the tables of a saved experiment."""
    found = load(source)
    picture(found.curves, target)
    print(*(table(found) for table in TABLES), sep="\n\n")


if __name__ == "__main__":
    show(Path(sys.argv[1]), Path(sys.argv[2]))
