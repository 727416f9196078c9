"""How good a finished reward model is: accuracy, calibration, what the lengths alone would say, scores, heads.

Written into RUN/reward_report.json (with reward_report.svg where matplotlib is installed) and shown on the console.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from quatrain.data.examples import Example
from quatrain.errors import SettingError
from quatrain.methods.evaluate import Floats
from quatrain.methods.measures import Cell, cell
from quatrain.methods.paired import sign_test
from quatrain.methods.reward_plots import save_picture
from quatrain.methods.reward_scores import Scored, training_examples
from quatrain.models.scalar import RewardInfo
from quatrain.ops.bradley_terry import ranking_pairs
from quatrain.telemetry.console import Console
from quatrain.telemetry.files import replace_text
from quatrain.types import Sample

if TYPE_CHECKING:
    from quatrain.methods.offline_run import OfflineRun

FILE, PICTURE = "reward_report.json", "reward_report.svg"
MOST_TRAINING = 2000  # training examples from which the direction of the length baseline is read
MOST_POINTS = 1000  # answers in the Pareto picture
BINS = 5  # of the predicted probability, from 1/2 to 1, and of the difference in length
Report = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """P comparisons, arrays over pairs: of a tie nobody is chosen, and `chosen` is the answer that stands first."""

    prompt: np.ndarray  # equal for pairs with one question
    source: np.ndarray
    head: np.ndarray  # the attribute that was judged
    tie: np.ndarray
    confidence: Floats  # probability that the chosen answer is the better one, from the data
    chosen: Floats  # raw score by the judged head
    rejected: Floats
    length: Floats  # tokens of the chosen answer less those of the rejected one

    def where(self, kept_P: np.ndarray) -> "Compared":
        """The pairs that a mask keeps."""
        return Compared(**{one.name: getattr(self, one.name)[kept_P] for one in fields(self)})

    @property
    def difference(self) -> Floats:
        """Score of the chosen answer less that of the rejected one: the logit of P(chosen is better)."""
        return np.asarray(self.chosen - self.rejected)


def compare_answers(examples: Sequence[Example], scores: Sequence[Floats]) -> Compared:
    """All pairs of every example; `scores` holds what each head says of each of its answers, scores_KH."""
    prompts: dict[str, int] = {}
    columns: list[list[Any]] = [[] for _ in fields(Compared)]
    for example, scores_KH in zip(examples, scores, strict=True):
        own = example.samples
        head = int(_said(own[0], "head", 0.0))
        pairs = ranking_pairs([_said(sample, "rank", 0.0) for sample in own])
        prompt = prompts.setdefault(example.question, len(prompts))
        for best, worst, tie in zip(*(one.tolist() for one in pairs[:3]), strict=True):
            row = (prompt, example.source, head, tie, _said(own[best], "confidence", 1.0), scores_KH[best, head],
                   scores_KH[worst, head], len(own[best].token_ids) - len(own[worst].token_ids))  # fmt: skip
            for column, value in zip(columns, row, strict=True):
                column.append(value)
    kinds = (int, object, int, bool, float, float, float, float)
    names = [one.name for one in fields(Compared)]
    return Compared(**{name: np.array(column, dtype=kind)
                       for name, column, kind in zip(names, columns, kinds, strict=True)})  # fmt: skip


def _said(sample: Sample, stream: str, default: float) -> float:
    return float(sample.streams[stream][0]) if stream in sample.streams else default


# --- measures ---------------------------------------------------------------------------------------------------------


def right(difference_P: Floats) -> Floats:
    """1 where the chosen side is ahead, 0 where it is behind, 1/2 where both are equal."""
    return np.asarray((np.sign(difference_P) + 1) / 2)


def per_prompt(values_P: Floats, prompt_P: np.ndarray) -> Floats:
    """Mean over the pairs of each prompt, so that a ranking counts as much as a pair."""
    _, index_P = np.unique(prompt_P, return_inverse=True)
    return np.asarray(np.bincount(index_P, values_P) / np.bincount(index_P))


def wilson(values: Floats) -> Cell:
    """The mean of values in [0, 1] with the 95 % score interval of a share (Wilson 1927), over prompts.

    center, half = (p + z^2 / 2n) / (1 + z^2 / n), z sqrt(p (1 - p) / n + z^2 / 4n^2) / (1 + z^2 / n), z = 1.959964.
    For values that are not all 0 or 1 (rankings) it is wider than need be.
    """
    n, z = len(values), 1.959963984540054
    if not n:
        return {"value": None, "low": None, "high": None, "prompts": 0}
    p = float(values.mean())
    center, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    low, high = ((center + sign * half) / (1 + z * z / n) for sign in (-1, 1))
    return {"value": p, "low": max(low, 0.0), "high": min(high, 1.0), "prompts": n}


def accuracy(pairs: Compared, difference_P: Floats) -> Cell:
    """Share of pairs whose chosen side is ahead, equal sides half, with its interval over prompts."""
    return {**wilson(per_prompt(right(difference_P), pairs.prompt)), "pairs": len(difference_P)}


def calibration(pairs: Compared) -> Report:
    """Bins of the predicted probability of the answer that the model prefers, against how often it is the chosen one.

    Predicted: max(q, 1 - q) with q = sigmoid(difference); observed: the mean of the data's confidence in that answer.
    error = sum over bins of n_b / P |predicted_b - observed_b| (Guo et al. 2017, arXiv:1706.04599 eq. 3).
    """
    size_P = np.abs(pairs.difference)
    predicted_P = 1 / (1 + np.exp(-size_P))
    observed_P = np.where(pairs.difference == 0, 0.5,
                          np.where(pairs.difference > 0, pairs.confidence, 1 - pairs.confidence))  # fmt: skip
    bin_P = np.minimum(((predicted_P - 0.5) * 2 * BINS).astype(int), BINS - 1)
    bins = []
    for number in range(BINS):
        inside = bin_P == number
        if inside.any():
            bins.append({"from": 0.5 + number / (2 * BINS), "to": 0.5 + (number + 1) / (2 * BINS),
                         "pairs": int(inside.sum()), "predicted": float(predicted_P[inside].mean()),
                         "observed": wilson(per_prompt(observed_P[inside], pairs.prompt[inside]))})  # fmt: skip
    gaps = [one["pairs"] * abs(one["predicted"] - observed_P[bin_P == b].mean())
            for b, one in zip(np.unique(bin_P), bins, strict=True)]  # fmt: skip
    return {"error": float(sum(gaps) / max(len(predicted_P), 1)), "bins": bins}


def by_length(pairs: Compared) -> list[Report]:
    """Accuracy in bins of equal share of the difference in length (chosen less rejected tokens)."""
    if not len(pairs.length):
        return []
    edges = np.unique(np.quantile(pairs.length, np.linspace(0, 1, BINS + 1)))
    place_P = np.clip(np.searchsorted(edges, pairs.length, side="right") - 1, 0, max(len(edges) - 2, 0))
    found = []
    for number in np.unique(place_P):
        inside = pairs.where(place_P == number)
        found.append({"from": float(inside.length.min()), "to": float(inside.length.max()),
                      **accuracy(inside, inside.difference)})  # fmt: skip
    return found


def length_baseline(pairs: Compared, training: Compared, heads: int) -> Report:
    """What the lengths alone would say: per head the longer or the shorter answer, whichever wins in `training`.

    The difference to the model is paired over prompts (bootstrap interval); `p` is the exact sign test on the prompts
    that one gets more right than the other, for single pairs McNemar's. Where both answers are as long, half is right.
    """
    signs = [np.sign(training.length[~training.tie & (training.head == head)]).sum() for head in range(heads)]
    direction_H = np.where(np.array(signs) < 0, -1.0, 1.0)
    says_P = direction_H[pairs.head] * pairs.length
    own, lengths = (per_prompt(right(one), pairs.prompt) for one in (pairs.difference, says_P))
    gain = own - lengths
    higher, lower = int((gain > 1e-12).sum()), int((gain < -1e-12).sum())
    found = {
        "prefers": ["longer" if sign > 0 else "shorter" for sign in direction_H],
        "accuracy": accuracy(pairs, says_P),
        "difference": cell(gain) if len(gain) else wilson(gain),
        "model_better": higher,
        "baseline_better": lower,
        "p": sign_test(higher, lower),
    }
    return {**found, "verdict": verdict(found)}


def verdict(baseline: Report) -> str:
    """The comparison with the length baseline in words."""
    p, ahead = baseline["p"], baseline["model_better"] > baseline["baseline_better"]
    if p >= 0.05:
        return (f"The difference to the length baseline is not significant (p = {p:.2g}): these pairs do not show that "
                "the model knows more than the lengths of the answers say.")  # fmt: skip
    return f"The model is {'better' if ahead else 'worse'} than the length baseline (p = {p:.2g})."


def distribution(pairs: Compared, info: RewardInfo) -> Report:
    """Normalised scores of the chosen and of the rejected answers: mean, deviation, and counts over common edges."""
    mean_P, std_P = np.array(info.mean)[pairs.head], np.array(info.std)[pairs.head]
    sides = {name: (getattr(pairs, name) - mean_P) / std_P for name in ("chosen", "rejected")}
    both = np.concatenate(list(sides.values()))
    if not len(both):
        return {}
    edges = np.histogram_bin_edges(both, bins=24)
    return {"edges": edges.tolist()} | {
        name: {"mean": float(own.mean()), "std": float(own.std()), "counts": np.histogram(own, edges)[0].tolist()}
        for name, own in sides.items()
    }


def ties(pairs: Compared) -> Report:
    """How far apart the two sides of a tie are, beside those of a pair with a winner (raw scores)."""
    size_P = np.abs(pairs.difference)
    return {"pairs": int(pairs.tie.sum()), "mean_distance": float(size_P[pairs.tie].mean()),
            "mean_distance_of_others": float(size_P[~pairs.tie].mean()) if not pairs.tie.all() else None}  # fmt: skip


def heads_report(pairs: Compared, scored: Scored, info: RewardInfo) -> Report:
    """Of several heads: correlation over different answers, and the answers by their first two scores with the front.

    On the front is an answer than which no other has both scores higher, or one higher and the other as high.
    """
    found: dict[bytes, tuple[str, Floats]] = {}
    for example, scores_KH in zip(scored.examples, scored.scores, strict=True):
        for sample, scores_H in zip(example.samples, scores_KH, strict=True):
            found.setdefault(sample.token_ids.tobytes(), (sample.label, scores_H))
    labels = [label for label, _ in found.values()]
    scores_AH = (np.array([scores for _, scores in found.values()]) - info.mean) / info.std
    with np.errstate(invalid="ignore", divide="ignore"):
        correlation = np.corrcoef(scores_AH, rowvar=False)
    front = pareto_front(scores_AH[:, :2])
    shown = sorted({*range(min(len(labels), MOST_POINTS)), *front})
    return {
        "attributes": list(info.attributes),
        "weights": list(info.weights),
        "correlation": np.where(np.isfinite(correlation), correlation, 0.0).tolist(),
        "points": scores_AH[shown, :2].round(4).tolist(),
        "front": [{"answer": labels[one], "scores": scores_AH[one].round(4).tolist()} for one in front],
        "front_attributes": list(info.attributes[:2]),
        "accuracy": {name: accuracy(own, own.difference) for name, own in _by(pairs, pairs.head, info.attributes)},
    }


def pareto_front(scores_A2: Floats) -> list[int]:
    """Rows that no other row beats in one column without losing in the other, by falling first column."""
    front: list[int] = []
    best = -math.inf
    for row in np.lexsort((-scores_A2[:, 1], -scores_A2[:, 0])):
        if scores_A2[row, 1] > best:
            front.append(int(row))
            best = scores_A2[row, 1]
    return front


def _by(pairs: Compared, key_P: np.ndarray, names: Sequence[str]) -> list[tuple[str, Compared]]:
    return [(name, pairs.where(key_P == number)) for number, name in enumerate(names)]


# --- report -----------------------------------------------------------------------------------------------------------


def reward_report(scored: Scored, training: Sequence[Example], info: RewardInfo) -> Report:
    """Everything as plain JSON; `training` are the examples that the length baseline learns its direction from."""
    heads = len(info.attributes)
    pairs = compare_answers(scored.examples, scored.scores)
    lengths = compare_answers(training, [np.zeros((len(one.samples), heads)) for one in training])
    decided = pairs.where(~pairs.tie)
    names = list(dict.fromkeys(decided.source.tolist()))
    numbers = np.array([names.index(name) for name in decided.source.tolist()], dtype=int)
    found: Report = {
        "measured_on": "held-out examples" if scored.held_out else "training examples (nothing is held out)",
        "held_out": scored.held_out,
        "examples": len(scored.examples),
        "pairs": len(decided.tie),
        "equal": int((decided.difference == 0).sum()),
        "accuracy": accuracy(decided, decided.difference),
        "length_baseline": length_baseline(decided, lengths, heads),
        "calibration": calibration(decided),
        "by_length_difference": by_length(decided),
        "scores": distribution(decided, info),
    }
    if len(names) > 1:
        found["sources"] = {name: accuracy(own, own.difference) for name, own in _by(decided, numbers, names)}
    if heads > 1:
        found["heads"] = heads_report(decided, scored, info)
    return {**found, "ties": ties(pairs)} if pairs.tie.any() else found


def report_reward(run: "OfflineRun", scored: Scored, info: RewardInfo) -> Report:
    """Write the report of a finished run into its folder and show it."""
    found = reward_report(scored, training_examples(run, MOST_TRAINING), info)
    folder, console = run.record.folder, run.record.console
    replace_text(folder / FILE, json.dumps(found, indent=1, allow_nan=False) + "\n")
    show_report(console, found)
    try:
        save_picture(found, folder / PICTURE)
    except SettingError as error:  # without matplotlib
        console.say(f"no picture: {error}")
        return found
    console.say(f"{folder / FILE}, {folder / PICTURE}")
    return found


def show_report(console: Console, report: Report) -> None:
    """The table at the end of a run, and what it means in words."""
    baseline = report["length_baseline"]
    prefers = " / ".join(dict.fromkeys(baseline["prefers"]))
    rows: list[tuple[str, str, str]] = [("measure", "value", "95 % interval")]
    rows.append(("accuracy", *_share(report["accuracy"])))
    for title, part in (("source", report.get("sources", {})), ("head", report.get("heads", {}).get("accuracy", {}))):
        rows += [(f"  {title} {name} ({own['pairs']} pairs)", *_share(own)) for name, own in part.items()]
    rows.append((f"length baseline ({prefers} wins)", *_share(baseline["accuracy"])))
    rows.append(("difference, paired", *_share(baseline["difference"], "+.1%")))
    rows.append(("calibration error", f"{report['calibration']['error']:.3f}", ""))
    console.say("")
    console.table(f"reward model on {report['pairs']} pairs of {report['examples']} {report['measured_on']}", rows)
    if report["pairs"]:
        console.say(baseline["verdict"])
    if "ties" in report:
        tied = report["ties"]
        others = tied["mean_distance_of_others"]
        console.say(f"ties: {tied['pairs']} pairs, {tied['mean_distance']:.3g} apart on average"
                    + (f"; pairs with a winner {others:.3g}" if others is not None else ""))  # fmt: skip
    if not report["held_out"]:
        console.warn("nothing is held out, so these figures are of examples that the model was trained on; they do not "
                     "show how it does on others: set held_out_share or held_out")  # fmt: skip


def _share(own: Cell, form: str = ".1%") -> tuple[str, str]:
    if own["value"] is None:
        return "none", ""
    return f"{own['value']:{form}}", f"{own['low']:{form}} to {own['high']:{form}}"
