"""Through a real transformer: loss and gradient do not depend on layout, split, order or padding."""

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from quatrain.algorithms import Outputs
from quatrain.batch import build, split_by_tokens
from quatrain.ops.logprobs import entropy, full_kl, gather_logprobs
from quatrain.types import Sample
from tests.algorithms.synthetic import algorithm, random_groups, total_loss

VOCABULARY, TEMPERATURE = 17, 0.8
SETTINGS = {
    "grpo": {},
    "everything": {"kl": {"estimator": "full"}, "entropy_coefficient": 0.01, "aggregate": "token", "dual_clip": 3.0},
    "gspo": {"preset": "gspo", "clip_low": 0.2, "clip_high": 0.2},
    "rloo": {"preset": "rloo"},
    "cispo": {"preset": "cispo", "mismatch": {"truncate": 2.0}},
    "reinforce_pp": {"preset": "reinforce_pp"},
    "dr_grpo": {"preset": "dr_grpo"},
}


def tiny_model(dtype: torch.dtype, seed: int = 0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.4, attn_implementation="sdpa",
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    # transformers' own norm works in float32 whatever the model's dtype, which hides differences below 1e-7
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, LlamaRMSNorm):
                setattr(parent, name, torch.nn.RMSNorm(child.weight.shape, eps=child.variance_epsilon))
    return model.to(dtype).eval()


@pytest.fixture(scope="module", params=[torch.float64, torch.float32], ids=["float64", "float32"])
def models(request):
    return tiny_model(request.param), tiny_model(request.param, seed=1)


def logits(model, batch):
    """Logits of the N trained tokens, the head applied to no other position."""
    allowed = batch.attention_mask()
    mask = torch.zeros(allowed.shape, dtype=model.dtype).masked_fill(~allowed, -torch.inf)
    states = model.model(
        input_ids=batch.input_ids, position_ids=batch.position_ids, attention_mask=mask, use_cache=False
    )
    return model.lm_head(states.last_hidden_state.flatten(0, 1)[batch.logit_index_N])


def forward_with(model, reference):
    def forward(batch):
        logits_NV = logits(model, batch)
        with torch.no_grad():
            reference_NV = logits(reference, batch)
        return Outputs(
            logprobs_N=gather_logprobs(logits_NV, batch.target_N, TEMPERATURE),
            entropy_N=entropy(logits_NV, TEMPERATURE),
            full_kl_N=full_kl(logits_NV, reference_NV, TEMPERATURE),
        )

    return forward


def update(model, forward, method, samples, builder="padded", micro_batches=None):
    model.zero_grad()
    loss, _ = total_loss(method, samples, forward, builder, micro_batches)
    loss.backward()
    return loss.item(), torch.cat([p.grad.flatten() for p in model.parameters()])


def close(got, wanted, dtype):
    rtol = 1e-10 if dtype == torch.float64 else 1e-4
    scale = wanted[1].abs().max().item()
    assert got[0] == pytest.approx(wanted[0], rel=rtol, abs=rtol * 0.1)
    torch.testing.assert_close(got[1], wanted[1], rtol=rtol, atol=rtol * scale)


def own_streams(model, reference, samples: list[Sample]) -> list[Sample]:
    """Old and sampler logprobs near the model's own, as after an update."""
    rng = np.random.default_rng(2)
    result = []
    with torch.no_grad():
        for sample in samples:
            batch = build([sample])
            own = gather_logprobs(logits(model, batch), batch.target_N, TEMPERATURE).double().numpy()
            far = gather_logprobs(logits(reference, batch), batch.target_N, TEMPERATURE).double().numpy()
            old = own + rng.normal(0, 0.2, len(own))
            result.append(sample.with_streams(old_logprobs=old, sampler_logprobs=old + 0.1, reference_logprobs=far))
    return result


@pytest.mark.parametrize("name", SETTINGS)
def test_invariant_to_layout_split_and_order(models, name):
    model, reference = models
    method = algorithm(**SETTINGS[name])
    samples = own_streams(model, reference, method.credit(random_groups(vocabulary=VOCABULARY))[0])
    forward = forward_with(model, reference)
    one_by_one = update(model, forward, method, samples, "padded", [[sample] for sample in samples])
    assert one_by_one[1].abs().max() > 1e-3
    shuffled = [samples[i] for i in np.random.default_rng(0).permutation(len(samples))]
    for builder in ("padded", "packed", "shared"):
        close(update(model, forward, method, shuffled, builder), one_by_one, model.dtype)
        split = split_by_tokens(shuffled, 40, builder)
        assert len(split) > 1
        close(update(model, forward, method, shuffled, builder, split), one_by_one, model.dtype)


def test_samples_that_do_not_contribute_can_be_left_out(models):
    model, reference = models
    method = algorithm(kl={"placement": "none"})
    samples, _ = method.credit(random_groups(vocabulary=VOCABULARY))
    forward = forward_with(model, reference)
    whole = update(model, forward, method, samples)
    needed = [sample for sample in samples if method.contributes(sample)]
    assert 0 < len(needed) < len(samples)
    close(update(model, forward, method, samples, micro_batches=[needed]), whole, model.dtype)


def test_the_padding_token_does_not_matter(models):
    model, reference = models
    method = algorithm()
    samples = own_streams(model, reference, method.credit(random_groups(vocabulary=VOCABULARY))[0])

    def refilled(batch):
        ids = torch.where(batch.segment_BT == 0, 13, batch.input_ids)
        return forward_with(model, reference)(
            type(batch)(**{f: getattr(batch, f) for f in batch.__slots__} | {"input_ids": ids})
        )

    close(
        update(model, refilled, method, samples),
        update(model, forward_with(model, reference), method, samples),
        model.dtype,
    )


def test_an_update_lowers_its_own_loss(models):
    """The sign: a small step against the gradient raises the probability of what was good."""
    model, reference = models
    method = algorithm(kl={"placement": "none"})
    samples = own_streams(model, reference, method.credit(random_groups(vocabulary=VOCABULARY))[0])
    best = max(samples, key=lambda sample: sample.streams["advantages"].max())
    forward = forward_with(model, reference)
    before, gradient = update(model, forward, method, samples)
    batch = build([best])
    with torch.no_grad():
        own = gather_logprobs(logits(model, batch), batch.target_N).sum().item()
        saved = [p.clone() for p in model.parameters()]
        step = 1e-3 / gradient.norm()
        for p in model.parameters():
            p -= step * p.grad
        after = total_loss(method, samples, forward)[0].item()
        raised = gather_logprobs(logits(model, batch), batch.target_N).sum().item()
        for p, value in zip(model.parameters(), saved, strict=True):
            p.copy_(value)
    assert after < before
    assert raised > own
