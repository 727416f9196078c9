"""The KL coefficient's controllers and the running moments of the reward."""

import json
import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quatrain.ops.controllers import AdaptiveKL, FixedKL, KLController, RunningMoments

BATCHES = st.lists(st.lists(st.floats(-1e3, 1e3), max_size=9), max_size=9)


def test_fixed():
    controller: KLController = FixedKL(0.1)
    controller.update(50.0, 256)
    controller.load_state_dict(controller.state_dict())
    assert (controller.coefficient, controller.restarts) == (0.1, 0)


@pytest.mark.parametrize(
    ("kl", "factor"),
    [
        (6.0, 1.0),
        (6.6, 1 + 0.1 * 0.1),
        (5.4, 1 - 0.1 * 0.1),
        (60.0, 1 + 0.1 * 0.2),  # e is clipped at +-0.2
        (0.0, 1 - 0.1 * 0.2),
        (-1.0, 1 - 0.1 * 0.2),
        (math.inf, 1 + 0.1 * 0.2),
    ],
)
def test_one_update_by_hand(kl, factor):
    controller = AdaptiveKL(0.05, target=6.0, horizon=2560)  # K = 256 / 2560
    controller.update(kl, 256)
    assert controller.coefficient == pytest.approx(0.05 * factor, rel=1e-12)


def test_a_spike_restarts():
    controller = AdaptiveKL(0.05, target=0.05, horizon=1000, spike=0.5)
    for _ in range(20):
        controller.update(0.0, 100)
    assert controller.coefficient == pytest.approx(0.05 * 0.98**20) and controller.restarts == 0
    controller.update(0.5, 100)  # not above the threshold
    assert controller.restarts == 0
    controller.update(0.51, 100)
    assert (controller.coefficient, controller.restarts) == (0.05, 1)


def test_a_spike_is_read_per_token_when_the_target_is_per_sequence():
    controller = AdaptiveKL(0.05, target=6.0, horizon=1000, spike=0.5)
    controller.update(7.0, 100, kl_per_token=0.07)
    assert controller.restarts == 0 and controller.coefficient > 0.05
    grown = controller.coefficient
    controller.update(7.0, 100, kl_per_token=0.7)  # a spike never lowers a beta that has grown
    assert (controller.coefficient, controller.restarts) == (grown, 1)


def settle(controller: AdaptiveKL, noise: float, steps: int = 300, seed: int = 0) -> list[float]:
    """KL per step of a policy that moves a tenth of the way to its optimum, KL* = 0.0005 / beta^2, every step.

    With a Gaussian reward of deviation s the optimum under penalty beta has KL* = s^2 / (2 beta^2).
    """
    dice, kl, seen = random.Random(seed), 0.0, []
    for _ in range(steps):
        kl += 0.1 * (0.0005 / controller.coefficient**2 - kl)
        seen.append(kl * math.exp(dice.gauss(0, noise)))
        controller.update(seen[-1], 64)
    return seen[steps // 2 :]


@pytest.mark.parametrize("initial", [0.02, 0.1, 0.5])
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_the_controller_holds_the_kl_within_a_fifth_of_its_target(initial, noise):
    """From a penalty five times too small, right, and five times too large: sqrt(0.0005 / 0.05) = 0.1 is the answer."""
    kl = settle(AdaptiveKL(initial, target=0.05, horizon=640), noise)
    assert 0.8 < statistics.fmean(kl) / 0.05 < 1.2
    if not noise:
        assert all(0.8 < value / 0.05 < 1.2 for value in kl)


def test_a_fixed_penalty_does_not_hold_it():
    controller = AdaptiveKL(0.02, target=0.05, horizon=1e12)
    assert statistics.fmean(settle(controller, 0.0)) / 0.05 > 5


def test_adaptive_state_continues_bit_for_bit():
    whole, first = (AdaptiveKL(0.05, 0.05, 1000, spike=0.3) for _ in range(2))
    dice = random.Random(3)
    readings = [dice.uniform(0, 0.4) for _ in range(40)]
    for kl in readings:
        whole.update(kl, 64)
    for kl in readings[:17]:
        first.update(kl, 64)
    second = AdaptiveKL(0.05, 0.05, 1000, spike=0.3)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for kl in readings[17:]:
        second.update(kl, 64)
    assert second.state_dict() == whole.state_dict() and whole.restarts > 0


@pytest.mark.parametrize("name", ["initial", "target", "horizon"])
def test_a_controller_needs_positive_numbers(name):
    with pytest.raises(ValueError, match=f"{name}: got 0"):
        AdaptiveKL(**{"initial": 0.1, "target": 0.1, "horizon": 100, name: 0})


def test_a_horizon_too_short_and_a_kl_that_is_no_number():
    controller = AdaptiveKL(0.1, 0.1, horizon=20)
    with pytest.raises(ValueError, match="horizon: got 20"):
        controller.update(0.1, 100)
    with pytest.raises(ValueError, match="kl: got nan"):
        controller.update(math.nan, 1)
    assert controller.coefficient == 0.1


def test_moments_by_hand():
    moments = RunningMoments()
    assert (moments.count, moments.mean, moments.variance) == (0, 0.0, 0.0)
    moments.update([1.0, 2.0])
    moments.update([])
    moments.update(iter([3.0, 6.0]))
    assert (moments.count, moments.mean, moments.variance) == (4, 3.0, 3.5)
    assert moments.normalise(6.0) == pytest.approx(3 / math.sqrt(3.5))


@given(BATCHES)
def test_batches_change_nothing(batches):
    moments, values = RunningMoments(), [value for batch in batches for value in batch]
    for batch in batches:
        moments.update(batch)
    assert moments.count == len(values)
    if values:
        assert moments.mean == pytest.approx(statistics.fmean(values), abs=1e-9)
        assert moments.variance == pytest.approx(statistics.pvariance(values), rel=1e-9, abs=1e-9)


def test_a_large_mean_does_not_swallow_the_variance():
    moments = RunningMoments()
    for value in (1e9 + 4, 1e9 + 7, 1e9 + 13, 1e9 + 16):
        moments.update([value])
    assert moments.variance == pytest.approx(22.5, rel=1e-9)


def test_equal_values_are_only_centred():
    moments = RunningMoments()
    assert moments.normalise(2.0) == 2.0
    moments.update([0.7] * 3)  # their variance is 1e-32, by rounding
    assert moments.normalise(0.7) == pytest.approx(0, abs=1e-15) and moments.normalise(1.7) == pytest.approx(1)


def test_moments_refuse_what_could_never_be_taken_out():
    moments = RunningMoments()
    with pytest.raises(ValueError, match="values: got nan"):
        moments.update([1.0, math.nan])
    assert moments.count == 0


def test_moments_state_continues_bit_for_bit():
    whole, first, second = RunningMoments(), RunningMoments(), RunningMoments()
    batches = [[random.Random(seed).gauss(1, 2) for _ in range(5)] for seed in range(6)]
    for batch in batches:
        whole.update(batch)
    for batch in batches[:2]:
        first.update(batch)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for batch in batches[2:]:
        second.update(batch)
    assert second.state_dict() == whole.state_dict()
