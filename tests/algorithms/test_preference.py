"""Preference methods: worked values, and what each must and must not feel."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from quatrain.algorithms import Outputs
from quatrain.algorithms.preference import Mismatched
from quatrain.batch import build
from tests.algorithms.offline import examples, gradients, group, make, numbered, open_learner, ready


def loss_of(method, samples, summed):
    """The loss where answer i has the log-probability summed[i], in equal parts on its tokens."""
    samples = method.prepare(samples)
    batch = build(samples)
    pieces = [torch.full((s.num_tokens,), summed[s.completion] / s.num_tokens, dtype=torch.float64) for s in samples]
    logprobs_N = torch.cat(pieces).requires_grad_()
    sums = method.loss(batch, Outputs(logprobs_N=logprobs_N, entropy_N=torch.ones(len(logprobs_N))))
    total = sum(term / method.denominators(samples)[name] for name, term in sums.terms.items())
    total.backward()
    return float(total.detach()), logprobs_N.grad, sums.statistics


def pair(reference=(-3.0, -4.0), rank=(0, 1), **values):
    """Answers of 2 and 3 tokens with summed reference log-probabilities."""
    samples = group(0, [5, 6], [[7, 8], [9, 10, 11]], rank=rank, **values)
    return numbered([s.with_streams(reference_logprobs=np.full(s.num_tokens, total / s.num_tokens))
                     for s, total in zip(samples, reference, strict=True)])  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"name": "dpo"}, 0.6209570478),
        ({"name": "dpo", "label_smoothing": 0.1}, 0.6359570478),
        ({"name": "dpo", "label_smoothing": 0.1, "robust": True}, 0.6022070478),
        ({"name": "ipo"}, 12.25),
        # averages: Delta = 1 / 2 - (-0.5) / 3
        ({"name": "ipo", "average_logprobs": True}, (1 / 2 + 0.5 / 3 - 5) ** 2),
    ],
)
def test_worked_values_with_a_reference(settings, wanted):
    """beta 0.1; logratios 1 and -0.5, so Delta = 1.5."""
    loss, _, found = loss_of(make(**settings), pair(), (-2.0, -4.5))
    assert loss == pytest.approx(wanted, rel=1e-9)
    averages = settings.get("average_logprobs", False)
    assert found["preference/margin"].value == pytest.approx(0.1 * (1 / 2 + 0.5 / 3) if averages else 0.15)
    assert found["preference/chosen_drift"].value == pytest.approx(1.0)
    assert found["preference/rejected_drift"].value == pytest.approx(-0.5)
    assert found["preference/accuracy"].value == 1.0 and found["preference/equal"].value == 0.0


def test_worked_orpo():
    """Mean log-probabilities ln .5 and ln .2: odds 1 and 1/4, -log sigmoid(ln 4) = ln 1.25."""
    loss, _, _ = loss_of(make(name="orpo"), pair(), (2 * math.log(0.5), 3 * math.log(0.2)))
    assert loss == pytest.approx(math.log(2) + 0.1 * math.log(1.25), rel=1e-12)


def test_worked_simpo():
    """Means -.5 and -1.5, beta 2, gamma 1: -log sigmoid(2 - 1)."""
    loss, gradient, found = loss_of(make(name="simpo"), pair(), (-1.0, -4.5))
    assert loss == pytest.approx(math.log1p(math.exp(-1)), rel=1e-12)
    slope = 2 / (1 + math.e)  # beta sigmoid(-1), shared by the tokens of a side
    wanted = torch.tensor([-slope / 2] * 2 + [slope / 3] * 3, dtype=torch.float64)
    torch.testing.assert_close(gradient, wanted, rtol=1e-10, atol=0)
    assert found["preference/chosen_reward"].value == pytest.approx(-1.0)


def test_worked_kto():
    """beta .1, z0 .5: a good answer of logratio 2 and a bad one of -1, weights 1 and 3."""
    method = make(name="kto", undesirable_weight=3.0)
    samples = [s.with_streams(desirable=np.full(s.num_tokens, good), z0=np.full(s.num_tokens, 0.5))
               for s, good in zip(pair(), (1.0, 0.0), strict=True)]  # fmt: skip
    loss, gradient, found = loss_of(method, samples, (-1.0, -5.0))
    good, bad = 1 / (1 + math.exp(0.15)), 1 / (1 + math.exp(0.15))  # beta (2 - .5), beta (.5 + 1)
    assert loss == pytest.approx((good + 3 * bad) / 2, rel=1e-12)
    slope = 0.1 * good * (1 - good) / 2
    torch.testing.assert_close(gradient, torch.tensor([-slope] * 2 + [3 * slope] * 3).double(), rtol=1e-7, atol=0)
    assert found["preference/z0"].value == 0.5 and found["preference/rejected_reward"].value == pytest.approx(-0.1)


@pytest.mark.parametrize("settings", [{"name": "dpo"}, {"name": "dpo", "label_smoothing": 0.2}], ids=str)
def test_identical_sides_give_ln_2_and_no_gradient(settings):
    """Through the real learner: the gradients of both sides cancel in every weight."""
    method = make(**settings)
    learner = open_learner(method, builder="padded")
    samples = ready(learner, method, numbered(group(0, [5, 6, 7], [[8, 9, 10]] * 2, rank=(0, 1))))
    found, metrics = gradients(learner, method, samples)
    assert metrics["train/loss"].value == pytest.approx(math.log(2), rel=1e-14)
    assert all(float(gradient.abs().max()) < 1e-13 for gradient in found.values())
    assert metrics["preference/equal"].value == 1.0 and "preference/accuracy" not in metrics


def test_at_the_start_all_is_equal_and_no_accuracy_is_claimed():
    """Policy = reference up to float32 rounding: ln 2, every pair equal."""
    samples = [s.with_streams(reference_logprobs=s.streams["reference_logprobs"] * (1 + 1e-7)) for s in pair()]
    batch = build(samples)
    logprobs_N = torch.tensor([-1.5] * 2 + [-4 / 3] * 3, dtype=torch.float32)
    found = make(name="dpo").loss(batch, Outputs(logprobs_N=logprobs_N, entropy_N=torch.ones(5))).statistics
    assert found["preference/equal"].value == 1.0 and "preference/accuracy" not in found


def test_a_tie_counts_half_each_way_in_dpo_and_not_at_all_elsewhere():
    tie = pair(rank=(0, 0))
    loss, _, found = loss_of(make(name="dpo"), tie, (-2.0, -4.5))
    assert loss == pytest.approx(-0.5 * (math.log(1 / (1 + math.exp(-0.15))) + math.log(1 / (1 + math.exp(0.15)))))
    assert not {name for name in found if "chosen" in name or "accuracy" in name}
    for name in ("ipo", "orpo", "simpo"):
        assert make(name=name).prepare(tie) == []
        both = numbered([*tie, *(replace(s, group=1) for s in pair())])
        alone = loss_of(make(name=name), pair(), (-2.0, -4.5))[0]
        assert loss_of(make(name=name), both, (-7.0, -1.0, -2.0, -4.5))[0] == pytest.approx(alone, rel=1e-12)


def test_a_confidence_is_the_probability_of_the_label():
    """p = .8 for one side is p = .2 for the other."""
    one, _, _ = loss_of(make(name="dpo"), pair(confidence=(0.8, 0.8)), (-2.0, -4.5))
    other, _, _ = loss_of(make(name="dpo"), pair(rank=(1, 0), confidence=(0.2, 0.2)), (-2.0, -4.5))
    assert one == pytest.approx(other, rel=1e-12) == pytest.approx(0.6209570478 + 0.2 * 0.15, rel=1e-8)


def test_a_ranking_counts_as_one_pair():
    """Three answers: the mean of their three comparisons, whatever else is in the update."""
    answers = [[7], [8], [9]]
    ranking = numbered([s.with_streams(reference_logprobs=np.zeros(1)) for s in group(0, [5], answers, rank=(0, 1, 2))])
    loss, _, _ = loss_of(make(name="dpo", beta=1.0), ranking, (3.0, 1.0, 0.0))
    wanted = [math.log1p(math.exp(-delta)) for delta in (2.0, 3.0, 1.0)]
    assert loss == pytest.approx(sum(wanted) / 3, rel=1e-12)


def test_a_tie_inside_a_ranking_counts_only_where_ties_do():
    """Ranks 0, 1, 1 and Deltas 2, 4 and, between the equals, 2; every comparison has a weight of 1/3."""
    answers = [[7], [8], [9]]
    ranking = numbered([s.with_streams(reference_logprobs=np.zeros(1)) for s in group(0, [5], answers, rank=(0, 1, 1))])
    loss, _, _ = loss_of(make(name="ipo", beta=0.5), ranking, (3.0, 1.0, -1.0))
    assert loss == pytest.approx(((2 - 1) ** 2 + (4 - 1) ** 2) / 3, rel=1e-12)
    loss, _, _ = loss_of(make(name="dpo", beta=1.0), ranking, (3.0, 1.0, -1.0))
    half = 0.5 * (math.log1p(math.exp(-2)) + math.log1p(math.exp(2)))
    assert loss == pytest.approx((math.log1p(math.exp(-2)) + math.log1p(math.exp(-4)) + half) / 3, rel=1e-12)


# --- KTO's baseline ---------------------------------------------------------------------------------------------------


def test_every_prompt_meets_an_answer_to_another_prompt_whatever_the_order():
    samples = numbered([s for n in range(4) for s in group(n, [5, n // 2 + 6], [[20 + n, 30 + n]], desirable=[1.0])])
    met = Mismatched().samples(samples)
    assert len(met) == 4 and all(one.num_tokens == 2 for one in met)
    for one in met:
        prompt, answer = one.token_ids[:2].tolist(), int(one.token_ids[2]) - 20
        assert prompt[1] != answer // 2 + 6  # samples 0 and 1 have one prompt, 2 and 3 another
    assert sorted(int(one.token_ids[1]) for one in met) == [6, 6, 7, 7]  # every prompt as often as it was there
    again = Mismatched().samples(numbered(samples[::-1]))
    assert [one.token_ids.tolist() for one in again] == [one.token_ids.tolist() for one in met]


def test_a_single_prompt_has_no_baseline():
    samples = numbered(group(0, [5, 6], [[7], [8]], desirable=[1.0, 0.0]))
    assert Mismatched().samples(samples) == []
    (first, second) = Mismatched().apply(samples, [])
    assert first.streams["z0"][0] == second.streams["z0"][0] == 0.0


def test_a_mismatched_answer_is_cut_at_the_longest_sample():
    long, short = list(range(10, 18)), [7]
    samples = numbered([*group(0, [5] * 8, [short], desirable=[1.0]), *group(1, [6], [long], desirable=[1.0])])
    met = sorted(Mismatched().samples(samples), key=lambda one: one.num_tokens)
    assert [len(one.token_ids) for one in met] == [9, 2] and [one.num_tokens for one in met] == [1, 1]


def test_z0_is_at_least_0_and_has_no_gradient():
    method = make(name="kto")
    for gap, wanted in ((2.0, 2.0), (-1.0, 0.0)):
        others = [s.with_streams(old_logprobs=np.full(s.num_tokens, gap / s.num_tokens),
                                 reference_logprobs=np.zeros(s.num_tokens)) for s in examples(method)]  # fmt: skip
        found = method.beside.apply(examples(method), others)
        assert [float(one.streams["z0"][0]) for one in found] == pytest.approx([wanted] * len(found))
