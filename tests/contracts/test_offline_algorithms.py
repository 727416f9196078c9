"""What every registered offline algorithm must satisfy, through the real learner on a tiny float64 model."""

import numpy as np
import pytest
import torch

from quatrain.algorithms import OFFLINE_ALGORITHMS, preference, reward_model, sft
from quatrain.batch import build
from tests.algorithms.offline import SETTINGS, exact_scalar_lm, examples, gradients, make, numbered, open_learner, ready
from tests.tiny import tiny_lm
from tests.train.synthetic import exact_lm, nothing

DOCUMENTED = {**sft.DOCUMENTED, **preference.DOCUMENTED, **reward_model.DOCUMENTED}
EVERY = pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)


def test_every_registered_algorithm_is_here():
    assert {settings["name"] for settings in SETTINGS.values()} == set(OFFLINE_ALGORITHMS.names())


@EVERY
def test_invariant_to_micro_batches_builder_padding_and_order(settings):
    """The loss, every gradient and every statistic; KTO's z0, which is made anew for every order, included."""
    method = make(**settings)
    learner = open_learner(method, tokens_per_micro_batch=4096, builder="padded")
    lm, samples = learner.roles[method.role].lm, examples(method)
    wanted, reference = gradients(learner, method, ready(learner, method, samples))
    shuffled = numbered([samples[place] for place in np.random.default_rng(3).permutation(len(samples))])
    told = set(reference) - {"train/micro_batches"}
    for builder, budget in (("padded", 1), ("packed", 40), ("packed", 4096), ("shared", 4096), ("shared", 40)):
        other = open_learner(method, lm, tokens_per_micro_batch=budget, builder=builder)
        found, metrics = gradients(other, method, ready(other, method, shuffled))
        assert found.keys() == wanted.keys()
        for name, gradient in wanted.items():
            torch.testing.assert_close(found[name], gradient, rtol=1e-10, atol=1e-12)
        values = {name: reference[name].value for name in told}
        assert {name: metrics[name].value for name in told} == pytest.approx(values, rel=1e-10, abs=1e-12)
    assert max(float(gradient.abs().max()) for gradient in wanted.values()) > 1e-4


@EVERY
def test_gradient_against_finite_differences(settings):
    """Central differences of the whole loss, h = 1e-6, in the largest entry of three weights."""
    method = make(**settings)
    learner = open_learner(method)
    samples = ready(learner, method, examples(method))
    found, metrics = gradients(learner, method, samples)
    assert learner.measure(samples, method, nothing)["loss"].value == pytest.approx(
        metrics["train/loss"].value, rel=1e-12
    )
    trainable = learner.roles[method.role].trainable
    names = ["model.embed_tokens.weight", "model.layers.1.mlp.down_proj.weight",
             "score.weight" if method.role == "reward" else "model.layers.0.self_attn.v_proj.weight"]  # fmt: skip
    for name in names:
        place = np.unravel_index(int(found[name].abs().argmax()), found[name].shape)
        values = []
        for h in (1e-6, -1e-6):
            with torch.no_grad():
                trainable[name][place] += h
            values.append(learner.measure(samples, method, nothing)["loss"].value)
            with torch.no_grad():
                trainable[name][place] -= h
        assert float(found[name][place]) == pytest.approx((values[0] - values[1]) / 2e-6, rel=1e-5)


@EVERY
def test_a_comparison_is_never_split(settings):
    method = make(**settings)
    if not method.needs.whole_groups:
        pytest.skip("nothing is compared")
    for builder in ("padded", "packed", "shared"):
        learner = open_learner(method, tokens_per_micro_batch=1, builder=builder)
        micro_batches = learner._split(examples(method), whole_groups=True)
        groups = [{sample.group for sample in micro} for micro in micro_batches]
        assert sum(map(len, groups)) == len(set().union(*groups)) == 5


@EVERY
def test_evaluation_moves_nothing_and_inputs_are_not_changed(settings):
    method = make(**settings)
    learner = open_learner(method)
    samples = ready(learner, method, examples(method))
    before = [{name: values.copy() for name, values in sample.streams.items()} for sample in samples]
    weights = {name: p.detach().clone() for name, p in learner.roles[method.role].trainable.items()}
    learner.measure(samples, method, nothing)
    assert all(torch.equal(p, weights[name]) for name, p in learner.roles[method.role].trainable.items())
    assert all(p.grad is None for p in learner.roles[method.role].trainable.values())
    for one, streams in zip(samples, before, strict=True):
        assert one.streams.keys() == streams.keys()
        assert all((one.streams[name] == values).all() for name, values in streams.items())


@EVERY
def test_every_statistic_is_documented(settings):
    method = make(**settings)
    learner = open_learner(method)
    samples = method.prepare(ready(learner, method, examples(method)))
    sums = learner._sums(samples, method)
    assert set(sums.statistics) - {"policy/entropy"} <= set(DOCUMENTED)
    assert all(text.endswith(".") for text in DOCUMENTED.values())


@EVERY
def test_terms_and_denominators_have_the_same_names(settings):
    method = make(**settings)
    learner = open_learner(method)
    samples = method.prepare(ready(learner, method, examples(method)))
    terms = learner._sums(samples, method).terms
    assert terms.keys() == method.denominators(samples).keys()
    assert all(value > 0 for value in method.denominators(samples).values())
    assert all(method.contributes(sample) for sample in samples)


@EVERY
def test_float32_agrees_with_float64(settings):
    method = make(**settings)
    exact = open_learner(method)
    samples = ready(exact, method, examples(method))
    wanted, _ = gradients(exact, method, samples)
    narrow = (
        exact_scalar_lm(len(getattr(method.config, "attributes", {})) or 1) if method.role == "reward" else tiny_lm()
    )
    if method.role == "reward":
        narrow.module.float()
    found, _ = gradients(open_learner(method, narrow), method, samples)
    size = max(float(gradient.abs().max()) for gradient in wanted.values())
    for name, gradient in wanted.items():
        assert found[name].dtype == torch.float32
        torch.testing.assert_close(found[name].double(), gradient, rtol=1e-3, atol=1e-4 * size)


def test_the_batches_hold_what_the_losses_read():
    """A stream that only some samples have is not in the batch, so nothing may rely on it there."""
    samples = examples(make(name="dpo"))
    batch = build([samples[0].with_streams(extra=np.zeros(samples[0].num_tokens)), *samples[1:]])
    assert "extra" not in batch.streams and len(batch.samples) == len(samples)


def test_exact_models_are_float64_throughout():
    for lm in (exact_lm(), exact_scalar_lm(2)):
        assert {p.dtype for p in lm.module.parameters()} == {torch.float64}
