"""The report of a reward model: worked values of every measure, and the files that a run leaves."""

import json
import math
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quatrain.data.examples import Example
from quatrain.methods.offline import train
from quatrain.methods.reward_report import (
    FILE,
    PICTURE,
    accuracy,
    by_length,
    calibration,
    compare_answers,
    length_baseline,
    pareto_front,
    per_prompt,
    reward_report,
    show_report,
    wilson,
)
from quatrain.methods.reward_scores import Scored
from quatrain.models.scalar import RewardInfo
from quatrain.telemetry.console import Console
from quatrain.types import Sample
from tests.runs import offline_recipe


def example(
    number: int, lengths: tuple[int, ...], ranks: tuple[float, ...] = (0, 1), source: str = "data", **streams: float
) -> Example:
    """A prompt of one token and answers of `lengths`, every token of all of them different."""
    samples = []
    for place, (length, rank) in enumerate(zip(lengths, ranks, strict=True)):
        ids = np.array([0, *range(1000 * number + 100 * place, 1000 * number + 100 * place + length), 0])
        trained = np.array([False] * (length + 1) + [True])
        said = {name: np.array([value]) for name, value in {"rank": rank, **streams}.items()}
        samples.append(Sample(token_ids=ids, trained=trained, group=0, completion=place, prompt_length=1,
                              label=f"row {number}, answer {place + 1}", streams=said))  # fmt: skip
    return Example(index=number, source=source, question=f"q{number}", samples=tuple(samples), prompt="",
                   answers=("",) * len(lengths))  # fmt: skip


def scored(*rows: tuple[Example, list[float] | list[list[float]]], held_out: bool = True) -> Scored:
    """Examples with the raw scores of their answers, by one head or by several."""
    scores = tuple(np.array(values, dtype=float).reshape(len(values), -1) for _, values in rows)
    return Scored(examples=tuple(one for one, _ in rows), scores=scores, held_out=held_out)


def pairs_of(*rows: tuple[Example, Any]) -> Any:
    made = scored(*rows)
    return compare_answers(made.examples, made.scores)


PLAIN = RewardInfo.plain(["reward"])


def test_wilson_is_the_interval_of_a_share() -> None:
    """8 of 10: Wilson's formula by hand gives 0.4902 to 0.9433; all right is not certainty."""
    found = wilson(np.array([1.0] * 8 + [0.0] * 2))
    assert (found["low"], found["high"]) == (pytest.approx(0.49016, abs=1e-4), pytest.approx(0.94333, abs=1e-4))
    assert [wilson(np.ones(10))[end] for end in ("low", "high")] == pytest.approx([0.72247, 1], abs=1e-4)
    assert wilson(np.zeros(0))["value"] is None


def test_a_ranking_counts_as_much_as_a_pair_and_equal_scores_half() -> None:
    """Scores 3, 1, 2 of ranks 0, 1, 2: two of three pairs are right; then a pair that is wrong, and an equal one."""
    pairs = pairs_of((example(1, (4, 4, 4), (0, 1, 2)), [3, 1, 2]), (example(2, (4, 4)), [0, 1]),
                     (example(3, (4, 4)), [5, 5]))  # fmt: skip
    assert accuracy(pairs, pairs.difference)["value"] == pytest.approx((2 / 3 + 0 + 0.5) / 3)
    assert accuracy(pairs, pairs.difference)["prompts"] == 3 and accuracy(pairs, pairs.difference)["pairs"] == 5


def test_pairs_with_one_question_are_one_prompt() -> None:
    twice = [example(1, (4, 4)), example(1, (3, 3))]
    pairs = pairs_of((twice[0], [1, 0]), (twice[1], [0, 1]))
    assert per_prompt(np.array([1.0, 0.0]), pairs.prompt).tolist() == [0.5]


def test_the_head_of_a_row_and_its_confidence_are_read() -> None:
    pairs = pairs_of((example(1, (5, 2), head=1.0, confidence=0.7), [[9, 1], [0, 4]]))
    assert (pairs.chosen[0], pairs.rejected[0], pairs.length[0]) == (1, 4, 3) and pairs.confidence[0] == 0.7


def test_calibration_by_hand() -> None:
    """Logits +ln 3 and -ln 3 predict 0.75 for the preferred answer, right once of two: 0.25 off; ln 19 is right."""
    ln3, ln19 = math.log(3), math.log(19)
    pairs = pairs_of((example(1, (4, 4)), [ln3, 0]), (example(2, (4, 4)), [0, ln3]), (example(3, (4, 4)), [ln19, 0]))
    found = calibration(pairs)
    first, second = found["bins"]
    assert (first["from"], first["to"], first["pairs"]) == (pytest.approx(0.7), pytest.approx(0.8), 2)
    assert first["predicted"] == pytest.approx(0.75) and first["observed"]["value"] == 0.5
    assert second["predicted"] == pytest.approx(0.95) and second["observed"]["value"] == 1.0
    assert found["error"] == pytest.approx((2 * 0.25 + 0.05) / 3)


def test_a_soft_label_is_what_is_observed() -> None:
    """0.7 where the model prefers the answer that is better with probability 0.7, and 0.3 where it does not."""
    pairs = pairs_of((example(1, (4, 4), confidence=0.7), [0.1, 0]), (example(2, (4, 4), confidence=0.7), [0, 0.1]))
    assert calibration(pairs)["bins"][0]["observed"]["value"] == pytest.approx(0.5)
    assert calibration(pairs.where(np.array([True, False])))["bins"][0]["observed"]["value"] == pytest.approx(0.7)


