"""pass@k, majority@k and the table of measures, by hand."""

import asyncio
import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from quatrain.config import VerifierConfig
from quatrain.methods.evaluate import Evaluation
from quatrain.methods.measures import by_source, majority_at_k, measures, pass_at_k, table
from quatrain.rewards import build_verifier, text_rollout
from quatrain.rewards.math_equal import voted
from tests.methods.test_evaluate import NAN, answer, evaluation


def voting(*rows: Sequence[tuple[str | None, float]], source: str = "s") -> Evaluation:
    """A row per prompt of (what was read, correct)."""
    answers = [replace(answer(prompt, right, source=source), answer=read)
               for prompt, row in enumerate(rows) for read, right in row]  # fmt: skip
    return Evaluation(0, len(rows[0]), tuple(answers))


@pytest.mark.parametrize(
    ("n", "right", "k", "expected"),
    [
        (4, 1, 1, 1 / 4),
        (4, 1, 2, 1 - 3 / 6),  # C(3,2) / C(4,2) = 3 / 6
        (4, 2, 2, 1 - 1 / 6),
        (4, 3, 2, 1.0),
        (4, 0, 4, 0.0),
        (5, 2, 3, 1 - 1 / 10),
        (200, 1, 100, 0.5),
    ],
)
def test_pass_at_k_by_hand(n: int, right: int, k: int, expected: float) -> None:
    row = np.array([[1.0] * right + [0.0] * (n - right)])
    assert pass_at_k(row, k) == pytest.approx([expected])


def test_completions_that_could_not_be_judged_are_neither_right_nor_wrong() -> None:
    assert pass_at_k(np.array([[1.0, NAN, 0.0], [NAN, NAN, NAN]]), 1)[0] == 0.5
    assert np.isnan(pass_at_k(np.array([[NAN, NAN, 1.0]]), 2)).all()
    some = evaluation([1, NAN], [0, 0])
    assert some.per_prompt("correct").tolist() == [1.0, 0.0]
    assert table(some)["mean@2"]["value"] == 0.5
    assert table(evaluation([1], [NAN]))["pass@1"]["prompts"] == 1


MAJORITIES: dict[str, tuple[list[tuple[str | None, float]], int, float]] = {
    "most frequent": ([("7", 1), ("7", 1), ("8", 0)], 3, 1.0),
    "most frequent and wrong": ([("7", 1), ("8", 0), ("8", 0)], 3, 0.0),
    "tie of two": ([("7", 1), ("8", 0), ("7", 1), ("8", 0)], 4, 1 / 2),
    "tie of three": ([("7", 1), ("8", 0), ("9", 0)], 3, 1 / 3),
    "a silent majority has no vote": ([(None, 0), (None, 0), ("7", 1)], 3, 1.0),
    "nobody votes": ([(None, 0), (None, 0), (None, 0)], 3, 0.0),
    "two of three": ([("7", 1), ("7", 1), ("8", 0)], 2, 2 / 3),  # 77 is right, each of 78 and 78 half
    "two of three with a silent one": ([("7", 1), (None, 0), ("8", 0)], 2, 1 / 2),  # 7-: 1, 78: 1/2, 8-: 0
    "one of n is the mean": ([("7", 1), ("8", 0), ("9", 0), ("7", 1)], 1, 1 / 2),
    "two right answers": ([("7", 1), ("7.0001", 1), ("8", 0)], 3, 2 / 3),
    "one that was not judged": ([("7", 1), ("8", NAN), ("8", NAN)], 1, 1.0),
    "an answer right half of the time": ([("7", 1), ("7", 0), ("8", 0)], 3, 1 / 2),
}


@pytest.mark.parametrize("name", MAJORITIES)
def test_majority_by_hand(name: str) -> None:
    row, k, expected = MAJORITIES[name]
    assert majority_at_k([read for read, _ in row], [right for _, right in row], k) == pytest.approx(expected)


def test_majority_of_too_few_judged_completions_is_unknown() -> None:
    assert math.isnan(majority_at_k(["7", "7", "8"], [1, NAN, 0], 3))


def every_subset(votes: Sequence[str | None], correct: Sequence[float], k: int) -> float:
    """The definition: all k-subsets, all winners of each."""
    outcomes = []
    for chosen in itertools.combinations(range(len(votes)), k):
        counts = Counter(votes[i] for i in chosen if votes[i] is not None)
        most = max(counts.values(), default=0)
        winners = [vote for vote in counts if counts[vote] == most]
        paid = [np.mean([correct[i] for i in chosen if votes[i] == vote]) for vote in winners]
        outcomes.append(np.mean(paid) if paid else 0.0)
    return float(np.mean(outcomes))


def test_majority_is_the_mean_over_all_subsets() -> None:
    generator = np.random.default_rng(3)
    for _ in range(40):
        n = int(generator.integers(2, 9))
        votes = [None if vote == 4 else str(vote) for vote in generator.integers(0, 5, size=n)]
        correct = [float(vote == "0" or (vote == "1" and generator.random() < 0.5)) for vote in votes]
        for k in range(1, n + 1):
            assert majority_at_k(votes, correct, k) == pytest.approx(every_subset(votes, correct, k), abs=1e-12)


