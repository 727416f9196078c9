"""Preference losses: worked values, gradients, and what happens far out."""

import math

import pytest
import torch

from quatrain.ops.preference import SATURATION, dpo, ipo, kto, kto_baseline, log_odds, orpo, simpo

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(6, generator=GENERATOR, dtype=torch.float64) * 5


def doubles(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def log_sigmoid(x: float) -> float:
    return -math.log1p(math.exp(-x))


def test_worked_values():
    delta = doubles(1.5)
    assert dpo(delta, 0.1).item() == pytest.approx(0.6209570478, abs=1e-10)
    assert dpo(delta, 0.1, label_smoothing=0.1).item() == pytest.approx(0.6359570478, abs=1e-10)
    assert dpo(delta, 0.1, label_smoothing=0.1, robust=True).item() == pytest.approx(0.6022070478, abs=1e-10)
    assert ipo(delta, 0.1).item() == pytest.approx(12.25, abs=1e-12)


@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1}, {"label_smoothing": 0.1, "robust": True}])
def test_identical_sides_give_ln_2_and_no_gradient(options):
    logprob, reference = doubles(-12.5, -3).requires_grad_(), doubles(-13, -2.5)
    loss = dpo((logprob - reference) - (logprob - reference), 0.1, **options)
    loss.sum().backward()
    torch.testing.assert_close(loss.detach(), torch.full_like(loss, math.log(2)), rtol=0, atol=1e-12)
    assert logprob.grad.tolist() == [0, 0]


def test_signs():
    chosen, rejected = doubles(-10).requires_grad_(), doubles(-10).requires_grad_()
    dpo(chosen - rejected, 0.1).sum().backward()
    assert chosen.grad.item() == pytest.approx(-0.05) and rejected.grad.item() == pytest.approx(0.05)


def test_robust_loss_is_unbiased_under_flipped_labels():
    """The expectation over labels that are wrong with probability e is the loss of the right label."""
    expected = 0.8 * dpo(X, 0.3, 0.2, robust=True) + 0.2 * dpo(-X, 0.3, 0.2, robust=True)
    torch.testing.assert_close(expected, dpo(X, 0.3), rtol=1e-12, atol=1e-12)


def test_conservative_loss_has_its_minimum_where_the_label_noise_is():
    delta = doubles(math.log(0.9 / 0.1) / 0.5).requires_grad_()
    dpo(delta, 0.5, label_smoothing=0.1).sum().backward()
    assert delta.grad.item() == pytest.approx(0, abs=1e-15)


def test_confidence_is_a_soft_label():
    got = dpo(doubles(1.5, 1.5, 1.5), 0.1, confidence_P=doubles(1, 0, 0.7))
    up, down = -log_sigmoid(0.15), -log_sigmoid(-0.15)
    assert got.tolist() == pytest.approx([up, down, 0.7 * up + 0.3 * down], abs=1e-12)
    smoothed = dpo(doubles(1.5), 0.1, 0.1, confidence_P=doubles(0.7)).item()
    assert smoothed == pytest.approx(0.66 * up + 0.34 * down)  # .7 * .9 + .3 * .1
    robust = dpo(doubles(1.5), 0.1, 0.1, robust=True, confidence_P=doubles(0.7)).item()
    assert robust == pytest.approx(0.75 * up + 0.25 * down)  # (.7 - .1) / .8


@pytest.mark.parametrize("smoothing", [0.5, -0.1, 1.0])
def test_smoothing_that_says_nothing_is_refused(smoothing):
    with pytest.raises(ValueError, match=f"label_smoothing: got {smoothing}"):
        dpo(X, 0.1, smoothing)


def test_kto_by_hand():
    got = kto(doubles(2, 2, -1), 0.5, torch.tensor([True, False, True]), 0.1, 1.0, 1.5)
    sigmoid = [1 / (1 + math.exp(-x)) for x in (0.15, -0.15, -0.15)]
    assert got.tolist() == pytest.approx([1 - sigmoid[0], 1.5 * (1 - sigmoid[1]), 1 - sigmoid[2]], abs=1e-15)
    heavier = kto(doubles(2), 0.5, torch.tensor([True]), 0.1, weight_desirable=3.0)
    assert heavier.item() == pytest.approx(3 * got[0].item())


