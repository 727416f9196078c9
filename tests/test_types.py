"""The nouns check themselves when they are made, and cannot be changed afterwards."""

import math
from typing import Any

import numpy as np
import pytest

from quatrain.types import Prompt, Rollout, Sample, Score, Segment, Trajectory


def single_turn() -> Trajectory:
    """Prompt 5 6, completion 7 8 9."""
    return Trajectory.single_turn([5, 6], [7, 8, 9], [-0.1, -0.2, -0.3], [1, 0.9, 1], policy_version=4)


def sample(**changes: Any) -> Sample:
    """Four tokens, the last two trained."""
    fields: dict[str, Any] = {"token_ids": [1, 2, 3, 4], "trained": [False, False, True, True], "group": 0,
                              "completion": 0, "prompt_length": 2}  # fmt: skip
    return Sample(**{**fields, **changes})


def test_a_single_turn_is_a_prompt_and_a_trained_completion() -> None:
    turn = single_turn()
    assert turn.token_ids.tolist() == [5, 6, 7, 8, 9]
    assert turn.trained.tolist() == [False, False, True, True, True]
    assert turn.policy_version.tolist() == [-1, -1, 4, 4, 4]
    assert np.isnan(turn.sampler_logprobs[:2]).all()
    assert turn.sampler_logprobs[2:].tolist() == [-0.1, -0.2, -0.3]
    assert turn.kept_mass[2:].tolist() == [1, 0.9, 1]
    kinds = [(segment.kind, segment.start, segment.end) for segment in turn.segments]
    assert kinds == [("prompt", 0, 2), ("completion", 2, 5)]


def test_arrays_are_copies_and_read_only() -> None:
    ids = np.array([1, 2, 3, 4])
    made = sample(token_ids=ids, streams={"advantages": [1.0, 2.0]})
    ids[0] = 99
    assert made.token_ids[0] == 1
    for array in (made.token_ids, made.trained, made.streams["advantages"], single_turn().sampler_logprobs):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    with pytest.raises(TypeError):
        made.streams["advantages"] = np.zeros(2)  # type: ignore[index]


def test_arrays_of_unequal_length_are_refused() -> None:
    with pytest.raises(ValueError, match=r"Trajectory\.sampler_logprobs: got shape \(4,\), need \(5,\)"):
        Trajectory.single_turn([5, 6], [7, 8, 9], [-0.1, -0.2], [1, 1, 1], 0)
    with pytest.raises(ValueError, match=r"Sample\.trained"):
        sample(trained=[False, True])
    with pytest.raises(ValueError, match=r"Sample\.streams\[advantages\]: got shape \(3,\), need \(2,\)"):
        sample(streams={"advantages": [1, 2, 3]})


@pytest.mark.parametrize("ranges", [[(0, 2), (3, 5)], [(0, 3), (2, 5)], [(0, 2), (2, 4)], [(1, 5)], []])
def test_segments_tile_the_trajectory(ranges: list[tuple[int, int]]) -> None:
    turn = single_turn()
    with pytest.raises(ValueError, match="need ranges that tile"):
        Trajectory(
            token_ids=turn.token_ids, trained=turn.trained, sampler_logprobs=turn.sampler_logprobs,
            kept_mass=turn.kept_mass, policy_version=turn.policy_version,
            segments=tuple(Segment(kind="prompt", start=start, end=end) for start, end in ranges),
        )  # fmt: skip


def test_the_first_token_has_nothing_to_be_predicted_from() -> None:
    with pytest.raises(ValueError, match="trained first token"):
        Trajectory.single_turn([], [7], [-0.1], [1], 0)
    with pytest.raises(ValueError, match="trained first token"):
        sample(trained=[True, False, True, True], prompt_length=0)


@pytest.mark.parametrize("length", [-1, 3, 5])
def test_the_shared_prefix_is_not_trained(length: int) -> None:
    with pytest.raises(ValueError, match=r"Sample\.prompt_length"):
        sample(prompt_length=length)


def test_streams_are_added_to_a_copy() -> None:
    first = sample(streams={"advantages": [1.0, 1.0]})
    second = first.with_streams(old_logprobs=[-1.0, -2.0], advantages=[0.0, 0.0])
    assert set(first.streams) == {"advantages"}
    assert {name: values.tolist() for name, values in second.streams.items()} == {
        "advantages": [0.0, 0.0],
        "old_logprobs": [-1.0, -2.0],
    }
    assert second.num_tokens == 2


def test_a_prompt_is_never_empty_and_keeps_its_columns() -> None:
    with pytest.raises(ValueError, match="no token ids"):
        Prompt(index=0, token_ids=(), text="")
    columns = {"answer": "4"}
    prompt = Prompt(index=0, token_ids=(1,), text="2+2=", columns=columns)
    columns["answer"] = "5"
    assert prompt.columns["answer"] == "4"
    with pytest.raises(TypeError):
        prompt.columns["answer"] = "5"  # type: ignore[index]


def test_a_rollout_counts_trained_tokens_of_all_its_trajectories() -> None:
    prompt = Prompt(index=0, token_ids=(5, 6), text="")
    rollout = Rollout(prompt=prompt, group=0, index=0, trajectories=(single_turn(), single_turn()), text="",
                      stop_reason="eos")  # fmt: skip
    assert rollout.num_tokens == 6


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_error_is_not_a_score_and_not_a_zero(value: float) -> None:
    with pytest.raises(ValueError, match="need a finite number"):
        Score(value=value)
    failed = Score(status="error", error="timed out after 5 s")
    assert not failed.usable
    assert math.isnan(failed.value)
    assert not Score(status="abstained").usable
    assert Score(value=0.0).usable
