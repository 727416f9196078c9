"""Ratios by level, clips, and weights for the sampler's mismatch."""

import math

import pytest
import torch

from quatrain.ops.policy_loss import (
    clipped_loss,
    detached_cap_loss,
    importance_ratio,
    importance_weight,
    once_per_sequence,
    outside,
    policy_ratio,
)
from quatrain.ops.segments import segment_count, segment_mean, segment_sum

ONE = torch.zeros(10, dtype=torch.long)


def doubles(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_segments():
    values, segments = doubles(1, 2, 4), torch.tensor([0, 2, 2])
    assert segment_sum(values, segments, 4).tolist() == [1, 0, 6, 0]
    assert segment_mean(values, segments, 4).tolist() == [1, 0, 3, 0]
    assert segment_count(segments, 4, values).tolist() == [1, 1, 2, 1]


def test_c52_a_product_only_when_asked_for():
    logp, old = doubles(*[math.log(1.1)] * 10), doubles(*[0] * 10)
    assert policy_ratio(logp, old, ONE, 1).tolist() == pytest.approx([1.1] * 10)
    assert policy_ratio(logp, old, ONE, 1, "sequence").tolist() == pytest.approx([1.1] * 10)
    assert policy_ratio(logp, old, ONE, 1, "sequence_sum").tolist() == pytest.approx([2.593742] * 10)


@pytest.mark.parametrize("level", ["sequence", "sequence_sum"])
def test_sequence_ratios_have_the_gradient_of_the_plain_ratio(level):
    sample = torch.tensor([0, 0, 0, 1, 1])
    logp = doubles(-1, -0.5, -2, -0.2, -1.5).requires_grad_()
    old = doubles(-1.2, -0.4, -1, -0.9, -1.4)
    pool = segment_mean if level == "sequence" else segment_sum
    plain = pool(logp - old, sample, 2).exp()
    (wanted,) = torch.autograd.grad((plain * segment_sum(torch.ones(5).double(), sample, 2)).sum(), logp)
    ratio = policy_ratio(logp, old, sample, 2, level)
    torch.testing.assert_close(ratio.detach(), plain.detach()[sample], rtol=1e-12, atol=0)
    (got,) = torch.autograd.grad(ratio.sum(), logp)
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=0)


def test_sequence_ratio_gives_each_token_its_own_advantage():
    logp = doubles(-1, -2).requires_grad_()
    ratio = policy_ratio(logp, logp.detach(), torch.tensor([0, 0]), 1, "sequence")
    clipped_loss(ratio, doubles(1, 3), 0.2, 0.2).sum().backward()
    assert logp.grad.tolist() == [-1, -3]


def test_once_per_sequence():
    assert once_per_sequence(doubles(3, 3, 3, 2), torch.tensor([0, 0, 0, 1]), 2).tolist() == [1, 1, 1, 2]


@pytest.mark.parametrize(
    ("ratio", "advantage", "dual", "loss", "slope"),
    [
        (1.1, 1, None, -1.1, -1),
        (1.5, 1, None, -1.2, 0),
        (0.5, 1, None, -0.5, -1),
        (0.5, -1, None, 0.8, 0),
        (1.5, -1, None, 1.5, 1),
        (5, -1, None, 5, 1),
        (5, -1, 3.0, 3, 0),
        (2, -1, 3.0, 2, 1),
        (0.5, -1, 3.0, 0.8, 0),
        (5, 1, 3.0, -1.2, 0),
    ],
)
def test_clip_table(ratio, advantage, dual, loss, slope):
    rho = doubles(ratio).requires_grad_()
    value = clipped_loss(rho, doubles(advantage), 0.2, 0.2, dual)
    value.sum().backward()
    assert value.item() == pytest.approx(loss) and rho.grad.item() == slope


def test_detached_cap():
    logp = doubles(-1, -2, -3).requires_grad_()
    loss = detached_cap_loss(doubles(1.1, 1.5, 0.1), logp, doubles(1, 1, -2), 0.2)
    loss.sum().backward()
    assert logp.grad.tolist() == pytest.approx([-1.1, -1.2, 0.2])
    assert loss.tolist() == pytest.approx([1.1, 2.4, -0.6])


def test_c50_sequence_weight_grows_with_length_and_token_weight_does_not():
    for tokens, product in ((80, 3.32), (800, 1.6e5)):
        old, sampler, zero = (
            torch.full((tokens,), -1.0),
            torch.full((tokens,), -1.015),
            torch.zeros(tokens, dtype=torch.long),
        )
        sequence = importance_ratio(old, sampler, zero, 1, "sequence")
        assert sequence[0].item() == pytest.approx(product, rel=0.02)
        assert outside(sequence, None, 3.0).all()
        assert not outside(importance_ratio(old, sampler, zero, 1, "token"), None, 3.0).any()


def test_weights_and_masks():
    ratio = torch.tensor([0.1, 1.0, 2.5, math.inf])
    assert importance_weight(ratio, 2.0).tolist() == pytest.approx([0.1, 1, 2, 2])
    assert importance_weight(ratio, None, 0.5, 2.0).tolist() == [0, 1, 0, 0]
    assert importance_weight(ratio, 2.0, None, 2.4).tolist() == pytest.approx([0.1, 1, 0, 0])
    assert importance_weight(ratio, None).tolist() == [1, 1, 1, 1]
