"""The deadline of `math` holds for what cannot be worked out, from any thread, without signals."""

import asyncio
import threading
import time

import pytest

from quatrain.config import VerifierConfig
from quatrain.rewards import build_verifier, text_rollout
from quatrain.types import Score

SLACK_S = 1.5  # a loaded machine's scheduling

BOMBS = [
    "9^{9^{9^{9}}}+1",
    "2^{2^{2^{2^{2^{2}}}}}-x",
    "(10^{7})!+(10^{8})!",
    "((9!)!)!",
    r"\sum_{k=1}^{10^{9}} k^{k}",
    r"\prod_{k=1}^{10^{8}} (k+x)",
    r"\binom{10^{8}}{10^{7}+1}",
    r"(x+y+z+1)^{200}-1",
    r"\sqrt{" * 30 + "x" + "}" * 30,
    "1" + "+x^{x" * 30 + "}" * 30,
    "0." + "9" * 1900,
    "{" * 39 + "x" + "}" * 39,
]


@pytest.mark.parametrize("bombs", [BOMBS[:3], pytest.param(BOMBS, marks=pytest.mark.full)], ids=["some", "all"])
def test_default_deadline_from_a_thread(bombs: list[str]) -> None:
    verifier = build_verifier(VerifierConfig(kind="math"))
    assert verifier.limits.timeout_s == 0.5  # type: ignore[attr-defined]
    warm = [text_rollout(r"\boxed{x^2+2x+1}", {"answer": "(x+1)^2"})]
    found: dict[str, tuple[Score, float]] = {}

    def attack() -> None:
        for bomb in bombs:
            asyncio.run(verifier.score(warm))  # a worker that was killed is replaced while nobody waits
            started = time.monotonic()
            [score] = asyncio.run(verifier.score([text_rollout(f"\\boxed{{{bomb}}}", {"answer": "x+7"})]))
            found[bomb] = score, time.monotonic() - started

    thread = threading.Thread(target=attack)
    thread.start()
    thread.join()
    verifier.close()
    assert len(found) == len(bombs)
    assert [bomb for bomb, (score, _) in found.items() if score.usable and score.value != 0.0] == []
    assert {score.error for score, _ in found.values() if not score.usable} <= {"timeout after 0.5 s"} | {
        score.error for score, _ in found.values() if "MemoryError" in score.error or "Recursion" in score.error
    }
    assert max(seconds for _, seconds in found.values()) < 0.5 + SLACK_S


@pytest.mark.parametrize(
    "text", ["(" * 400_000, r"\boxed{" * 100_000, "#### " * 200_000, "1,1 or " * 100_000, "the answer is " * 70_000]
)
def test_reading_long_texts_takes_linear_time(text: str) -> None:
    verifier = build_verifier(VerifierConfig(kind="math"))
    started = time.process_time()
    [score] = asyncio.run(verifier.score([text_rollout(text, {"answer": "7"})]))
    verifier.close()
    assert score.value == 0.0
    assert time.process_time() - started < 3.0
