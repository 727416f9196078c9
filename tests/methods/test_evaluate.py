"""Intervals, paired comparison, pass@k and the probe's advice, by hand."""

import math
from pathlib import Path

import numpy as np
import pytest

from quatrain.config import SamplingConfig
from quatrain.errors import DataError
from quatrain.methods.evaluate import (
    Answer,
    Evaluation,
    compare,
    evaluation_path,
    interval,
    load_evaluation,
    mean,
    question_key,
)
from quatrain.methods.inspect import accuracy_table, pass_at_k
from quatrain.methods.probe import informative_share, report, verdict
from quatrain.rewards.verifier import text_rollout
from quatrain.types import Prompt, Rollout, Score

NAN = float("nan")


def answer(prompt: int, correct: float, *, source: str = "s", reward: float | None = None, form: float = 0) -> Answer:
    return Answer(
        prompt_index=prompt, source=source, prompt="p", question="q", completion="c", tokens=3, stop_reason="eos",
        reward=correct if reward is None else reward, correct=correct, in_form=form, parts={},
    )  # fmt: skip


def evaluation(*rows: list[float], step: int = 0, **fields: float) -> Evaluation:
    answers = tuple(answer(prompt, value, **fields) for prompt, row in enumerate(rows) for value in row)  # type: ignore[arg-type]
    return Evaluation(step, len(rows[0]), answers)


def test_values_per_prompt() -> None:
    assert evaluation([1, 0], [1, 1], [0, 0]).per_prompt("correct").tolist() == [0.5, 1.0, 0.0]


def test_the_mean_is_over_what_was_judged() -> None:
    assert mean(np.array([1.0, NAN, 0.0])) == 0.5
    assert math.isnan(mean(np.array([NAN])))


def test_an_interval_without_spread_is_a_point() -> None:
    assert interval(np.ones(50)) == (1.0, 1.0)
    assert all(map(math.isnan, interval(np.array([NAN, NAN]))))


def test_an_interval_is_that_of_the_normal_approximation() -> None:
    """40 of 100: standard error sqrt(0.4 * 0.6 / 100) = 0.049, so about 0.4 -+ 0.096."""
    low, high = interval(np.array([1.0] * 40 + [0.0] * 60))
    assert low == pytest.approx(0.4 - 0.096, abs=0.011) and high == pytest.approx(0.4 + 0.096, abs=0.011)
    assert interval(np.array([1.0] * 40 + [0.0] * 60)) == (low, high)
    assert interval(np.array([1.0] * 40 + [0.0] * 60 + [NAN] * 10)) == (low, high)


def test_the_difference_is_paired() -> None:
    """Every prompt rises by exactly 0.5: the paired interval is a point however far the prompts lie apart."""
    before, after = evaluation([0, 0], [1, 0], [0, 1]), evaluation([1, 0], [1, 1], [1, 1])
    found = compare(before, after, "correct")
    assert found["before"] == pytest.approx(1 / 3) and found["after"] == pytest.approx(5 / 6)
    assert found["difference"] == 0.5 and found["difference_interval"] == (0.5, 0.5)
    assert found["prompts"] == 3
    assert found["before_interval"][0] < found["before_interval"][1]


def test_a_loss_has_a_negative_difference() -> None:
    found = compare(evaluation([1], [1]), evaluation([0], [0]), "correct")
    assert found["difference"] == -1.0 and found["difference_interval"] == (-1.0, -1.0)


def test_a_prompt_that_was_not_judged_once_is_out_of_the_difference() -> None:
    found = compare(evaluation([0.2], [NAN]), evaluation([0.7], [0.9]), "reward")
    assert found["difference"] == pytest.approx(0.5)


def test_different_prompts_are_not_compared() -> None:
    with pytest.raises(ValueError, match="different prompts"):
        compare(evaluation([1], [0]), evaluation([1]), "correct")


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
    assert accuracy_table(some)["mean@2"]["value"] == 0.5


def test_the_table() -> None:
    table = accuracy_table(evaluation([1, 0, 0, 0], [0, 0, 0, 0], form=1.0))
    assert list(table) == ["pass@1", "pass@2", "pass@4", "mean@4", "in asked form", "reward"]
    assert [table[name]["value"] for name in table] == pytest.approx([1 / 8, 1 / 4, 1 / 2, 1 / 8, 1.0, 1 / 8])
    assert table["pass@4"]["low"] <= 0.5 <= table["pass@4"]["high"]