def test_majority_of_many_completions_stays_finite() -> None:
    """250 right votes and 50 wrong ones: a majority of 100 is right, though C(300, 100) has 82 digits."""
    assert majority_at_k(["7"] * 250 + ["8"] * 50, [1.0] * 250 + [0.0] * 50, 100) == pytest.approx(1.0, abs=1e-9)


def read_by(kind: str, *completions: str, gold: str = "1/2", **settings: str) -> list[str | None]:
    verifier = build_verifier(VerifierConfig.model_validate({"kind": kind, **settings}))
    try:
        scores = asyncio.run(verifier.score([text_rollout(text, {"answer": gold}) for text in completions]))
    finally:
        verifier.close()
    return [score.answer for score in scores]


def test_equal_values_vote_together() -> None:
    assert read_by("numeric", "1/2", "it is 0.5", "so 2/4", "$.50", "3", "none") == ["1/2"] * 4 + ["3", None]
    assert read_by("math", "\\boxed{\\frac12}", "\\boxed{0.5}", "\\boxed{50\\%}", "") == ["1/2"] * 3 + [None]
    assert read_by("exact", " Rome\n", "Rome", "rome", "  ") == ["Rome", "Rome", "rome", None]
    assert read_by("exact", "Rome", "ROME", case_sensitive="false") == ["rome", "rome"]


def test_right_expressions_vote_together_however_they_are_written() -> None:
    gold = "(x+1)^2"
    votes = [voted(gold, form, right=right) for form, right in (("x^2+2x+1", True), (gold, True), ("x^2+1", False))]
    assert votes[0] == votes[1] == gold and votes[2] == "x^2+1"
    assert voted("0.5", "\\frac12", right=True) == voted("3", "0.50", right=False) == "1/2"
    assert voted(gold, "x" * 3000, right=False) is None, "not read, so no vote"


def test_the_table() -> None:
    found = table(evaluation([1, 0, 0, 0], [0, 0, 0, 0], form=1.0))
    names = ["pass@1", "pass@2", "pass@4", "mean@4", "in_form", "reward", "length", "truncated", "verifier_errors"]
    assert list(found) == names
    values = [1 / 8, 1 / 4, 1 / 2, 1 / 8, 1.0, 1 / 8, 3.0, 0.0, 0.0]
    assert [found[name]["value"] for name in names] == pytest.approx(values)
    assert found["pass@4"]["low"] <= 0.5 <= found["pass@4"]["high"]


def test_the_whole_number_of_samples_is_among_the_ks() -> None:
    assert [name for name in table(evaluation([1, 0, 0, 0, 0, 0])) if "pass" in name] == [
        "pass@1", "pass@2", "pass@4", "pass@6",
    ]  # fmt: skip
    assert [name for name in table(voting([("1", 1)] * 6)) if "majority" in name] == ["majority@4", "majority@6"]
    assert [name for name in table(voting([("1", 1)] * 2)) if "majority" in name] == ["majority@2"]
    assert not [name for name in table(voting([("1", 1)])) if "@" in name and name != "pass@1"]


def test_a_verifier_that_never_says_what_it_read_has_no_majority() -> None:
    assert "majority@2" not in table(evaluation([1, 0], [1, 1]))
    mixed = Evaluation(0, 2, voting([("7", 1), ("7", 1)]).answers + evaluation([1, 1], source="t").answers)  # type: ignore[arg-type]
    values = measures(mixed)["majority@2"]
    assert values[0] == 1.0 and math.isnan(values[1])
    assert measures(voting([("7", 1), ("7", 1)], [(None, 0), (None, 0)]))["majority@2"].tolist() == [1.0, 0.0]


def test_truncation_and_errors_are_shares_of_all_completions() -> None:
    cut, failed = replace(answer(0, 0.0), stop_reason="length"), replace(answer(1, NAN), error="timeout after 1 s")
    found = table(Evaluation(0, 2, (cut, answer(0, 1.0), failed, answer(1, 1.0))))
    assert found["truncated"]["value"] == 0.25 and found["verifier_errors"]["value"] == 0.25
    assert found["pass@1"]["value"] == 0.75


def test_parts_are_shown_where_there_are_several() -> None:
    one, two = (replace(answer(0, 1.0), parts=parts) for parts in ({"right": 1.0}, {"right": 1.0, "tone": 0.5}))
    assert not [name for name in table(Evaluation(0, 1, (one,))) if name.startswith("part")]
    assert table(Evaluation(0, 1, (two,)))["part tone"]["value"] == 0.5


def test_every_measure_of_every_source() -> None:
    answers = (answer(0, 1.0, source="a"), answer(1, 0.0, source="b"), answer(2, 1.0, source="b"))
    found = by_source(Evaluation(0, 1, answers))
    assert list(found) == ["a", "b"] and list(found["a"]) == list(table(Evaluation(0, 1, answers)))
    assert found["a"]["pass@1"]["value"] == 1.0 and found["b"]["pass@1"]["value"] == 0.5
    assert found["b"]["pass@1"]["prompts"] == 2
    assert by_source(Evaluation(0, 1, answers[:1])) == {}
