"""k1, k2, k3 and abs: values, signs, and finiteness in every dtype."""

import math

import pytest
import torch

from quatrain.ops.kl import ESTIMATORS, SATURATION, k3, kl_estimate, log_ratio, saturated

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def test_values():
    logp, ref = torch.tensor([-1.0], dtype=torch.float64), torch.tensor([-1.5], dtype=torch.float64)
    values = {name: kl_estimate(name, logp, ref).item() for name in ESTIMATORS}
    assert values == pytest.approx({"k1": 0.5, "k2": 0.125, "k3": math.exp(-0.5) - 0.5, "abs": 0.5}, abs=1e-15)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", sorted(ESTIMATORS))
@pytest.mark.parametrize("gap", [99.0, -99.0, 30.0, 0.0])
def test_c55_c56_finite_value_and_gradient(name, dtype, gap):
    logp = torch.tensor([-100.0], dtype=dtype, requires_grad=True)
    value = kl_estimate(name, logp, torch.tensor([-100.0 + gap], dtype=dtype))
    value.sum().backward()
    assert torch.isfinite(value).all() and torch.isfinite(logp.grad).all()
    if name != "k1":
        assert (value >= 0).all()


def test_c55_c56_k3_far_from_the_reference():
    d = torch.tensor([99.0, -99.0])
    assert k3(d).tolist() == pytest.approx([math.expm1(SATURATION) - SATURATION, 98.0])
    assert saturated(d).tolist() == [True, False]


@pytest.mark.parametrize("dtype", DTYPES)
def test_k3_is_never_negative(dtype):
    d = torch.logspace(-9, 2, 40001, dtype=torch.float64)
    reference = torch.cat([d, -d]).to(dtype)
    assert (kl_estimate("k3", torch.zeros_like(reference), reference) >= 0).all()


def test_k3_of_a_small_drift_is_not_lost():
    """The plain exp(d) - d - 1 is negative here in float32."""
    d = torch.tensor([1e-4, -3e-4], dtype=torch.float32)
    torch.testing.assert_close(k3(d).double(), d.double() ** 2 / 2, rtol=5e-3, atol=0)


def test_half_precision_is_raised_before_the_difference():
    assert log_ratio(torch.zeros(1, dtype=torch.bfloat16), torch.ones(1, dtype=torch.float16)).dtype == torch.float32
    assert log_ratio(torch.zeros(1, dtype=torch.float64), torch.ones(1)).dtype == torch.float64


def test_gradients_by_finite_differences():
    logp = torch.tensor([-1.0, -0.2, -3.0], dtype=torch.float64, requires_grad=True)
    ref = torch.tensor([-0.7, -0.9, -2.9], dtype=torch.float64)
    for name in ESTIMATORS:
        assert torch.autograd.gradcheck(lambda x, name=name: kl_estimate(name, x, ref), logp, eps=1e-6, atol=1e-8)


def test_unknown_estimator():
    with pytest.raises(ValueError, match="k4"):
        kl_estimate("k4", torch.zeros(1), torch.zeros(1))


def test_full_and_sampled_estimates_agree_in_expectation():
    p = torch.tensor([0.2, -1.0, 0.5], dtype=torch.float64).log_softmax(0)
    q = torch.tensor([0.0, 0.3, -0.4], dtype=torch.float64).log_softmax(0)
    exact = (p.exp() * (p - q)).sum().item()
    for name in ("k1", "k3"):
        assert (p.exp() * kl_estimate(name, p, q)).sum().item() == pytest.approx(exact, abs=1e-12)
