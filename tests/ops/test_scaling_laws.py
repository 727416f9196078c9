"""Over-optimisation: the laws, the exact best-of-n estimator and the fits."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quatrain.ops.scaling_laws import best_of_n, bon_kl, fit_law, gold_bon, gold_rl

SAMPLES = st.lists(st.tuples(st.integers(0, 4), st.floats(-5, 5)), min_size=1, max_size=7)


def test_laws_by_hand():
    np.testing.assert_allclose(gold_bon(np.array([0.0, 1, 2]), 3.0, 0.5), [0, 2.5, 4], atol=1e-15)
    np.testing.assert_allclose(gold_rl(np.array([0.0, 1, math.e]), 3.0, 0.5), [0, 3, 2.5 * math.e], atol=1e-14)
    assert float(gold_rl(2.0, 1.0, 0.25)) == pytest.approx(2 * (1 - 0.25 * math.log(2)))


def test_the_peaks_are_where_the_docstrings_say():
    d = np.linspace(0.01, 20, 20_000)
    assert d[gold_bon(d, 3.0, 0.5).argmax()] == pytest.approx(3, abs=2e-3)
    assert d[gold_rl(d, 3.0, 1.0).argmax()] == pytest.approx(math.e**2, abs=2e-3)


def test_kl_of_best_of_n():
    assert bon_kl(1) == 0
    np.testing.assert_allclose(bon_kl(np.array([2, 4])), [math.log(2) - 0.5, math.log(4) - 0.75], atol=1e-15)


def test_kl_of_best_of_n_is_that_of_the_density_of_the_largest_of_n():
    """The largest of n uniform draws has density n u^(n-1)."""
    u = (np.arange(1_000_000) + 0.5) / 1_000_000
    density = 5 * u**4
    assert np.mean(density * np.log(density)) == pytest.approx(bon_kl(5), abs=1e-5)


def test_best_of_n_by_hand():
    proxy, gold = np.array([0.2, 0.9, 0.5]), np.array([1.0, 10, 4])
    assert best_of_n(proxy, gold, 1) == pytest.approx(5)
    assert best_of_n(proxy, gold, 2) == pytest.approx((10 + 10 + 4) / 3)  # pairs: with the best twice, {1, 4} once
    assert best_of_n(proxy, gold, 3) == pytest.approx(10)


@given(SAMPLES)
def test_best_of_n_is_the_mean_over_all_subsets(samples):
    proxy, gold = np.array(samples, dtype=np.float64).T
    for n in range(1, len(samples) + 1):
        wins = []
        for subset in itertools.combinations(samples, n):
            best = max(subset)[0]
            wins.append(np.mean([g for p, g in subset if p == best]))
        assert best_of_n(proxy, gold, n) == pytest.approx(np.mean(wins), abs=1e-9)


def test_best_of_n_of_many_samples():
    rng = np.random.default_rng(0)
    gold = rng.permutation(20_000) / 20_000  # uniform: the expected largest of n is n / (n + 1)
    for n in (1, 16, 1024):
        assert best_of_n(gold, gold, n) == pytest.approx(n / (n + 1), abs=1e-4)
    assert math.isfinite(best_of_n(gold, gold, 19_999))


@pytest.mark.parametrize("n", [0, 4])
def test_best_of_n_needs_that_many_samples(n):
    with pytest.raises(ValueError, match=f"n: got {n}, need 1 to 3"):
        best_of_n(np.zeros(3), np.zeros(3), n)


@pytest.mark.parametrize(("name", "law"), [("bon", gold_bon), ("rl", gold_rl)])
def test_a_fit_finds_what_made_the_curve(name, law):
    d = np.array([0.0, 0.5, 1, 2, 4])
    fit = fit_law(name, d, np.stack([law(d, 2.0, 0.3), law(d, 4.0, 0.5)]))
    assert (fit.a, fit.b) == pytest.approx((3.0, 0.4), abs=1e-12)  # the mean of two prompts


def test_the_other_law_does_not_fit():
    d = np.array([0.5, 1, 2, 4, 6])
    fit = fit_law("rl", d, gold_bon(d, 2.0, 0.3)[None])
    assert np.abs(gold_rl(d, fit.a, fit.b) - gold_bon(d, 2.0, 0.3)).max() > 0.1


@pytest.mark.parametrize(("name", "law"), [("bon", gold_bon), ("rl", gold_rl)])
def test_standard_errors_are_the_spread_over_repeated_experiments(name, law):
    d, rng = np.array([0.5, 1, 2, 3, 4]), np.random.default_rng(0)
    experiments = []
    for _ in range(300):
        slopes = rng.normal(2.0, 0.5, size=(40, 1))
        noise = rng.normal(0, 0.3, size=(40, 5))
        experiments.append(fit_law(name, d, law(d, 1.0, 0.3) + (slopes - 1) * d + noise, resamples=200))
    assert np.mean([fit.a for fit in experiments]) == pytest.approx(2.0, abs=0.02)
    for value, error in (("a", "a_error"), ("b", "b_error")):
        spread = np.std([getattr(fit, value) for fit in experiments])
        assert np.mean([getattr(fit, error) for fit in experiments]) == pytest.approx(spread, rel=0.15)


def test_fits_repeat_and_one_prompt_has_no_error():
    d = np.array([1.0, 2, 3])
    gold = np.random.default_rng(1).normal(size=(5, 3))
    assert fit_law("bon", d, gold) == fit_law("bon", d, gold) != fit_law("bon", d, gold, seed=1)
    assert math.isnan(fit_law("bon", d, gold[:1]).a_error)


def test_fit_refusals():
    with pytest.raises(ValueError, match="at least two different distances"):
        fit_law("rl", np.array([0.0, 2, 2]), np.zeros((4, 3)))
    with pytest.raises(ValueError, match=r"d, gold: got \(2,\), \(4, 3\)"):
        fit_law("bon", np.array([1.0, 2]), np.zeros((4, 3)))
