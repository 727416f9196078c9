"""Reward-model losses: worked values, ties, soft labels and rankings."""

import math

import pytest
import torch

from quatrain.ops.bradley_terry import bradley_terry, centering, ranking_pairs


def doubles(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


CHOSEN, REJECTED, MARGIN = doubles(1, 0.2), doubles(0.5, 0.4), doubles(0.1, 0.3)


def soft(x: float) -> float:
    """-log sigmoid(x)"""
    return math.log1p(math.exp(-x))


def test_worked_values():
    plain, margins = bradley_terry(CHOSEN, REJECTED).mean(), bradley_terry(CHOSEN, REJECTED, MARGIN).mean()
    extra = 0.01 * centering(CHOSEN, REJECTED).mean()
    assert plain.item() == pytest.approx(0.6361079268, abs=1e-10)
    assert margins.item() == pytest.approx(0.7435461183, abs=1e-10)
    assert (plain + extra).item() == pytest.approx(0.6491579268, abs=1e-10)
    assert (margins + extra).item() == pytest.approx(0.7565961183, abs=1e-10)
    torch.testing.assert_close(bradley_terry(CHOSEN, REJECTED, 0.1)[0], bradley_terry(CHOSEN, REJECTED, MARGIN)[0])


def test_a_constant_changes_no_loss_and_centering_sees_it():
    confidence, tie = doubles(0.8, 0.5), torch.tensor([False, True])
    before = bradley_terry(CHOSEN, REJECTED, MARGIN, confidence, tie)
    torch.testing.assert_close(bradley_terry(CHOSEN + 7, REJECTED + 7, MARGIN, confidence, tie), before)
    assert (centering(CHOSEN + 7, REJECTED + 7) > centering(CHOSEN, REJECTED)).all()


def test_ties_are_half_and_half_without_margin():
    got = bradley_terry(CHOSEN, REJECTED, MARGIN, doubles(0.9, 0.9), torch.tensor([True, False]))
    assert got[0].item() == pytest.approx(0.5 * soft(0.5) + 0.5 * soft(-0.5), abs=1e-12)
    assert got[1].item() == pytest.approx(0.9 * soft(-0.5) + 0.1 * soft(-0.1), abs=1e-12)  # d = -.2, margin .3


def test_a_tie_pulls_the_scores_together_and_is_symmetric():
    score = doubles(1, -1).requires_grad_()
    bradley_terry(score[:1], score[1:], tie_P=torch.tensor([True])).sum().backward()
    assert score.grad[0] > 0 > score.grad[1]
    tie = torch.tensor([True, True])
    torch.testing.assert_close(bradley_terry(CHOSEN, REJECTED, tie_P=tie), bradley_terry(REJECTED, CHOSEN, tie_P=tie))


def test_confidence_is_the_probability_that_the_chosen_one_wins():
    got = bradley_terry(doubles(2, 2, 2), doubles(0.5, 0.5, 0.5), confidence_P=doubles(1, 0, 0.7))
    assert got.tolist() == pytest.approx([soft(1.5), soft(-1.5), 0.7 * soft(1.5) + 0.3 * soft(-1.5)], abs=1e-12)
    score = doubles(math.log(0.7 / 0.3)).requires_grad_()
    bradley_terry(score, doubles(0), confidence_P=doubles(0.7)).sum().backward()
    assert score.grad.item() == pytest.approx(0, abs=1e-15)  # the scores agree with the label


def test_gradients_by_finite_differences():
    scores = torch.randn(2, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    confidence, tie = doubles(1, 0.3, 0.5, 0.9), torch.tensor([False, False, True, False])
    margin = doubles(0, 0.2, 0.1, 1)
    assert torch.autograd.gradcheck(lambda x: bradley_terry(x[0], x[1], margin, confidence, tie), scores)
    assert torch.autograd.gradcheck(lambda x: centering(x[0], x[1]), scores)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_finite_far_out(dtype):
    score = torch.tensor([1e4, -1e4], dtype=dtype, requires_grad=True)
    loss = bradley_terry(score, score.detach().flip(0), 1.0, tie_P=torch.tensor([False, True]))
    loss.sum().backward()
    assert torch.isfinite(loss).all() and torch.isfinite(score.grad).all()
    assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def test_rankings_become_pairs():
    pairs = ranking_pairs([2, 1, 2, 3])
    got = list(zip(pairs.chosen_P.tolist(), pairs.rejected_P.tolist(), pairs.tie_P.tolist(), strict=True))
    assert got == [(1, 0, False), (0, 2, True), (0, 3, False), (1, 2, False), (1, 3, False), (2, 3, False)]
    assert pairs.weight == pytest.approx(1 / 6)


def test_every_prompt_weighs_the_same_whatever_its_number_of_completions():
    for ranks in ([1, 2], [1, 2, 3, 4, 5]):
        pairs, scores = ranking_pairs(ranks), torch.zeros(len(ranks))
        loss = bradley_terry(scores[pairs.chosen_P], scores[pairs.rejected_P], tie_P=pairs.tie_P).sum() * pairs.weight
        assert loss.item() == pytest.approx(math.log(2))


@pytest.mark.parametrize("ranks", [[], [1]])
def test_one_completion_is_no_ranking(ranks):
    with pytest.raises(ValueError, match=f"ranks: got {len(ranks)} completions"):
        ranking_pairs(ranks)
