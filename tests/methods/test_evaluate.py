"""Intervals, paired comparison and pass@k, by hand."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from quatrain.config import SamplingConfig
from quatrain.methods.evaluate import (
    EVALUATION_STREAM,
    Answer,
    Evaluation,
    compare,
    evaluate,
    evaluation_path,
    interval,
    load_evaluation,
    mean,
    question_key,
)
from quatrain.rewards.rubric import Part, Rubric, Verifiers
from quatrain.rewards.verifier import text_rollout
from quatrain.rollout import Request
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


def test_metrics_of_an_evaluation() -> None:
    metrics = {name: metric.value for name, metric in evaluation([1, 0], [1, 1], form=1.0).metrics().items()}
    assert metrics == {
        "eval/accuracy": 0.75, "eval/accuracy_in_form": 1.0, "eval/reward": 0.75, "eval/length": 3.0,
        "eval/truncated": 0.0,
    }  # fmt: skip


def test_saved_and_read_back(tmp_path: Path) -> None:
    read = replace(answer(0, 1.0), answer="1/2", parts={"right": 1.0})
    unjudged = replace(answer(0, NAN, form=NAN), error="the judge is away")
    one = Evaluation(7, 2, (read, unjudged), "key", {"temperature": 0.7})
    assert load_evaluation(tmp_path, 7) is None
    one.save(tmp_path)
    assert evaluation_path(tmp_path, 7) == tmp_path / "evaluations" / "step-000007.json"
    found = load_evaluation(tmp_path, 7)
    assert found is not None and repr(found) == repr(one)
    assert "NaN" not in evaluation_path(tmp_path, 7).read_text(), "other readers of JSON know no NaN"


def test_an_evaluation_saved_without_its_sampling_is_read(tmp_path: Path) -> None:
    path = evaluation_path(tmp_path, 3)
    path.parent.mkdir()
    kept = {key: value for key, value in asdict(answer(0, 1.0)).items() if key not in ("answer", "error")}
    path.write_text(json.dumps({"step": 3, "samples": 1, "asked": "key", "answers": [kept]}))
    assert load_evaluation(tmp_path, 3) == Evaluation(3, 1, (answer(0, 1.0),), "key")


def test_a_long_interval_is_that_of_a_short_one_drawn_in_stretches() -> None:
    values = np.random.default_rng(0).random(900)
    picks = np.random.default_rng(0).integers(0, 900, size=(10_000, 900))
    assert interval(values) == pytest.approx(np.percentile(values[picks].mean(1), [2.5, 97.5]), abs=1e-12)


class Judge:
    """Fails on the second completion of every prompt."""

    scope, kind, examples = "completion", "correctness", ()

    async def score(self, rollouts: Sequence[Rollout]) -> Sequence[Score]:
        return [Score(status="error", error="away") if one.index == 1 else Score(value=1.0, answer="x")
                for one in rollouts]  # fmt: skip

    def close(self) -> None:
        pass


def test_an_evaluation_is_one_submission_and_an_error_is_no_zero() -> None:
    engine, submitted = FakeEngine(), []
    engine.on_submit = submitted.append
    prompts = [Prompt(index=i, token_ids=(1, 2), text=f"p{i}") for i in range(3)]
    verifiers = Verifiers({"default": Rubric({"right": Part(Judge(), 1.0, "correctness")})})
    seen = []
    found = evaluate(engine, prompts, verifiers, SamplingConfig(temperature=0.5), samples=4, seed=9, step=2,
                     progress=lambda *counts: seen.append(counts))  # fmt: skip
    assert len(submitted) == 1 and len(submitted[0]) == 12 and seen[-1] == (12, 12)
    assert len({request.seed for request in submitted[0]}) == 12
    assert {request.seed[:2] for request in submitted[0]} == {(9, EVALUATION_STREAM)}
    assert [bool(one.error) for one in found.answers] == [False, True, False, False] * 3
    assert found.per_prompt("correct").tolist() == [1.0] * 3, "three of three judged"
    assert found.sampling["temperature"] == 0.5 and found.answers[0].answer == "x"


class FakeEngine:
    """Answers every request with one token, in two batches and out of order."""

    def __init__(self) -> None:
        self._queue: list[Request] = []
        self.on_submit: Callable[[Sequence[Request]], None] = lambda _: None

    def submit(self, requests: Sequence[Request]) -> None:
        self.on_submit(requests)
        self._queue += requests

    def completed(self) -> list[Rollout]:
        half = self._queue[-7:][::-1]
        del self._queue[-7:]
        return [replace(text_rollout("c", tokens=(3,)), prompt=one.prompt, group=one.group, index=one.index)
                for one in half]  # fmt: skip


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
