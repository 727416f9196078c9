"""What the probe finds, by hand, and what it advises."""

import json
from pathlib import Path
from typing import Any

import pytest

from quatrain.config import Recipe
from quatrain.errors import DataError
from quatrain.methods.online import train
from quatrain.methods.probe import Probed, estimate, findings, kind, probe, table, verdict
from quatrain.methods.refill import Attempt
from quatrain.rewards.verifier import text_rollout
from quatrain.telemetry.run_log import read_metrics
from quatrain.types import Score
from tests.runs import recipe, rows

SOME: dict[str, float] = dict.fromkeys(("informative", "all_right", "all_wrong", "all_equal", "too_few_scores"), 0.0)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    return recipe(tmp_path_factory.mktemp("probe"), train={"steps": 30, "prompts_per_step": 8})


def attempt(*values: float | None, right: bool | None = None, source: str = "prompts") -> Attempt:
    """A group with these scores; None could not be judged, and what is not 0 or 1 is partial credit."""
    scores = tuple(
        Score(status="error", error="away") if v is None else Score(value=v, right=v == 1 if right is None else right)
        for v in values
    )
    rollouts = tuple(text_rollout("c", tokens=(3, 4), group=0) for _ in values)
    object.__setattr__(rollouts[0].prompt, "source", source)
    informative = len({v for v in values if v is not None}) > 1
    return Attempt(prompt=rollouts[0].prompt, rollouts=rollouts, scores=scores, informative=informative)


def probed(*tried: Attempt) -> Probed:
    return Probed(tried=tried, skipped_long=1, sampling_s=2.0, scoring_s=0.5)


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        (attempt(0, 1), "informative"),
        (attempt(0.25, 0.5), "informative"),
        (attempt(1, 1, None), "all_right"),
        (attempt(0, 0), "all_wrong"),
        (attempt(0.5, 0.5), "all_wrong"),  # a rubric with correctness says that none is fully right
        (attempt(1, None), "too_few_scores"),
        (attempt(None, None), "too_few_scores"),
    ],
)
def test_kinds_of_groups(group: Attempt, expected: str) -> None:
    assert kind(group) == expected


def test_without_correctness_equal_partial_scores_are_all_equal() -> None:
    unknown = [Score(value=0.5), Score(value=0.5)]
    group = attempt(0, 0)
    assert kind(Attempt(prompt=group.prompt, rollouts=group.rollouts, scores=tuple(unknown), informative=False)) == (
        "all_equal"
    )


def test_findings_by_hand(settings: Recipe) -> None:
    found = findings(settings, probed(attempt(0, 1), attempt(1, 1), attempt(None, 1), attempt(0, 0)))
    assert list(found) == [
        "prompts", "group_size", "skipped_long", "groups", "reward", "pass_rate", "tokens", "verifier_errors",
        "abstained", "speed", "estimate", "sources", "verdict",
    ]  # fmt: skip
    assert found["groups"] == {
        **SOME,
        "informative": 0.25,
        "all_right": 0.25,
        "all_wrong": 0.25,
        "too_few_scores": 0.25,
    }
    assert found["pass_rate"]["mean"] == found["reward"]["mean"] == (0.5 + 1 + 1 + 0) / 4
    assert 0 <= found["pass_rate"]["low"] < 0.625 < found["pass_rate"]["high"] <= 1
    assert found["tokens"] == {"median": 2.0, "p95": 2.0, "max": 2, "cut": 0.0}
    assert found["verifier_errors"] == 1 / 8 and found["abstained"] == 0 and found["skipped_long"] == 1
    assert found["speed"] == {"sampling_tokens_per_s": 8.0, "scoring_completions_per_s": 16.0}
    # 8 groups a step at (2.0 + 0.5) / 4 seconds each, 30 steps
    assert found["estimate"] == {"groups_per_step": 8.0, "rollout_s_per_step": 5.0, "rollout_s_of_run": 150.0}
    assert found["sources"] == {}
    json.dumps(found, allow_nan=False)


def test_what_nobody_judged_is_null_in_its_source(settings: Recipe) -> None:
    found = findings(settings, probed(attempt(0, 1, source="a"), attempt(None, None, source="b")))
    assert found["sources"]["b"]["reward"] == {"mean": None, "low": None, "high": None}
    assert found["reward"]["mean"] == 0.5 and found["sources"]["a"]["groups"]["informative"] == 1
    shown = table(found)
    assert shown[0] == ("measure", "all", "a", "b") and {len(row) for row in shown} == {4}
    assert shown[1][1:] == ("50%", "100%", "0%")
    assert next(row for row in shown if row[0] == "mean reward")[3] == "none was judged"
    json.dumps(found, allow_nan=False)


