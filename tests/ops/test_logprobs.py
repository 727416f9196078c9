"""Log-probabilities, entropy and exact KL from logits."""

import math

import pytest
import torch

from quatrain.ops import logprobs
from quatrain.ops.logprobs import entropy, full_kl, gather_logprobs


def test_c46_temperature_is_applied():
    logits, targets = torch.tensor([[2.0, 1.0, 0.0]] * 3), torch.arange(3)
    assert gather_logprobs(logits, targets, 0.5).tolist() == pytest.approx([-0.1429, -2.1429, -4.1429], abs=1e-4)
    assert gather_logprobs(logits, targets)[0].item() == pytest.approx(-0.4076, abs=1e-4)


def test_uniform_entropy_and_a_worked_kl():
    assert entropy(torch.zeros(1, 8)).item() == pytest.approx(math.log(8), abs=1e-6)
    p, q = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.25, 0.75]]).log()
    assert full_kl(p, q).item() == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3), abs=1e-6)
    # at T = 0.5 the probabilities are squared and normalised: q = (1/10, 9/10)
    assert full_kl(p, q, 0.5).item() == pytest.approx(0.5 * math.log(5) + 0.5 * math.log(5 / 9), abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_raised(dtype):
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(0)).mul(5).to(dtype)
    targets = torch.tensor([0, 3, 7, 49])
    got = gather_logprobs(logits, targets, 0.7)
    assert got.dtype == torch.float32
    wanted = (logits.double() / 0.7).log_softmax(1).gather(1, targets[:, None])[:, 0]
    torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-5)


def test_gradients_by_finite_differences():
    generator = torch.Generator().manual_seed(1)
    z = torch.randn(3, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    q = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    targets = torch.tensor([0, 4, 2])
    assert torch.autograd.gradcheck(lambda x: gather_logprobs(x, targets, 0.6), z)
    assert torch.autograd.gradcheck(lambda x: entropy(x, 0.6), z)
    assert torch.autograd.gradcheck(lambda x: full_kl(x, q, 0.6), z)


def test_chunks_change_nothing(monkeypatch):
    z = torch.randn(7, 11, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    whole = entropy(z), full_kl(z, z.flip(0))
    monkeypatch.setattr(logprobs, "CHUNK_ELEMENTS", 22)
    torch.testing.assert_close((entropy(z), full_kl(z, z.flip(0))), whole, rtol=0, atol=1e-15)
    torch.testing.assert_close(entropy(z.requires_grad_()).detach(), whole[0], rtol=0, atol=1e-15)


def test_forbidden_tokens_have_probability_zero():
    z = torch.tensor([[0.0, 1.0, -math.inf]], requires_grad=True)
    h = entropy(z)
    assert h.item() == pytest.approx(entropy(torch.tensor([[0.0, 1.0]])).item())
    h.sum().backward()
    assert torch.isfinite(z.grad).all()
    assert full_kl(z, torch.tensor([[0.0, 1.0, -math.inf]])).item() == 0
    assert full_kl(torch.tensor([[0.0, 1.0]]), torch.tensor([[0.0, -math.inf]])).item() == math.inf


def test_a_nan_logit_is_seen():
    assert entropy(torch.tensor([[0.0, math.nan]])).isnan().all()


def test_refusals():
    with pytest.raises(ValueError, match="temperature"):
        entropy(torch.zeros(1, 2), 0.0)
    with pytest.raises(ValueError, match=r"\(2, 3\), \(3,\)"):
        gather_logprobs(torch.zeros(2, 3), torch.zeros(3, dtype=torch.long))
    with pytest.raises(ValueError, match="reference_logits"):
        full_kl(torch.zeros(2, 3), torch.zeros(2, 4))
