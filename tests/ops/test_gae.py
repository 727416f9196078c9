"""Rewards per token, generalised advantages and whitening of the trained tokens."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quatrain.ops.advantages import return_to_go
from quatrain.ops.gae import gae, next_values, token_rewards, whiten

PAIRS = st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 5)), min_size=1, max_size=30)


def test_penalty_on_every_token_and_the_score_on_the_last():
    got = token_rewards(np.array([0.1, -0.2, 0.3]), 1.0)
    np.testing.assert_allclose(got, [-0.1, 0.2, 0.7], atol=1e-15)
    assert got.dtype == np.float64


def test_placed_rewards_add_up():
    got = token_rewards(np.zeros(4), 2.0, [(0, 0.5), (3, 0.25), (0, 1.0)])
    assert got.tolist() == [1.5, 0, 0, 2.25]


@pytest.mark.parametrize("position", [-1, 2])
def test_a_placed_reward_must_lie_on_a_trained_token(position):
    with pytest.raises(ValueError, match=f"placed: got position {position}"):
        token_rewards(np.zeros(2), 1.0, [(position, 1.0)])


def test_an_empty_completion_has_no_rewards():
    assert token_rewards(np.array([]), 1.0).tolist() == []
    advantages, returns = gae(np.array([]), np.array([]), next_values(np.array([])))
    assert advantages.tolist() == returns.tolist() == []


@pytest.mark.parametrize(
    "trained", [[1, 1, 1, 0, 0], [1, 1, 1], [0, 0, 1, 1, 1]], ids=["padded right", "full", "padded left"]
)
def test_case_c38_the_score_lands_on_the_last_trained_token(trained):
    """On EOS (the third trained token), whatever surrounds it."""
    penalties = np.full(len(trained), 9.0)
    penalties[np.array(trained) == 1] = 0.0
    assert token_rewards(penalties[np.array(trained) == 1], 1.0).tolist() == [0, 0, 1]


def test_case_c43_values_of_masked_slots_do_not_bootstrap_into_trained_tokens():
    trained = np.array([True, True, True, False])
    rewards, values = np.array([0.0, 0, 1, 0])[trained], np.array([0.0, 0, 0, 40])[trained]
    np.testing.assert_allclose(gae(rewards, values, next_values(values), lam=0.9)[0], [0.81, 0.9, 1.0], atol=1e-15)
    unmasked = gae(np.array([0.0, 0, 1, 0]), np.array([0.0, 0, 0, 40]), np.array([0.0, 0, 40, 0]), lam=0.9)[0]
    np.testing.assert_allclose(unmasked[:3], [4.05, 4.5, 5.0], atol=1e-14)


def test_worked_advantages():
    values = np.array([0.5, 0.4, 0.3])
    advantages, returns = gae(np.array([0.0, 0, 1]), values, next_values(values))
    # delta = [-.1, -.1, .7]; A_2 = .7, A_1 = -.1 + .95 * .7, A_0 = -.1 + .95 * .565
    np.testing.assert_allclose(advantages, [0.43675, 0.565, 0.7], atol=1e-15)
    np.testing.assert_allclose(returns, [0.93675, 0.965, 1.0], atol=1e-15)


def test_gamma_discounts_the_next_value_and_the_trace():
    # delta = [0 + .5 * 2 - 1, 4 - 2] = [0, 2]; A_0 = 0 + .5 * .8 * 2
    advantages, _ = gae(np.array([0.0, 4]), np.array([1.0, 2]), np.array([2.0, 0]), gamma=0.5, lam=0.8)
    np.testing.assert_allclose(advantages, [0.8, 2.0], atol=1e-15)


def test_a_cut_completion_bootstraps_from_the_value_after_it():
    values = np.array([0.5, 0.5])
    assert next_values(values, 3.0).tolist() == [0.5, 3.0]
    advantages, _ = gae(np.zeros(2), values, next_values(values, 3.0), lam=1.0)
    assert advantages.tolist() == [2.5, 2.5]


@given(PAIRS, st.floats(0, 1), st.floats(-3, 3))
def test_lambda_one_is_the_monte_carlo_return_minus_the_value(pairs, gamma, after):
    rewards, values = np.array(pairs).T
    bootstrapped = np.append(rewards, after)
    wanted = return_to_go(bootstrapped, gamma)[:-1] - values
    advantages, returns = gae(rewards, values, next_values(values, after), gamma, 1.0)
    np.testing.assert_allclose(advantages, wanted, atol=1e-10)
    np.testing.assert_allclose(returns, wanted + values, atol=1e-10)


@given(PAIRS, st.floats(0, 1), st.floats(-3, 3))
def test_lambda_zero_is_the_td_error(pairs, gamma, after):
    rewards, values = np.array(pairs).T
    wanted = [r + gamma * n - v for r, v, n in zip(rewards, values, [*values[1:], after], strict=True)]
    np.testing.assert_allclose(gae(rewards, values, next_values(values, after), gamma, 0.0)[0], wanted, atol=1e-12)


@given(PAIRS, st.floats(0, 1), st.floats(0, 1))
def test_it_is_the_sum_of_equation_16(pairs, gamma, lam):
    rewards, values = np.array(pairs).T
    delta = rewards + gamma * next_values(values) - values
    wanted = [sum((gamma * lam) ** k * d for k, d in enumerate(delta[t:])) for t in range(len(delta))]
    np.testing.assert_allclose(gae(rewards, values, next_values(values), gamma, lam)[0], wanted, atol=1e-9)


def test_case_c45_zero_one_and_two_values():
    assert whiten(np.array([])).tolist() == []
    assert whiten(np.array([3.0])).tolist() == [3.0]
    assert whiten(np.array([3.0]), mean=False).tolist() == [3.0]
    np.testing.assert_allclose(whiten(np.array([1.0, 3.0])), [-1, 1], atol=1e-7)


def test_whitening():
    got = whiten(np.array([1.0, 2, 3, 6]))  # mean 3, population variance 14 / 4
    np.testing.assert_allclose(got, np.array([-2, -1, 0, 3]) / np.sqrt(3.5), rtol=1e-7)
    np.testing.assert_allclose(whiten(np.array([1.0, 2, 3, 6]), mean=False), got + 3, atol=1e-15)


@pytest.mark.parametrize("value", [0.1, 0.7])
def test_uniform_values_carry_no_signal(value):
    assert whiten(np.full(8, value)).tolist() == [0.0] * 8
    np.testing.assert_allclose(whiten(np.full(8, value), mean=False), value, rtol=1e-15)


def test_inputs_are_not_changed():
    array = np.array([1.0, 2.0])
    array.flags.writeable = False
    rewards = token_rewards(array, 1.0)
    rewards.flags.writeable = False
    gae(rewards, array, next_values(array))
    assert whiten(array) is not array and whiten(array[:1]).flags.writeable
