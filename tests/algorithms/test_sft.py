"""Supervised fine-tuning: worked values, transformers' own loss as a peer, and what packing may not change."""

import math

import numpy as np
import pytest
import torch

from quatrain.algorithms import Outputs
from quatrain.batch import build
from quatrain.types import Sample
from tests.algorithms.offline import examples, gradients, make, open_learner
from tests.algorithms.synthetic import make_sample
from tests.train.synthetic import exact_lm, nothing


@pytest.mark.parametrize(("aggregate", "wanted"), [("token", 3.5 / 3), ("sequence", (0.75 + 2.0) / 2)])
def test_worked_values(aggregate, wanted):
    """Two answers of -1, -.5 and -2 nats."""
    samples = [make_sample([5], [6, 7], 0), make_sample([5], [8], 1, group=1)]
    method, batch = make(name="sft", aggregate=aggregate), build(samples)
    logprobs_N = torch.tensor([-1.0, -0.5, -2.0], dtype=torch.float64)
    sums = method.loss(batch, Outputs(logprobs_N=logprobs_N, entropy_N=torch.ones(3)))
    assert float(sums.terms["sft"]) / method.denominators(samples)["sft"] == pytest.approx(wanted, rel=1e-12)
    assert sums.statistics["sft/nll"].value == pytest.approx(3.5 / 3)


def conversation() -> Sample:
    """prompt | answer | the user again | answer; the assistant's tokens alone are trained."""
    marks = [False] * 3 + [True] * 2 + [False] * 3 + [True] * 4
    return Sample(token_ids=np.arange(5, 17), trained=np.array(marks), group=0, completion=0, prompt_length=3)


def test_the_loss_is_that_of_transformers_on_the_assistant_s_tokens_alone():
    sample, lm = conversation(), exact_lm()
    learner = open_learner(make(name="sft"), lm)
    found, metrics = gradients(learner, make(name="sft"), [sample])
    ids = torch.tensor(sample.token_ids)[None]
    labels = torch.where(torch.tensor(sample.trained)[None], ids, -100)
    lm.module.zero_grad()
    logits = lm.module(input_ids=ids).logits[0, :-1]
    wanted = torch.nn.functional.cross_entropy(logits, labels[0, 1:], ignore_index=-100)
    wanted.backward()
    assert metrics["train/loss"].value == pytest.approx(float(wanted.detach()), rel=1e-12)
    assert metrics["train/tokens"].value == 6
    for name, parameter in lm.module.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-10, atol=1e-14)


def test_a_token_that_is_not_trained_teaches_nothing_as_a_target():
    """What the user says at the end changes no loss: nothing trained reads it."""
    whole = conversation()
    shorter = Sample(token_ids=whole.token_ids[:8], trained=whole.trained[:8], group=0, completion=0, prompt_length=3)
    other = Sample(token_ids=[*whole.token_ids[:5], 30, 31, 32], trained=whole.trained[:8], group=0, completion=0,
                   prompt_length=3)  # fmt: skip
    learner = open_learner(make(name="sft"))
    losses = [learner.measure([one], make(name="sft"), nothing)["loss"].value for one in (shorter, other)]
    assert losses[0] == losses[1]


def test_packing_equals_training_alone():
    """Neighbours in a row are not seen, and positions begin anew for each."""
    method = make(name="sft", aggregate="sequence")
    samples = examples(method)
    packed = open_learner(method, builder="packed", tokens_per_micro_batch=4096)
    lm = packed.roles["policy"].lm
    assert len(build(samples, "packed").input_ids) < len(samples)
    found, _ = gradients(packed, method, samples)
    alone = [gradients(open_learner(method, lm, builder="padded"), method, [sample])[0] for sample in samples]
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, sum(each[name] for each in alone) / len(alone), rtol=1e-10, atol=1e-13)


def test_the_two_aggregates_differ_by_length_alone():
    """Of equal lengths both are the mean; a long answer counts for more by token."""
    samples = examples(make(name="sft"))
    learner = open_learner(make(name="sft"))
    nll = [learner.measure([one], make(name="sft"), nothing)["loss"].value for one in samples]
    counts = [one.num_tokens for one in samples]
    by_token = learner.measure(samples, make(name="sft"), nothing)["loss"].value
    by_example = learner.measure(samples, make(name="sft", aggregate="sequence"), nothing)["loss"].value
    assert by_token == pytest.approx(
        math.fsum(n * c for n, c in zip(nll, counts, strict=True)) / sum(counts), rel=1e-12
    )
    assert by_example == pytest.approx(sum(nll) / len(nll), rel=1e-12)
