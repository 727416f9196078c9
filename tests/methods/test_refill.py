"""Dynamic sampling: what counts as informative, which groups stay, and a whole run that refills."""

from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from quatrain.config import AlgorithmConfig
from quatrain.methods.online import train
from quatrain.methods.refill import Attempt, attempts, chosen, missing, refill_metrics
from quatrain.rewards.rubric import Part, Rubric, Verifiers
from quatrain.telemetry.console import Console
from quatrain.telemetry.run_log import read_metrics
from quatrain.types import Prompt, Rollout, Score
from tests.runs import metrics_of, recipe


def prompt(index: int) -> Prompt:
    return Prompt(index=index, token_ids=(1,), text="p")


def rollouts(prompts: list[Prompt], size: int = 2) -> list[Rollout]:
    return [
        Rollout(prompt=one, group=group, index=index, trajectories=(), text="", stop_reason="eos")
        for group, one in enumerate(prompts)
        for index in range(size)
    ]


def verifiers(**measures: Any) -> Verifiers:
    """Rubrics that are only asked which parts measure correctness."""
    return Verifiers({"main": Rubric({name: Part(None, 1.0, kind) for name, kind in measures.items()})})  # type: ignore[arg-type]


def informative(scores: list[Score], **measures: Any) -> bool:
    one = [prompt(0)]
    return attempts(one, rollouts(one, len(scores)), scores, verifiers(**measures), AlgorithmConfig())[0].informative


def said(**parts: float) -> Score:
    return Score(value=sum(parts.values()), parts=parts)


def test_a_group_is_informative_by_correctness_alone() -> None:
    kinds = {"correct": "correctness", "length": "shaping"}
    assert informative([said(correct=1, length=0), said(correct=0, length=0)], **kinds)
    assert not informative([said(correct=1, length=0), said(correct=1, length=-0.5)], **kinds)
    assert informative([said(correct=0.5, length=0), said(correct=0.25, length=0)], **kinds)  # partial credit counts
    assert informative([said(length=0), said(length=-0.5)], length="shaping")  # nothing else is there to go by


def test_a_length_penalty_beside_a_users_function_does_not_make_a_group_informative() -> None:
    """A function measures shaping unless told otherwise; the preset's penalty must not stand for its judgement."""
    kinds = {"mine": "shaping", "soft_overlong": "shaping"}
    assert not informative([said(mine=1, soft_overlong=0), said(mine=1, soft_overlong=-0.5)], **kinds)
    assert informative([said(mine=1, soft_overlong=-0.5), said(mine=0, soft_overlong=0)], **kinds)


def test_a_penalty_that_cancels_what_correctness_pays_leaves_nothing_to_learn() -> None:
    kinds = {"correct": "correctness", "length": "shaping"}
    assert not informative([said(correct=1, length=-1), said(correct=0, length=0)], **kinds)


def test_a_truncation_penalty_counts_too() -> None:
    pair = [
        replace(one, stop_reason=reason) for one, reason in zip(rollouts([prompt(0)]), ["length", "eos"], strict=True)
    ]
    scores = [said(correct=1), said(correct=0)]
    for truncated, expected in (("as_scored", True), ("penalise", False)):  # 1 - 1 = 0
        config = AlgorithmConfig.model_validate({"truncated": truncated})
        assert attempts([prompt(0)], pair, scores, verifiers(correct="correctness"), config)[0].informative is expected


def test_what_was_not_judged_does_not_make_a_group_informative() -> None:
    lost = Score(status="error", error="away")
    assert not informative([said(correct=1), lost], correct="correctness")
    assert not informative([lost, lost], correct="correctness")


def tried(*flags: bool) -> list[Attempt]:
    return [
        Attempt(prompt=prompt(10 + place), rollouts=tuple(rollouts([prompt(10 + place)])), informative=flag,
                scores=(Score(value=1.0), Score(value=0.0 if flag else 1.0)))
        for place, flag in enumerate(flags)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "left", "kept"),
    [
        ([True, True], 0, [10, 11]),
        ([False, True, True], 0, [11, 12]),
        ([False, True, False, False], 1, [10, 11]),
        ([False, False, False], 2, [10, 11]),
    ],
)
def test_places_go_to_informative_groups_in_the_order_of_their_prompts(
    flags: list[bool], left: int, kept: list[int]
) -> None:
    everything = tried(*flags)
    assert missing(everything, 2) == left
    found = chosen(everything, 2)
    assert [attempt.prompt.index for attempt in found] == kept
    assert [rollout.group for attempt in found for rollout in attempt.rollouts] == [0, 0, 1, 1]
    metrics = refill_metrics(everything, 2)
    assert metrics["refill/groups"].value == len(flags) and metrics["refill/unfilled"].value == left
    assert metrics["refill/uniform"].value == pytest.approx(1 - sum(flags) / len(flags))
    assert metrics["refill/reward_mean"].value == pytest.approx(1 - 0.5 * sum(flags) / len(flags))


EVEN = '''
"""Pays 1 for a first character among `letters`; prompts that say "a" are always right."""
def first(prompt, completion):
    return 1.0 if "say a" in prompt or completion[:1] in "abcdefghijklmnop" else 0.0
'''


def refilled(folder: Path, rounds: int, **changes: Any) -> list[dict[str, float]]:
    """A run in which a fifth of the prompts teaches nothing; returns the rows."""
    (folder / "even.py").write_text(EVEN)
    wanted = recipe(
        folder, algorithm={"preset": "dapo", "refill_rounds": rounds}, train={"prompts_per_step": 4, "steps": 4},
        verifiers={"default": {"correct": {"kind": f"{folder / 'even.py'}:first", "measures": "correctness"}}},
        **changes,
    )  # fmt: skip
    train(wanted, Console(StringIO(), terminal=False))
    return [row.metrics for row in read_metrics(folder / "run")]


def test_a_run_refills_uniform_groups_up_to_its_limit(tmp_path: Path) -> None:
    rows = refilled(tmp_path, 3)
    assert sum(row["refill/groups"] for row in rows) > 4 * len(rows)
    for row in rows:
        places, sampled = 4, row["refill/groups"]
        assert row["rollout/completions"] == 4 * sampled
        assert row["groups/zero_variance"] == pytest.approx(row["refill/unfilled"] / places)
        assert sampled * (1 - row["refill/uniform"]) == pytest.approx(places - row["refill/unfilled"])
        assert row["refill/unfilled"] == 0 or sampled > places  # left over only after every round
        assert row["reward/soft_overlong"] <= 0  # DAPO's length penalty is a part of its own
    (again := tmp_path / "again").mkdir()
    refilled(again, 3)
    assert metrics_of(tmp_path / "run") == metrics_of(again / "run")


def test_without_refill_the_preset_trains_on_what_it_drew(tmp_path: Path) -> None:
    rows = refilled(tmp_path, 0)
    assert all("refill/groups" not in row and row["rollout/completions"] == 16 for row in rows)
    assert sum(row["groups/zero_variance"] for row in rows) > 0
