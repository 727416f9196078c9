"""Drawing tokens: distribution, truncation, and the edges of the inverse distribution function."""

import numpy as np
import pytest
import torch

from quatrain.config import SamplingConfig
from quatrain.rollout.sampling import draw, uniforms

LOGITS = torch.tensor([[0.5, 0.3, 0.15, 0.05]], dtype=torch.float64).log()


def drawn_at(uniform: list[float], **sampling: float) -> tuple[list[int], list[float], list[float]]:
    """Tokens, log-probabilities and kept mass for the same logits at several uniform numbers."""
    rows = LOGITS.expand(len(uniform), -1)
    found = draw(rows, torch.tensor(uniform, dtype=torch.float64), SamplingConfig(**sampling))
    return found.tokens_B.tolist(), found.logprobs_B.tolist(), found.kept_mass_B.tolist()


def test_inverse_distribution_function() -> None:
    tokens, logprobs, mass = drawn_at([0.0, 0.49, 0.51, 0.79, 0.81, 0.96, 1 - 1e-16])
    assert tokens == [0, 0, 1, 1, 2, 3, 3]
    np.testing.assert_allclose(logprobs, np.log([0.5, 0.5, 0.3, 0.3, 0.15, 0.05, 0.05]))
    assert mass == [1.0] * 7


def test_top_p_keeps_the_smallest_set_and_reports_untruncated_logprobs() -> None:
    tokens, logprobs, mass = drawn_at([0.0, 0.6, 0.63, 0.999], top_p=0.79)
    assert tokens == [0, 0, 1, 1]  # 0.5 / 0.8 = 0.625 is the edge
    np.testing.assert_allclose(logprobs, np.log([0.5, 0.5, 0.3, 0.3]))  # not renormalised over what was kept
    np.testing.assert_allclose(mass, 0.8)


def test_top_k_and_min_p() -> None:
    assert drawn_at([0.999], top_k=3)[0] == [2]
    assert drawn_at([0.999], min_p=0.2)[0] == [2]  # 0.2 * 0.5 = 0.1 cuts 0.05
    np.testing.assert_allclose(drawn_at([0.5], top_k=2)[2], 0.8)


def test_temperature_scales_logits_before_everything() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0]], dtype=torch.float64)
    found = [
        draw(logits, torch.tensor([u], dtype=torch.float64), SamplingConfig(temperature=0.5)).logprobs_B.item()
        for u in (0.0, 0.9, 0.99)
    ]
    np.testing.assert_allclose(found, [-0.14293163, -2.14293163, -4.14293163], atol=1e-8)


def test_frequencies_follow_the_distribution() -> None:
    count = 40_000
    found = draw(LOGITS.expand(count, -1), torch.from_numpy(uniforms((3,), count)), SamplingConfig())
    shares = torch.bincount(found.tokens_B, minlength=4) / count
    np.testing.assert_allclose(shares, [0.5, 0.3, 0.15, 0.05], atol=4 * np.sqrt(0.25 / count))


def test_a_token_of_probability_zero_is_never_drawn() -> None:
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf]])
    for uniform in (0.0, 0.5, np.nextafter(1.0, 0)):
        token = draw(logits, torch.tensor([uniform]), SamplingConfig()).tokens_B.item()
        assert token in (1, 3)


def test_streams_are_their_seeds_own() -> None:
    np.testing.assert_array_equal(uniforms((1, 2, 3), 5), uniforms((1, 2, 3), 9)[:5])
    assert not np.array_equal(uniforms((1, 2, 3), 5), uniforms((1, 3, 2), 5))


@pytest.mark.parametrize("top_p", [0.5, 0.9, 1.0])
def test_float32_rounding_stays_inside_the_kept_set(top_p: float) -> None:
    torch.manual_seed(0)
    logits = torch.randn(64, 5000) * 3
    found = draw(logits, torch.full((64,), 1 - 1e-12, dtype=torch.float64), SamplingConfig(top_p=top_p))
    assert torch.isfinite(found.logprobs_B).all()
    assert (found.kept_mass_B >= top_p - 1e-5).all()