def test_an_estimate_with_refills(settings: Recipe) -> None:
    """p = 1/2, three refills: 8 (1 + 1/2 + 1/4 + 1/8) = 15 groups."""
    refilling = settings.model_copy(update={"algorithm": settings.algorithm.model_copy(update={"refill_rounds": 3})})
    found = estimate(refilling, probed(attempt(0, 1), attempt(1, 1)), 0.5)
    assert found == {"groups_per_step": 15.0, "rollout_s_per_step": 15 * 1.25, "rollout_s_of_run": 30 * 15 * 1.25}
    assert estimate(refilling, probed(attempt(0, 1)), 1.0)["groups_per_step"] == 8


@pytest.mark.parametrize(
    ("groups", "said", "unsaid"),
    [
        ({"informative": 0.7, "all_right": 0.3}, ["good: 70% of the groups"], ["warning", "rebalance"]),
        ({"informative": 0.66, "all_right": 0.34}, ["warning: only 66%", "too easy", "curriculum.skip_right"],
         ["rebalance", "review", "skip_wrong"]),
        ({"informative": 0.62, "all_wrong": 0.38}, ["38% are uniform, above 35%: rebalance", "too hard",
                                                    "curriculum.skip_wrong", "rollout.group_size above 4"], ["review"]),
        ({"informative": 0.5, "all_wrong": 0.3, "all_right": 0.2}, ["50% are uniform, above 40%: review", "too hard"],
         ["rebalance"]),
        ({"informative": 0.5, "too_few_scores": 0.5}, ["warning: only 50%", "quatrain score"], ["uniform"]),
        ({"informative": 0.5, "all_equal": 0.5}, ["neither right nor wrong"], ["skip_"]),
    ],
)  # fmt: skip
def test_the_verdict(settings: Recipe, groups: dict[str, float], said: list[str], unsaid: list[str]) -> None:
    line = verdict(settings, {**SOME, **groups})
    assert "\n" not in line
    for words in said:
        assert words in line
    for words in unsaid:
        assert words not in line


def test_what_the_recipe_has_is_not_advised(settings: Recipe) -> None:
    data = settings.model_dump()
    data["curriculum"]["skip_wrong"], data["algorithm"]["refill_rounds"] = 2, 1
    wrong = {**SOME, "all_wrong": 1.0}
    assert "skip_wrong" in verdict(settings, wrong) and "refill_rounds" in verdict(settings, wrong)
    line = verdict(Recipe.model_validate(data), wrong)
    assert "skip_wrong" not in line and "refill_rounds" not in line


def test_a_probe_without_any_score_says_why(settings: Recipe) -> None:
    with pytest.raises(DataError, match=r"no completion could be scored \(away\)"):
        findings(settings, probed(attempt(None, None)))


def as_json(capsys: pytest.CaptureFixture[str], made: Recipe, count: int) -> dict[str, Any]:
    capsys.readouterr()
    probe(made, count, as_json=True)
    (line,) = capsys.readouterr().out.splitlines()
    found: dict[str, Any] = json.loads(line)
    return {name: value for name, value in found.items() if name not in ("speed", "estimate")}


def test_the_probe_repeats_and_is_what_the_run_begins_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows(tmp_path / "more.jsonl", ["more x:", "more y:"], answer="7")
    made = recipe(tmp_path, train={"steps": 1, "prompts_per_step": 6})
    second = made.prompts[0].model_validate({"source": str(tmp_path / "more.jsonl"), "name": "more"})
    made = made.model_copy(update={"prompts": [*made.prompts, second]})
    found = as_json(capsys, made, 6)
    assert found == as_json(capsys, made, 6) and found["prompts"] == 6
    assert "more" in found["sources"] and len(found["sources"]) == 2 and not (tmp_path / "run").exists()
    train(made)
    first = read_metrics(tmp_path / "run")[0].metrics
    assert first["reward/mean"] == pytest.approx(found["reward"]["mean"], abs=1e-12)
    assert first["rollout/length_max"] == found["tokens"]["max"]
    assert first["rollout/truncated"] == found["tokens"]["cut"]


def test_the_probe_leaves_out_what_the_run_leaves_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes: dict[str, Any] = {"train": {"steps": 1}, "held_out": [{"source": str(tmp_path / "test.jsonl")}]}
    recipe(tmp_path)
    rows(tmp_path / "test.jsonl", [f"say {a}{b}:" for a in "abcde" for b in "1234"], answer="7")
    assert as_json(capsys, recipe(tmp_path, overlap="drop", **changes), 99)["prompts"] == 5