def test_the_length_baseline_takes_its_direction_from_training() -> None:
    """Shorter wins in training; held out it is right on 2, wrong on 1, silent on 1; the model is right on all 4."""
    training = pairs_of(*((example(n, (2, 5)), [0, 0]) for n in range(3)), (example(9, (9, 2)), [0, 0]))
    lengths = [(2, 4), (3, 4), (6, 4), (4, 4)]
    pairs = pairs_of(*((example(n, own), [1, 0]) for n, own in enumerate(lengths)))
    found = length_baseline(pairs, training, 1)
    assert found["prefers"] == ["shorter"] and found["accuracy"]["value"] == pytest.approx(2.5 / 4)
    assert (found["model_better"], found["baseline_better"]) == (2, 0)
    assert found["p"] == 0.5 and found["difference"]["value"] == pytest.approx(1.5 / 4)  # 2 * (1/2)^2
    assert "not significant (p = 0.5)" in found["verdict"]


@pytest.mark.parametrize(("scores", "words"), [([1, 0], "better than"), ([0, 1], "worse than")])
def test_a_significant_difference_is_named(scores: list[float], words: str) -> None:
    """Six of six: p = 2 / 2^6 = 0.031."""
    training = pairs_of((example(1, (9, 2) if words == "worse than" else (2, 9)), [0, 0]))
    pairs = pairs_of(*((example(n, (5, 4)), scores) for n in range(6)))
    found = length_baseline(pairs, training, 1)
    assert found["p"] == pytest.approx(0.03125) and words in found["verdict"]


def test_every_head_has_its_own_direction_and_ties_have_none() -> None:
    training = pairs_of((example(1, (9, 2), head=0.0), [[0, 0]] * 2), (example(2, (2, 9), head=1.0), [[0, 0]] * 2),
                        (example(3, (90, 2), (0, 0), head=1.0), [[0, 0]] * 2))  # fmt: skip
    assert length_baseline(training.where(~training.tie), training, 2)["prefers"] == ["longer", "shorter"]


def test_bins_of_length_are_apart_and_whole() -> None:
    """The model prefers the longer answer always: right where the chosen one is longer, wrong elsewhere."""
    pairs = pairs_of(*((example(n, (10 + n, 14)), [10 + n, 14]) for n in range(10)))
    bins = by_length(pairs)
    assert sum(one["pairs"] for one in bins) == 10 and [one["from"] for one in bins] == [-4, -2, 0, 2, 4]
    assert bins[0]["value"] == 0 and bins[-1]["value"] == 1
    same = pairs_of(*((example(n, (4, 4)), [1, 0]) for n in range(3)))
    assert [(one["from"], one["to"], one["pairs"]) for one in by_length(same)] == [(0, 0, 3)]


def test_the_front_is_what_no_other_answer_beats() -> None:
    points = np.array([[0, 3], [1, 1], [2, 2], [3, 0], [2, 2], [3, -1], [0, 2]], dtype=float)
    assert [points[one].tolist() for one in pareto_front(points)] == [[3, 0], [2, 2], [0, 3]]


def test_sources_heads_and_ties_are_told_apart() -> None:
    rows = [
        (example(1, (4, 4), source="a", head=0.0), [[2, 0], [1, 0]]),
        (example(2, (4, 4), source="b", head=1.0), [[0, 1], [0, 2]]),
        (example(3, (4, 4), (0, 0), source="b", head=1.0), [[0, 1.5], [0, 1]]),
    ]
    info = RewardInfo(attributes=("x", "y"), weights=(1, 1), mean=(1.0, 0.0), std=(2.0, 1.0))
    made = scored(*rows)
    found = reward_report(made, made.examples, info)
    assert found["pairs"] == 2 and found["sources"]["a"]["value"] == 1.0 and found["sources"]["b"]["value"] == 0.0
    assert found["heads"]["accuracy"]["x"]["value"] == 1.0 and found["heads"]["accuracy"]["y"]["value"] == 0.0
    assert found["ties"] == {"pairs": 1, "mean_distance": 0.5, "mean_distance_of_others": 1.0}
    assert found["scores"]["chosen"]["mean"] == pytest.approx(((2 - 1) / 2 + 1) / 2)
    assert found["heads"]["front"][0]["answer"] == "row 1, answer 1" and len(found["heads"]["points"]) == 6
    json.dumps(found, allow_nan=False)


def test_nothing_but_ties_is_said_without_numbers() -> None:
    made = scored((example(1, (4, 4), (0, 0)), [1, 0]))
    found = reward_report(made, made.examples, PLAIN)
    text = StringIO()
    show_report(Console(text, terminal=False), found)
    assert found["accuracy"]["value"] is None and "ties: 1 pairs, 1 apart" in text.getvalue()
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize("held_out", [True, False], ids=["held-out", "training"])
def test_a_run_writes_it_and_shows_it(tmp_path: Path, held_out: bool) -> None:
    changes: dict[str, Any] = {} if held_out else {"held_out": []}
    text = StringIO()
    train(offline_recipe(tmp_path, "reward_model", train={"steps": 3}, **changes), Console(text, terminal=False))
    found = json.loads((tmp_path / "run" / FILE).read_text())
    assert found["held_out"] is held_out and found["pairs"] == (15 if held_out else 25)
    shown = " ".join(text.getvalue().split())
    wanted = ("length baseline (", "calibration error", found["length_baseline"]["verdict"])
    assert all(words in shown for words in wanted)
    assert ("examples that the model was trained on" in shown) is not held_out
    assert (tmp_path / "run" / PICTURE).read_text().startswith("<?xml")


def test_without_matplotlib_the_figures_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    text = StringIO()
    train(offline_recipe(tmp_path, "reward_model", train={"steps": 1}), Console(text, terminal=False))
    assert (tmp_path / "run" / FILE).is_file() and not (tmp_path / "run" / PICTURE).exists()
    assert "no picture: plot: got no matplotlib" in " ".join(text.getvalue().split())