def test_the_table_has_a_line_per_source_when_there_are_several() -> None:
    answers = (answer(0, 1.0, source="a"), answer(1, 0.0, source="b"), answer(2, 1.0, source="b"))
    table = accuracy_table(Evaluation(0, 1, answers))
    assert table["pass@1 a"]["value"] == 1.0 and table["pass@1 b"]["value"] == 0.5
    assert "mean@1" not in table


def test_metrics_of_an_evaluation() -> None:
    metrics = {name: metric.value for name, metric in evaluation([1, 0], [1, 1], form=1.0).metrics().items()}
    assert metrics == {
        "eval/accuracy": 0.75, "eval/accuracy_in_form": 1.0, "eval/reward": 0.75, "eval/length": 3.0,
        "eval/truncated": 0.0,
    }  # fmt: skip


def test_saved_and_read_back(tmp_path: Path) -> None:
    one = Evaluation(7, 2, (answer(0, 1.0), answer(0, 0.0, reward=NAN)), "key")
    assert load_evaluation(tmp_path, 7) is None
    one.save(tmp_path)
    assert evaluation_path(tmp_path, 7) == tmp_path / "evaluations" / "step-000007.json"
    found = load_evaluation(tmp_path, 7)
    assert found is not None and repr(found) == repr(one)


def test_the_key_tells_what_was_asked_and_how() -> None:
    prompts = [Prompt(index=0, token_ids=(1, 2), text="a"), Prompt(index=1, token_ids=(1, 3), text="b")]
    greedy = SamplingConfig(temperature=0)
    key = question_key(prompts, greedy, 1)
    assert key == question_key(list(prompts), SamplingConfig(temperature=0), 1)
    others = [
        question_key(prompts[:1], greedy, 1),
        question_key(prompts, greedy, 2),
        question_key(prompts, SamplingConfig(temperature=0, max_tokens=5), 1),
        question_key([Prompt(index=0, token_ids=(1, 4), text="a"), prompts[1]], greedy, 1),
    ]
    assert len({key, *others}) == 5


def probed(*groups: list[float | None]) -> tuple[list[Rollout], list[Score]]:
    rollouts = [text_rollout("c", tokens=(3, 4), group=group) for group, row in enumerate(groups) for _ in row]
    scores = [Score(status="error", error="away") if v is None else Score(value=v) for row in groups for v in row]
    return rollouts, scores


def test_informative_groups() -> None:
    assert informative_share(*probed([0, 1], [0, 0], [0.1, 0.1], [1, 1])) == 0.25
    assert informative_share(*probed([0, None], [None, None], [0, 1, None], [1, 0])) == 0.5


@pytest.mark.parametrize(
    ("groups", "start"),
    [
        ([[0, 1], [1, 0]], "good: 100% of the groups"),
        ([[0, 0], [0, 0], [0, 1]], "warning: only 33% of the groups"),
        ([[1, 1], [1, 1], [1, 0]], "warning: only 33% of the groups"),
    ],
)
def test_the_verdict(groups: list[list[float | None]], start: str) -> None:
    line = verdict(*probed(*groups))
    assert line.startswith(start)
    if start.startswith("warning"):
        assert f"mostly too {'hard' if groups[0][0] == 0 else 'easy'} for this model" in line


def test_the_probes_table() -> None:
    table = dict(report(*probed([0, 1], [1, 1], [None, 1]), 2.0, 0.5))
    assert table["mean reward"].startswith("0.800 [")
    assert table["informative groups"] == "33% (at least 70% wanted)"
    assert table["verifier errors"] == "16.7%"
    assert table["tokens per completion"] == "median 2, 95 % 2, max 2"
    assert table["sampling"] == "6 tokens/s" and table["scoring"] == "12 completions/s"


def test_a_probe_without_any_score_says_why() -> None:
    with pytest.raises(DataError, match="no completion could be scored \\(away\\)"):
        report(*probed([None, None]), 1.0, 1.0)
