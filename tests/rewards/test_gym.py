"""reasoning-gym's own scorers, in this process and through the worker."""

import asyncio

import pytest

from quatrain.config import VerifierConfig
from quatrain.errors import VerifierError
from quatrain.rewards import build_verifier, text_rollout
from quatrain.rewards.gym_worker import task_score

COUNTDOWN = {"source_dataset": "countdown", "numbers": [2, 3, 8], "target": 18}


def test_the_task_scores() -> None:
    assert task_score("", "3*8 - 6", COUNTDOWN, "(8 - 2) * 3") == 1.0
    assert task_score("", "3*8 - 6", COUNTDOWN, "8 + 2 + 3") == 0.05
    assert task_score("", "7", {"source_dataset": "chain_sum"}, "+07.00") == 1.0
    assert task_score("", "2", {"source_dataset": "prime_factorization"}, "no idea") == 0.0
    with pytest.raises(ValueError, match="not registered"):
        task_score("", "7", {"source_dataset": "no_such_task"}, "7")


def test_partial_credit_is_paid_on_request_and_an_unknown_task_is_an_error() -> None:
    verifier = build_verifier(
        VerifierConfig.model_validate({"kind": "reasoning_gym", "partial": True, "timeout_s": 60})
    )
    rows = [("<answer>8 + 2 + 3</answer>", COUNTDOWN), ("<answer>8</answer>", {"source_dataset": "no_such_task"}),
            ("8 + 2 + 3", COUNTDOWN), ("<answer>" + "8" * 30_000 + "</answer>", COUNTDOWN)]  # fmt: skip
    try:
        scores = asyncio.run(verifier.score([text_rollout(text, {"answer": None, "metadata": metadata})
                                             for text, metadata in rows]))  # fmt: skip
        with pytest.raises(VerifierError, match="has no column 'metadata'"):
            asyncio.run(verifier.score([text_rollout("<answer>8</answer>", {"answer": "8"})]))
    finally:
        verifier.close()
    assert scores[0].value == 0.05 and scores[0].answer == "8 + 2 + 3"
    assert scores[1].status == "error" and "no_such_task" in scores[1].error
    assert [score.value for score in scores[2:]] == [0.0, 0.0] and scores[2].answer is None
