"""Rubrics and routing: worked sums, errors that never become zeros."""

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from quatrain.config import VerifierConfig
from quatrain.errors import SettingError, VerifierError
from quatrain.rewards import Part, Rubric, Verifiers, build_verifiers, text_rollout
from quatrain.rewards.guard import Guarded
from quatrain.rewards.verifier import Limits
from quatrain.types import Prompt, Rollout, Score
from tests.rewards.in_process import wrap_function


def part(function: Callable[..., Any], weight: float = 1.0) -> Part:
    return Part(wrap_function(function), weight)


def rubric(**parts: Part) -> Verifiers:
    return Verifiers({"main": Rubric(parts)})


def test_weighted_sum_and_what_every_part_said() -> None:
    verifiers = rubric(correct=part(lambda completion: completion == "4"), form=part(lambda: 0.5, 0.2))
    first, second = verifiers.score([text_rollout("4"), text_rollout("5")])
    assert first.value == pytest.approx(1.1)
    assert first.parts == {"correct": 1.0, "form": 0.5} and first.weights == {"correct": 1.0, "form": 0.2}
    assert second.value == pytest.approx(0.1)


def test_what_a_part_says_of_its_own_parts_is_kept_without_weight() -> None:
    """The heads of a reward model: seen in the metrics, and paid for by their weighted sum alone."""
    heads = part(lambda: Score(value=2.0, parts={"kind": 3.0, "brief": -1.0}, weights={"kind": 1.0, "brief": 1.0}), 0.5)
    one = part(lambda: Score(value=4.0, parts={"reward": 4.0}))
    (found,) = rubric(liked=heads, other=one).score([text_rollout("4")])
    assert found.value == pytest.approx(5.0)
    assert found.parts == {"liked": 2.0, "other": 4.0, "liked/kind": 3.0, "liked/brief": -1.0}
    assert found.weights == {"liked": 0.5, "other": 1.0, "liked/kind": 0.0, "liked/brief": 0.0}


def test_an_error_of_a_part_is_an_error_of_the_whole() -> None:
    verifiers = rubric(correct=part(lambda completion: 1 / int(completion)), form=part(lambda: 0.5))
    good, bad = verifiers.score([text_rollout("2"), text_rollout("0")])
    assert (good.value, good.status) == (1.0, "ok")
    assert bad.status == "error"
    assert math.isnan(bad.value)
    assert bad.error == "correct: ZeroDivisionError: division by zero"


def test_a_part_that_abstains_is_left_out_and_all_of_them_abstain() -> None:
    verifiers = rubric(correct=part(lambda completion: None if completion == "?" else 1.0),
                       form=part(lambda completion: None if completion == "?" else 0.5),
                       maybe=part(lambda: None))  # fmt: skip
    scores = verifiers.score([text_rollout("4"), text_rollout("?")])
    assert scores[0].parts == {"correct": 1.0, "form": 0.5}
    assert scores[1].status == "abstained"


def test_the_length_penalty_alone_is_no_score() -> None:
    slope = VerifierConfig.model_validate({"kind": "soft_overlong", "max_tokens": 4, "cache_tokens": 2})
    own = {"right": Part(wrap_function(lambda row: row), 1.0, "correctness")}
    with build_verifiers({"main": {"soft_overlong": slope}}) as alone:
        penalty = alone.rubrics["main"].parts["soft_overlong"]
        assert alone.score([text_rollout("", {"row": None})])[0].status == "ok"
        scores = rubric(**own, soft_overlong=penalty).score([text_rollout("", {"row": row}) for row in (1.0, None)])
    assert [score.status for score in scores] == ["ok", "abstained"]


def test_a_part_that_abstains_does_not_make_a_completion_wrong() -> None:
    """Each part judges its own rows; where none of them does, nothing is right."""
    own = {kind: Part(wrap_function(lambda row, kind=kind: 1.0 if row == kind else None), 1.0, "correctness")
           for kind in ("maths", "code")}  # fmt: skip
    verifiers = rubric(**own, form=part(lambda: 0.5))
    scores = verifiers.score([text_rollout("x", {"row": row}) for row in ("maths", "code", "poem")])
    assert [score.right for score in scores] == [True, True, False]


