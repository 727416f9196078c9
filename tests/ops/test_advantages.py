"""Group statistics in float64."""

import numpy as np
import pytest

from quatrain.ops.advantages import group_advantages, is_uniform, normalise, return_to_go, spread


@pytest.mark.parametrize("value", [0.1, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("size", range(3, 17))
def test_c02_equal_rewards_are_exactly_zero(value, size):
    for dtype in (np.float32, np.float64):
        rewards = np.full(size, value, dtype=dtype)
        assert (group_advantages(rewards.astype(np.float64)) == 0.0).all()
        assert (group_advantages(rewards.astype(np.float64), baseline="leave_one_out", scale="none") == 0.0).all()


def test_c03_one_value_is_no_group():
    assert group_advantages(np.array([3.0])).tolist() == [0.0]
    assert group_advantages(np.array([3.0]), std="sample").tolist() == [0.0]
    assert group_advantages(np.array([])).tolist() == []


def test_the_guard_has_two_conditions():
    assert is_uniform(np.array([0.5, 0.5 + 0.9e-8]))
    assert not is_uniform(np.array([0.5, 0.5 + 3e-8]))
    almost = np.zeros(10_001)
    almost[0] = 5e-7  # the range is above the bound, the deviation is not
    assert np.ptp(almost) > 1e-8 and is_uniform(almost)


def test_leave_one_out_is_the_mean_of_the_others():
    got = group_advantages(np.array([3.0, 0.0, 1.0, 0.0]), baseline="leave_one_out", scale="none")
    np.testing.assert_allclose(got, [3 - 1 / 3, -4 / 3, 0, -4 / 3], atol=1e-15)


def test_no_baseline_keeps_uniform_scores_unless_divided_by_the_groups_own_deviation():
    ones = np.ones(3)
    assert group_advantages(ones, baseline="none", scale="none").tolist() == [1, 1, 1]
    assert group_advantages(ones, baseline="none", scale="group").tolist() == [0, 0, 0]


def test_spread():
    assert spread(np.array([0.0, 2.0])) == 1
    assert spread(np.array([0.0, 2.0]), "sample") == pytest.approx(np.sqrt(2))
    assert spread(np.array([4.0]), "sample") == 0


def test_batch_scale_needs_its_deviation():
    with pytest.raises(ValueError, match="batch_spread"):
        group_advantages(np.array([0.0, 1.0]), scale="batch")


def test_normalise_and_return_to_go():
    np.testing.assert_allclose(normalise(np.array([0.0, 2.0]), epsilon=1e-4), [-1 / 1.0001, 1 / 1.0001])
    assert normalise(np.full(5, 0.1)).tolist() == [0.0] * 5
    assert return_to_go(np.array([1.0, 0.0, 2.0])).tolist() == [3, 2, 2]
    assert return_to_go(np.array([1.0, 0.0, 2.0]), gamma=0.5).tolist() == [1.5, 1, 2]
    assert return_to_go(np.array([])).tolist() == []


def test_inputs_are_not_changed():
    rewards = np.array([1.0, 0.0])
    rewards.flags.writeable = False
    group_advantages(rewards)
    return_to_go(rewards)
