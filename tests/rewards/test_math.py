"""Mathematical equality on the recorded cases."""

import asyncio
import json
from pathlib import Path

import pytest

from quatrain.config import VerifierConfig
from quatrain.errors import VerifierError
from quatrain.rewards import build_verifier, text_rollout
from quatrain.rewards.math_equal import quick_verdict
from quatrain.types import Score

CASES = [json.loads(line) for line in (Path(__file__).parents[1] / "cases/math.jsonl").read_text("utf-8").splitlines()]
EMPTY = "m231"


@pytest.fixture(scope="module")
def scores() -> dict[str, Score]:
    cases = [case for case in CASES if case["id"] != EMPTY]
    verifier = build_verifier(VerifierConfig(kind="math", timeout_s=3.0))
    rollouts = [text_rollout(case["prediction"], {"answer": case["gold"]}, index=i) for i, case in enumerate(cases)]
    found = asyncio.run(verifier.score(rollouts))
    verifier.close()
    return {case["id"]: score for case, score in zip(cases, found, strict=True)}


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_case(case: dict[str, object], scores: dict[str, Score]) -> None:
    if case["id"] == EMPTY:
        pytest.skip("a fault of the data")
    score = scores[str(case["id"])]
    paid = score.usable and score.value == 1.0
    assert paid == case["right"], score


def test_all_lines_are_there() -> None:
    assert len(CASES) == 179


def test_an_empty_gold_never_pays() -> None:
    verifier = build_verifier(VerifierConfig(kind="math"))
    with pytest.raises(VerifierError, match="is empty"):
        asyncio.run(verifier.score([text_rollout("", {"answer": ""})]))
    verifier.close()


@pytest.mark.parametrize(
    ("gold", "answer", "verdict"),
    [
        ("72", "72.0", True),
        ("72", "73", False),
        (r"\frac{1}{2}", "0.5", True),
        (r"3\frac{1}{4}", "13/4", True),
        (r"75\%", "0.75", True),
        (r"10^{10^{10}}", r"10^{10^{10}}", True),
        ("x+1", "1+x", None),
        ("56", "5 6", None),
        ("1234567", "1 234 567", True),
        ("5", "9" * 5000, False),
    ],
)
def test_what_needs_no_algebra(gold: str, answer: str, verdict: bool | None) -> None:
    assert quick_verdict(gold, answer) is verdict