def test_placed_rewards_are_weighted() -> None:
    verifiers = rubric(steps=part(lambda: Score(value=3.0, placed=((2, 1.0), (5, 2.0))), 0.5))
    assert verifiers.score([text_rollout("x")])[0].placed == ((2, 0.5), (5, 1.0))


@dataclass
class Longest:
    """Group scope: 1 for the longest completion of the group."""

    scope = "group"
    kind = "shaping"
    examples = ()
    seen: list[int]

    async def score(self, rollouts: Sequence[Rollout]) -> Sequence[Score]:
        self.seen.append(len(rollouts))
        top = max(len(rollout.text) for rollout in rollouts)
        return [Score(value=float(len(rollout.text) == top)) for rollout in rollouts]

    def close(self) -> None:
        """Nothing to end."""


def test_a_group_verifier_gets_whole_groups_whatever_their_order() -> None:
    longest = Longest([])
    rollouts = [
        text_rollout(text, group=group) for text, group in (("a", 0), ("b", 1), ("aa", 0), ("bbb", 1), ("c", 2))
    ]
    scores = rubric(longest=Part(longest)).score(rollouts)  # type: ignore[arg-type]
    assert [score.value for score in scores] == [0, 0, 1, 1, 1]
    assert sorted(longest.seen) == [1, 2, 2]


def routed(name: str, text: str) -> Rollout:
    prompt = Prompt(index=7, token_ids=(0,), text="Q", verifier=name)
    return Rollout(prompt=prompt, group=0, index=1, trajectories=(), text=text, stop_reason="eos")


def test_rows_go_to_their_rubric_in_order() -> None:
    verifiers = Verifiers({"a": Rubric({"x": part(lambda: 1.0)}), "b": Rubric({"x": part(lambda: 2.0)})})
    scores = verifiers.score([routed("a", ""), routed("b", ""), routed("a", ""), routed("b", "")])
    assert [score.value for score in scores] == [1, 2, 1, 2]
    with pytest.raises(VerifierError, match="prompt 7, completion 1 asks for verifier 'c', need one of: a, b"):
        verifiers.score([routed("c", "")])
    with pytest.raises(VerifierError, match="asks for verifier ''"):
        verifiers.score([routed("", "")])
    assert verifiers.score([]) == []


def test_a_wrong_number_of_scores_stops() -> None:
    class Short(Longest):
        async def score(self, rollouts: Sequence[Rollout]) -> Sequence[Score]:
            return [Score(value=1.0)] * (len(rollouts) - 1)

    guarded = Guarded(Short([]), Limits(name="short"))  # type: ignore[arg-type]
    with pytest.raises(VerifierError, match="short: gave 1 scores for 2 rollouts"):
        asyncio.run(guarded.score([text_rollout("a"), text_rollout("b")]))


def test_one_raising_rollout_does_not_spoil_the_batch() -> None:
    class Raising(Longest):
        scope = "completion"

        async def score(self, rollouts: Sequence[Rollout]) -> Sequence[Score]:
            return [Score(value=1 / len(rollout.text)) for rollout in rollouts]

    guarded = Guarded(Raising([]), Limits(name="raising"))  # type: ignore[arg-type]
    scores = asyncio.run(guarded.score([text_rollout("a"), text_rollout(""), text_rollout("bb")]))
    assert [score.status for score in scores] == ["ok", "error", "ok"]


def test_scoring_works_inside_a_running_event_loop() -> None:
    verifiers = rubric(one=part(lambda: 1.0))

    async def notebook() -> list[Score]:
        return verifiers.score([text_rollout("x")])

    assert asyncio.run(notebook())[0].value == 1.0


def test_from_a_recipe_section() -> None:
    sections = {"sums": {"correct": VerifierConfig(kind="numeric"), "form": VerifierConfig(kind="format", weight=0.5)}}
    with build_verifiers(sections) as verifiers:
        score = verifiers.score([text_rollout("<think>a</think>5", {"answer": 5})])[0]
    assert (score.value, score.parts) == (1.5, {"correct": 1.0, "form": 1.0})
    assert score.right is True
    with pytest.raises(SettingError, match=r"verifiers.sums.form.tag: got an unknown key.*'tags'"):
        build_verifiers({"sums": {"form": VerifierConfig.model_validate({"kind": "format", "tag": ["a"]})}})
