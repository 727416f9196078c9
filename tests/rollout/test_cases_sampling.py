"""Listed cases on the sampler's log-probabilities."""

import numpy as np
import torch

from quatrain.config import SamplingConfig
from quatrain.rollout.sampling import draw, uniforms

PROBABILITIES = [0.5, 0.3, 0.15, 0.05]


def drawn(uniform: list[float] | np.ndarray, **sampling: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens, log-probabilities and kept mass."""
    logits = torch.tensor([PROBABILITIES], dtype=torch.float64).log().expand(len(uniform), -1)
    found = draw(logits, torch.as_tensor(uniform, dtype=torch.float64), SamplingConfig(**sampling))
    return found.tokens_B, found.logprobs_B, found.kept_mass_B


def test_case_c49_with_top_p_the_ratio_to_the_trainer_is_one() -> None:
    """Over what was kept the reported probabilities sum to 0.8, not to 1: the ratio is 1, where a renormalising
    engine's would be 0.8; the kept mass is told beside it."""
    tokens, logprobs, mass = drawn(uniforms((5,), 2000), top_p=0.79)
    trainer = torch.tensor(PROBABILITIES, dtype=torch.float64).log()[tokens]
    np.testing.assert_allclose((trainer - logprobs).exp(), 1.0, rtol=1e-12)
    np.testing.assert_allclose(mass, 0.8)
    np.testing.assert_allclose((trainer - (logprobs - mass.log())).exp(), 0.8)  # what the biased ratio would be
    assert set(tokens.tolist()) == {0, 1}


def test_case_c51_the_logprob_is_the_sampled_tokens_not_the_best_ones() -> None:
    tokens, logprobs, _ = drawn([0.97])
    assert tokens.tolist() == [3]  # of rank 4
    np.testing.assert_allclose(logprobs, np.log(0.05))
