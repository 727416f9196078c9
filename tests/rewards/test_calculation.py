"""The verifier of recipes/mawps.yaml: it computes what the model wrote down."""

import asyncio
from pathlib import Path

import pytest

from quatrain.config import VerifierConfig
from quatrain.rewards import build_verifier, text_rollout

KIND = f"{Path(__file__).parents[2] / 'recipes/calculation.py'}:Calculation"


@pytest.mark.parametrize(
    ("completion", "answer", "paid"),
    [
        (" 23 - 8", 15, 1),
        (" 2 + 3 * 4", 14, 1),  # products before sums
        (" 12 / 8", 1.5, 1),
        (" $3.50 \u00d7 2", 7, 1),
        (" 7 - 2 - 1 = 5", 4, 1),  # what stands behind the sign of equality is not read
        (" 15", 15, 0),  # a bare number is no calculation
        (" 8 - 23", 15, 0),
        (" 5 / 0", 0, 0),
        (" 2 + 2 or 10 + 5", 15, 0),  # the first one counts
        ("", 15, 0),
    ],
)
def test_the_value_of_the_first_calculation_is_paid(completion: str, answer: float, paid: int) -> None:
    verifier = build_verifier(VerifierConfig(kind=KIND))
    score = asyncio.run(verifier.score([text_rollout(completion, {"answer": answer})]))[0]
    assert (score.status, score.value) == ("ok", paid)
