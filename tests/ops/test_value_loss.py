"""The clipped value loss and the explained variance."""

import math

import pytest
import torch

from quatrain.ops.value_loss import explained_variance, explained_variance_sums, value_loss


def doubles(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    ("value", "old", "target", "clip", "loss", "slope"),
    [
        (1.0, 0.0, 3.0, None, 2.0, -2.0),
        (1.0, 0.0, 3.0, 0.2, 0.5 * 2.8**2, 0.0),  # moved by more than clip towards R: the clipped error is the larger
        (-1.0, 0.0, 3.0, 0.2, 8.0, -4.0),  # moved away from R: its own error is the larger
        (0.1, 0.0, 3.0, 0.2, 0.5 * 2.9**2, -2.9),  # within the clip
        (5.0, 0.0, 3.0, 0.2, 0.5 * 2.8**2, 0.0),  # overshot: the clipped error is the larger
        (9.0, 0.0, 3.0, 0.2, 18.0, 6.0),  # overshot by more than the clipped error
        (1.0, 1.0, 1.0, 0.2, 0.0, 0.0),
    ],
)
def test_table(value, old, target, clip, loss, slope):
    values = doubles(value).requires_grad_()
    got = value_loss(values, doubles(old), doubles(target), clip)
    got.sum().backward()
    assert got.item() == pytest.approx(loss, abs=1e-12) and values.grad.item() == pytest.approx(slope, abs=1e-12)


def test_gradient_by_finite_differences():
    generator = torch.Generator().manual_seed(0)
    values, old, returns = (torch.randn(20, generator=generator, dtype=torch.float64) for _ in range(3))
    for clip in (None, 0.2):
        assert torch.autograd.gradcheck(lambda v, c=clip: value_loss(v, old, returns, c), values.requires_grad_())


def test_half_precision_is_raised():
    low = torch.tensor([1.0], dtype=torch.bfloat16)
    assert value_loss(low, low, low, 0.2).dtype == torch.float32


def test_explained_variance():
    returns = doubles(1, 2, 3, 6)
    assert explained_variance(explained_variance_sums(returns, returns)) == 1
    assert explained_variance(explained_variance_sums(returns + 5, returns)) == pytest.approx(1)  # a constant off
    assert explained_variance(explained_variance_sums(doubles(0, 0, 0, 0), returns)) == pytest.approx(0, abs=1e-15)
    # errors [1, -1, 1, -1]: variance 1 against 14 / 4
    got = explained_variance(explained_variance_sums(returns - doubles(1, -1, 1, -1), returns))
    assert got == pytest.approx(1 - 1 / 3.5)
    assert explained_variance(explained_variance_sums(-returns, returns)) == pytest.approx(-3)


def test_explained_variance_adds_over_micro_batches():
    generator = torch.Generator().manual_seed(1)
    returns = torch.randn(50, generator=generator) + 3
    values = returns + torch.randn(50, generator=generator) / 2
    slices = (slice(0, 1), slice(1, 20), slice(20, 50))
    parts = [explained_variance_sums(values[part], returns[part]) for part in slices]
    whole = 1 - (returns - values).double().var(correction=0) / returns.double().var(correction=0)
    assert explained_variance(sum(parts)) == pytest.approx(whole.item(), abs=1e-6)
    assert explained_variance(sum(parts).tolist()) == explained_variance(sum(parts))
    assert not explained_variance_sums(values.requires_grad_(), returns).requires_grad


@pytest.mark.parametrize("returns", [[], [0.1], [0.1] * 7, [0.7] * 3, [0.0, 0.0]])
def test_explained_variance_is_not_a_number_when_returns_do_not_differ(returns):
    assert math.isnan(explained_variance(explained_variance_sums(doubles(*[0.0] * len(returns)), doubles(*returns))))
