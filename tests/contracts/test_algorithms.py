"""What every registered algorithm must satisfy, under every preset of its own."""

import fnmatch

import numpy as np
import pytest
import torch

import quatrain.algorithms.grpo
import quatrain.algorithms.ppo
from quatrain.algorithms import ALGORITHMS
from quatrain.batch import build
from quatrain.config import PRESETS, AlgorithmConfig
from tests.algorithms.synthetic import direct_forward, key, leaves, random_groups, total_loss, with_values

GROUP_RELATIVE = {
    "entropy": {"entropy_coefficient": 0.02, "kl": {"estimator": "full"}},
    "corrected": {"mismatch": {"truncate": 2.0, "mask_below": 0.2}, "dual_clip": 3.0, "truncated": "mask"},
    "weighted_kl": {"kl": {"estimator": "k1", "ratio_weighted": True}, "aggregate": "token"},
    "exact_reward": {"kl": {"placement": "reward", "estimator": "full"}, "parts": "normalised"},
    "gspo_reward": {"preset": "gspo", "kl": {"placement": "reward", "estimator": "k1"}},
    "cispo_sequence_sum": {"preset": "cispo", "ratio": "sequence_sum"},
    "batch_scale": {"scale": "batch", "std": "sample", "kl": {"placement": "score", "estimator": "abs"}},
}
ACTOR_CRITIC = {
    "shared": {"critic": {"model": "shared"}, "truncated": "bootstrap"},
    "entropy": {"entropy_coefficient": 0.02, "kl": {"placement": "loss", "estimator": "full"}},
    "corrected": {"mismatch": {"truncate": 2.0, "mask_below": 0.2}, "dual_clip": 3.0, "truncated": "mask"},
    "weighted_kl": {"kl": {"placement": "loss", "estimator": "k1", "ratio_weighted": True}, "aggregate": "sequence"},
    "exact_reward": {"kl": {"estimator": "full", "target": None}, "aggregate": "constant"},
    "normalised": {"reward": {"normalise": "running", "clip": 1.0}, "truncated": "penalise"},
    "unwhitened": {"critic": {"whiten": False, "gamma": 0.9, "gae_lambda": 0.5, "value_clip": None}},
    "shared_with_everything": {"critic": {"model": "shared"}, "entropy_coefficient": 0.02,
                               "kl": {"placement": "loss", "estimator": "k3"}},
}  # fmt: skip
EXTRA = {"grpo": GROUP_RELATIVE, "ppo": {name: {"preset": "ppo", **own} for name, own in ACTOR_CRITIC.items()}}
SETTINGS = {
    name: {**{key: {"preset": key} for key, own in sorted(PRESETS.items()) if own.get("name", "grpo") == name},
           **EXTRA.get(name, {})} or {name: {"name": name}}
    for name in ALGORITHMS.names()
}  # fmt: skip
EVERY = pytest.mark.parametrize(
    ("name", "settings"), [pytest.param(n, s, id=f"{n}-{k}") for n in SETTINGS for k, s in SETTINGS[n].items()]
)


def make(name, settings, **changes):
    return ALGORITHMS.get(name)(AlgorithmConfig.model_validate({**settings, **changes}), max_tokens=8)


def groups_for(method):
    """Groups that have the streams of a critic where the method asks for them."""
    return with_values(random_groups()) if "values" in method.needs.streams else random_groups()


def credited(method):
    """Samples as an update takes them, and the statistics of credit."""
    samples, statistics = method.credit(groups_for(method))
    return method.prepare(samples), statistics


def silenced(sample):
    """The sample with nothing to learn from: no advantage, no other term, no value."""
    names = {"advantages", "active"} | ({"valued"} & sample.streams.keys())
    return sample.with_streams(**dict.fromkeys(names, np.zeros(sample.num_tokens)))