def test_kto_pushes_desirable_up_and_undesirable_down():
    logratio = doubles(0.3, 0.3).requires_grad_()
    kto(logratio, 0.1, torch.tensor([True, False]), 0.1).sum().backward()
    assert logratio.grad[0] < 0 < logratio.grad[1]


def test_kto_baseline_is_the_mean_without_gradient_and_never_negative():
    logratio = doubles(1, 2, 6).requires_grad_()
    z0 = kto_baseline(logratio)
    assert z0.item() == 3 and not z0.requires_grad
    assert kto_baseline(doubles(1, -2)).item() == 0
    assert kto_baseline(doubles()).item() == 0
    assert kto_baseline(torch.tensor([1.0], dtype=torch.bfloat16)).dtype == torch.float32


def test_orpo_by_hand():
    # p = .8 and .5: odds 4 and 1
    assert log_odds(doubles(0.8, 0.5).log()).tolist() == pytest.approx([math.log(4), 0], abs=1e-12)
    assert orpo(doubles(0.8).log(), doubles(0.5).log()).item() == pytest.approx(-math.log(0.8), abs=1e-12)
    assert orpo(doubles(-3), doubles(-3)).item() == pytest.approx(math.log(2), abs=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("w", "l"), [(0.0, 0.0), (0.0, -3.0), (-3.0, 0.0), (-1e-7, 0.0), (-1e4, 0.0), (0.0, -1e4)])
def test_orpo_is_finite_up_to_probability_one(dtype, w, l):  # noqa: E741
    chosen = torch.tensor([w], dtype=dtype, requires_grad=True)
    rejected = torch.tensor([l], dtype=dtype, requires_grad=True)
    loss = orpo(chosen, rejected)
    loss.sum().backward()
    for value in (loss, chosen.grad, rejected.grad):
        assert torch.isfinite(value).all()
    assert chosen.grad.item() <= 0 <= rejected.grad.item()


def test_orpo_still_pushes_a_certain_rejected_completion_down():
    rejected = torch.zeros(1, requires_grad=True)
    orpo(torch.tensor([-2.0]), rejected).sum().backward()
    assert rejected.grad.item() == pytest.approx(1 / SATURATION, rel=1e-3)


def test_log_odds_continue_along_the_tangent():
    edge = doubles(-SATURATION * 1.0001, -SATURATION, -SATURATION * 0.9999, 0, 1e-5).requires_grad_()
    value = log_odds(edge)
    (slope,) = torch.autograd.grad(value.sum(), edge)
    assert (value.diff() > 0).all()
    torch.testing.assert_close(slope, torch.full_like(slope, 1 / SATURATION), rtol=2e-4, atol=0)
    step = value[3] - value[1]  # over SATURATION at slope 1 / SATURATION
    assert step.item() == pytest.approx(1, rel=1e-4)


def test_simpo_by_hand():
    # 2 (-.5 - -1) - .3 = .7
    assert simpo(doubles(-0.5), doubles(-1), 2.0, 0.3).item() == pytest.approx(-log_sigmoid(0.7), abs=1e-12)


LOSSES = {
    "dpo": lambda x: dpo(x, 0.3),
    "conservative": lambda x: dpo(x, 0.3, 0.1),
    "robust": lambda x: dpo(x, 0.3, 0.1, robust=True),
    "ipo": lambda x: ipo(x, 0.3),
    "kto": lambda x: kto(x, 0.4, torch.arange(len(x)) % 2 == 0, 0.3, 1.0, 1.3),
    "orpo": lambda x: orpo(-x.abs() - 0.01, -x.flip(0).abs() / 2 - 0.02),
    "simpo": lambda x: simpo(x, x.flip(0) / 2, 2.0, 0.5),
}


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_by_finite_differences(name):
    assert torch.autograd.gradcheck(LOSSES[name], X.clone().requires_grad_(), eps=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_finite_far_out(name, dtype):
    x = torch.tensor([1e4, -1e4, 0.0, 1.0], dtype=dtype, requires_grad=True)
    loss = LOSSES[name](x)
    loss.sum().backward()
    assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert torch.isfinite(loss).all() and torch.isfinite(x.grad).all()


def test_dpo_far_out_is_linear():
    assert dpo(torch.tensor([-1e4, 1e4]), 1.0).tolist() == pytest.approx([1e4, 0])
