"""Reward models: worked values, constants that change nothing, ties, margins, confidences, rankings and heads."""

import math

import numpy as np
import pytest
import torch

from quatrain.algorithms import Outputs
from quatrain.batch import build
from tests.algorithms.offline import exact_scalar_lm, examples, gradients, group, make, numbered, open_learner
from tests.train.synthetic import nothing


def loss_of(samples, scores, **settings):
    """The loss where sample i has scores[i] (a number, or one per head); the gradient of each."""
    method = make(name="reward_model", **settings)
    samples = method.prepare(samples)
    places = [sample.completion for sample in samples]
    values_NK = torch.tensor(scores, dtype=torch.float64).reshape(len(scores), -1)[places].requires_grad_()
    sums = method.loss(
        build(samples), Outputs(logprobs_N=torch.zeros(0), entropy_N=torch.zeros(0), values_NK=values_NK)
    )
    total = sum(term / method.denominators(samples)[name] for name, term in sums.terms.items())
    total.backward()
    return float(total.detach()), values_NK.grad, sums.statistics


def pairs(ranks=((0, 1), (0, 1)), **values):
    """Two pairs; `values` per pair."""
    made = []
    for n, rank in enumerate(ranks):
        own = {name: (value[n],) * 2 for name, value in values.items()}
        made += group(n, [5], [[6], [7]], scores=True, rank=rank, **own)
    return numbered(made)


SCORES = [1.0, 0.5, 0.2, 0.4]


@pytest.mark.parametrize(
    ("settings", "values", "wanted"),
    [
        ({}, {}, 0.6361079268),
        ({}, {"margin": (0.1, 0.3)}, 0.7435461183),
        ({"centering": 0.01}, {}, 0.6491579268),
        ({"centering": 0.01}, {"margin": (0.1, 0.3)}, 0.7565961183),
    ],
)
def test_worked_values(settings, values, wanted):
    loss, _, found = loss_of(pairs(**values), SCORES, **settings)
    assert loss == pytest.approx(wanted, rel=1e-9)
    assert found["reward_model/margin"].value == pytest.approx(0.15) and found["reward_model/accuracy"].value == 0.5


@pytest.mark.parametrize("values", [{}, {"margin": (0.1, 0.3)}, {"confidence": (0.7, 1.0)}], ids=str)
def test_a_constant_changes_nothing_without_centering(values):
    samples = pairs(ranks=((0, 1), (0, 0)), **values)
    moved = [score + 7.5 for score in SCORES]
    loss, gradient, _ = loss_of(samples, SCORES)
    other, same, _ = loss_of(samples, moved)
    assert loss == pytest.approx(other, rel=1e-12)
    torch.testing.assert_close(gradient, same, rtol=1e-10, atol=1e-14)
    assert loss_of(samples, moved, centering=0.01)[0] > loss_of(samples, SCORES, centering=0.01)[0] + 1


def test_ties_half_pull_the_scores_together_and_discarded_ones_do_nothing():
    samples = pairs(ranks=((0, 0), (0, 1)))
    loss, gradient, found = loss_of(samples, SCORES)
    half = -0.5 * (math.log(1 / (1 + math.exp(-0.5))) + math.log(1 / (1 + math.exp(0.5))))
    assert loss == pytest.approx((half + math.log1p(math.exp(0.2))) / 2, rel=1e-12)
    assert gradient[0] > 0 > gradient[1]  # the higher score of a tie is pushed down
    assert found["reward_model/ties"].value == 0.5 and found["reward_model/margin"].value == pytest.approx(-0.2)
    discarded, _, found = loss_of(samples, SCORES, ties="discard")
    assert discarded == pytest.approx(math.log1p(math.exp(0.2)), rel=1e-12) and found["reward_model/ties"].value == 0


def test_a_tie_inside_a_ranking_is_discarded_but_keeps_its_share():
    """Ranks 0, 1, 1: two comparisons and a tie; every one of the three has a weight of 1/3."""
    ranking = numbered(group(0, [5], [[6], [7], [8]], scores=True, rank=(0, 1, 1)))
    scores = [1.0, 0.0, 3.0]
    decided = math.log1p(math.exp(-1.0)) + math.log1p(math.exp(2.0))
    half = -0.5 * (math.log(1 / (1 + math.exp(-3))) + math.log(1 / (1 + math.exp(3))))
    assert loss_of(ranking, scores, ties="discard")[0] == pytest.approx(decided / 3, rel=1e-12)
    assert loss_of(ranking, scores)[0] == pytest.approx((decided + half) / 3, rel=1e-12)