def gradients(method, samples, rows):
    loss, statistics = total_loss(method, samples, direct_forward(rows))
    for row in rows.values():
        row.grad = None
    loss.backward()
    return {key: row.grad.clone() for key, row in rows.items() if row.grad is not None}, statistics


@EVERY
def test_zero_advantage_has_no_policy_gradient(name, settings):
    method = make(name, settings)
    samples, _ = credited(method)
    silent = method.prepare([silenced(sample) for sample in samples])
    assert not any(method.contributes(sample) for sample in silent)
    found, _ = gradients(method, silent, leaves(silent))
    assert all((gradient == 0).all() for gradient in found.values())


@EVERY
def test_what_does_not_contribute_has_no_gradient(name, settings):
    method = make(name, settings)
    samples, _ = credited(method)
    found, _ = gradients(method, samples, leaves(samples, shift=0.01))
    for sample in samples:
        if not method.contributes(sample):
            assert (found[key(sample)] == 0).all()
    assert any(method.contributes(sample) for sample in samples)


@EVERY
def test_first_on_policy_step_is_reinforce(name, settings):
    """d loss / d logp_t = -A_t w_t / denominator, w_t the aggregate's weight of a token."""
    method = make(name, {**settings, "entropy_coefficient": 0.0, "mismatch": {}})
    samples, _ = credited(method)
    samples = [s.with_streams(sampler_logprobs=s.streams["old_logprobs"]) for s in samples]
    rows = leaves(samples, shift=0.0)
    batch = build(samples)
    sums = method.loss(batch, direct_forward(rows)(batch))
    denominator = method.denominators(samples)["policy"]
    (sums.terms["policy"] / denominator).backward()
    completions = len({s.completion for s in samples})
    count = sum(s.num_tokens for s in samples) if method.config.aggregate == "token" else completions
    for sample in samples:
        tokens = sample.streams["completion_tokens"][0]
        weight = {"sequence": 1 / tokens, "constant": 1 / 8}.get(method.config.aggregate, 1.0)
        wanted = torch.tensor(-sample.streams["advantages"] * weight / count)
        torch.testing.assert_close(rows[key(sample)].grad, wanted, rtol=1e-10, atol=1e-14)


@EVERY
def test_gradient_against_finite_differences(name, settings):
    """Central differences, h = 1e-6. What is a constant by definition is held: the detached cap's weight (old moves
    along with logp), and a sequence ratio where advantages differ inside the sequence (they are made equal)."""
    method = make(name, settings)
    samples, _ = credited(method)
    if method.config.ratio != "token":
        samples = [s.with_streams(advantages=np.full(s.num_tokens, s.streams["advantages"][0])) for s in samples]
    held = method.config.clip == "detached_cap"
    rows = leaves(samples)
    found, _ = gradients(method, samples, rows)
    rng = np.random.default_rng(1)
    for index in rng.choice(len(samples), 5, replace=False):
        sample, position = samples[index], int(rng.integers(samples[index].num_tokens))
        values = []
        for h in (1e-6, -1e-6):
            moved = {k: v.detach().clone() for k, v in rows.items()}
            moved[key(sample)][position] += h
            shifted = list(samples)
            if held:
                old = sample.streams["old_logprobs"].copy()
                old[position] += h
                shifted[index] = sample.with_streams(old_logprobs=old, sampler_logprobs=old)
            values.append(total_loss(method, shifted, direct_forward(moved))[0].item())
        numeric = (values[0] - values[1]) / 2e-6
        assert found[key(sample)][position].item() == pytest.approx(numeric, rel=1e-6, abs=1e-9)


