"""Listed cases on the KL: what each estimator estimates, and that a penalty's return stops at the last token."""

from pathlib import Path

import numpy as np
import pytest
import torch

from quatrain.ops.advantages import return_to_go
from quatrain.ops.kl import kl_estimate

P = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).log()
Q = torch.tensor([0.4, 0.4, 0.2], dtype=torch.float64).log()
EXACT = 0.025267  # 0.5 ln(0.5 / 0.4) + 0.3 ln(0.3 / 0.4)


def test_case_c57_the_estimators_against_the_exact_kl_of_three_tokens() -> None:
    means = {name: float((P.exp() * kl_estimate(name, P, Q)).sum()) for name in ("k1", "k2", "k3")}
    assert means["k1"] == pytest.approx(EXACT, abs=1e-6) and means["k3"] == pytest.approx(EXACT, abs=1e-6)
    assert means["k2"] == pytest.approx(0.0248617, abs=1e-6)  # biased: half the mean of the squared log-ratios
    assert kl_estimate("k1", P, Q)[1] < 0 <= kl_estimate("k3", P, Q).min()  # k1 is signed


def test_case_c57_the_docs_name_each_estimator() -> None:
    text = (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text()
    assert all(f"`{name}`" in text for name in ("k1", "k2", "k3", "abs", "full"))
    assert "biased" in text and "kl/reference_full" in (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()


def test_case_c42_a_tokens_return_ends_with_its_completion() -> None:
    """There is no padding behind a completion that could be summed: [2.5, 0.5], not [6.5, 4.5]."""
    np.testing.assert_array_equal(return_to_go(np.array([2.0, 0.5])), [2.5, 0.5])