def test_a_ranking_counts_as_one_pair():
    """All comparisons of K answers by 1 / (K choose 2), beside a pair."""
    made = numbered([*group(0, [5], [[6], [7], [8], [9]], scores=True, rank=(0, 1, 2, 3)),
                     *group(1, [5], [[6], [7]], scores=True, rank=(0, 1))])  # fmt: skip
    scores = [3.0, 2.0, 1.0, 0.0, 1.0, 0.5]
    six = [math.log1p(math.exp(-gap)) for gap in (1, 2, 3, 1, 2, 1)]
    assert loss_of(made, scores)[0] == pytest.approx((sum(six) / 6 + math.log1p(math.exp(-0.5))) / 2, rel=1e-12)


def test_a_confidence_is_a_soft_label():
    """p = .7: the loss is least where sigmoid(d) = .7."""
    best = math.log(0.7 / 0.3)
    made = pairs(confidence=(0.7, 0.7))
    _, gradient, _ = loss_of(made, [best, 0.0, 2 * best, best])
    assert gradient.abs().max() < 1e-12
    assert loss_of(made, SCORES)[0] == pytest.approx(
        sum(-0.7 * math.log(1 / (1 + math.exp(-d))) - 0.3 * math.log(1 / (1 + math.exp(d))) for d in (0.5, -0.2)) / 2
    )


def test_a_row_trains_the_head_that_it_names():
    made = pairs(head=(0.0, 1.0))
    heads = [[1.0, 9.0], [0.5, -9.0], [4.0, 0.2], [-4.0, 0.4]]
    loss, gradient, _ = loss_of(made, heads, attributes={"helpful": 1.0, "brief": 3.0})
    assert loss == pytest.approx(0.6361079268, rel=1e-9)  # the weights make one score of them later
    assert gradient[:2, 1].abs().max() == gradient[2:, 0].abs().max() == 0 and gradient.abs().max() > 0.1


def test_the_score_is_read_at_the_last_real_token():
    """What the learner compares is what transformers says of the text without the token behind it."""
    method, lm = make(name="reward_model"), exact_scalar_lm()
    samples = numbered(group(0, [5, 6, 7], [[8, 9, 10], [11]], scores=True, rank=(0, 1)))
    texts = ([5, 6, 7, 8, 9, 10], [5, 6, 7, 11])
    with torch.no_grad():
        alone = [float(lm.module(input_ids=torch.tensor([ids])).logits[0, 0]) for ids in texts]
    for builder in ("padded", "packed", "shared"):
        learner = open_learner(method, lm, builder=builder)
        found = learner.measure(samples, method, nothing)
        assert found["reward_model/chosen"].value == pytest.approx(alone[0], rel=1e-10)
        assert found["reward_model/rejected"].value == pytest.approx(alone[1], rel=1e-10)


def test_an_update_of_ties_alone_is_no_update():
    method = make(name="reward_model", ties="discard")
    learner = open_learner(method)
    found, metrics = gradients(learner, method, pairs(ranks=((0, 0), (0, 0))))
    assert not found and metrics.keys() == {"train/updates_skipped"}


def test_a_model_without_scores_is_an_error():
    batch = build(pairs())
    with pytest.raises(ValueError, match="values_NK: got none"):
        make(name="reward_model").loss(batch, Outputs(logprobs_N=torch.zeros(0), entropy_N=torch.zeros(0)))


def test_labels_that_contradict_each_other_teach_nothing():
    """The same comparison both ways: the scores are pulled together."""
    method = make(name="reward_model")
    made = numbered([*group(0, [5, 6], [[7, 8], [9]], scores=True, rank=(0, 1)),
                     *group(1, [5, 6], [[7, 8], [9]], scores=True, rank=(1, 0))])  # fmt: skip
    learner = open_learner(method, exact_scalar_lm(seed=4))
    _, metrics = gradients(learner, method, made)
    assert metrics["train/loss"].value > math.log(2) and metrics["reward_model/margin"].value == pytest.approx(
        0, abs=1e-12
    )
    assert metrics["reward_model/accuracy"].value == 0.5


def test_every_example_is_scored_once():
    method = make(name="reward_model")
    assert sum(sample.num_tokens for sample in examples(method)) == len(examples(method))
    assert all(np.flatnonzero(sample.trained)[0] == len(sample.token_ids) - 1 for sample in examples(method))