@EVERY
def test_invariant_to_order_builder_and_micro_batches(name, settings):
    method = make(name, settings)
    whole, _ = method.credit(groups_for(method))
    samples = method.prepare(whole)
    rows = leaves(samples)
    wanted, reference = gradients(method, samples, rows)
    shuffled = method.prepare([whole[i] for i in np.random.default_rng(3).permutation(len(whole))])
    for builder in ("padded", "packed", "shared"):
        for parts in (1, 3, len(samples)):
            micro = [shuffled[start::parts] for start in range(parts)]
            for row in rows.values():
                row.grad = None
            loss, statistics = total_loss(method, shuffled, direct_forward(rows), builder, micro)
            loss.backward()
            for found, row in zip(wanted.values(), rows.values(), strict=True):
                torch.testing.assert_close(row.grad, found, rtol=1e-10, atol=1e-13)
            assert {k: m.value for k, m in statistics.items()} == pytest.approx(
                {k: m.value for k, m in reference.items()}, rel=1e-10, nan_ok=True
            )


@EVERY
def test_order_of_groups_does_not_change_credit(name, settings):
    method = make(name, settings)
    groups = groups_for(method)
    forward, _ = method.credit(groups)
    backward, _ = method.credit(groups[::-1])
    other = {key(sample): sample for sample in backward}
    for sample in forward:
        np.testing.assert_allclose(sample.streams["advantages"], other[key(sample)].streams["advantages"], rtol=1e-12)


@EVERY
def test_inputs_are_not_changed(name, settings):
    method = make(name, settings)
    groups = groups_for(method)
    before = [{n: v.copy() for n, v in s.streams.items()} for g in groups for c in g.samples for s in c]
    credited_samples, _ = method.credit(groups)
    kept = [{n: v.copy() for n, v in s.streams.items()} for s in credited_samples]
    samples = method.prepare(credited_samples)
    assert all((s.streams[n] == v).all() for s, own in zip(credited_samples, kept, strict=True) for n, v in own.items())
    rows = leaves(samples)
    copies = {k: v.detach().clone() for k, v in rows.items()}
    batch = build(samples)
    streams = {n: v.clone() for n, v in batch.streams.items()}
    method.loss(batch, direct_forward(rows)(batch))
    after = [s.streams for g in groups for c in g.samples for s in c]
    assert all(
        a.keys() == b.keys() and all((a[n] == b[n]).all() for n in a) for a, b in zip(before, after, strict=True)
    )
    assert all((batch.streams[n] == v).all() for n, v in streams.items())
    assert all((rows[k] == v).all() for k, v in copies.items())


@EVERY
def test_every_statistic_is_documented(name, settings):
    method = make(name, settings)
    samples, from_credit = credited(method)
    _, from_loss = gradients(method, samples, leaves(samples))
    found = {**from_credit, **from_loss, **method.finish_step(samples)}
    if method.critic is not None:
        found |= method.critic.loss(build(samples), direct_forward(leaves(samples))(build(samples))).statistics
    documented = quatrain.algorithms.grpo.DOCUMENTED | quatrain.algorithms.ppo.DOCUMENTED
    unknown = [n for n in found if not any(fnmatch.fnmatchcase(n, pattern) for pattern in documented)]
    assert unknown == []
    assert all(text.endswith(".") for text in documented.values())


@EVERY
def test_terms_and_denominators_have_the_same_names(name, settings):
    method = make(name, settings)
    samples, _ = credited(method)
    batch = build(samples)
    terms = method.loss(batch, direct_forward(leaves(samples))(batch)).terms
    assert terms.keys() == method.denominators(samples).keys()
    assert method.denominators([]).keys() == terms.keys()
    assert all(value > 0 for value in method.denominators([]).values())


@EVERY
def test_float32_agrees_with_float64(name, settings):
    method = make(name, settings)
    samples, _ = credited(method)
    rows = leaves(samples)
    wanted, _ = gradients(method, samples, rows)
    narrow = {k: v.detach().float().requires_grad_() for k, v in rows.items()}
    found, _ = gradients(method, samples, narrow)
    for k, gradient in wanted.items():
        assert found[k].dtype == torch.float32
        torch.testing.assert_close(found[k].double(), gradient, rtol=1e-4, atol=1e-6)
