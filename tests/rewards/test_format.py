"""The format, length, repetition and script rules on the recorded cases, every line of them."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from quatrain.config import VerifierConfig
from quatrain.rewards import build_verifier, text_rollout
from quatrain.rewards.format import well_formed
from quatrain.types import Prompt, Rollout, Score

CASES = [
    json.loads(line) for line in (Path(__file__).parents[1] / "cases/format.jsonl").read_text("utf-8").splitlines()
]


def settings_of(case: dict[str, Any]) -> dict[str, Any]:
    rule = case["rule"]
    if rule in ("think", "think_answer", "reasoning_answer"):
        return {"kind": "format", "tags": rule.split("_")}
    if rule == "json_object":
        return {"kind": "json_object", "required": case["required"]}
    if match := re.fullmatch(r"soft_overlong\(max=(\d+),cache=(\d+)\)", rule):
        return {"kind": "soft_overlong", "max_tokens": int(match[1]), "cache_tokens": int(match[2])}
    if rule.startswith("ngram_repetition("):
        return {"kind": "repetition", "n": 3, "penalty": -1.0}
    if rule == "ngram_repetition_text":
        return {"kind": "repetition", "n": 3, "penalty": -1.0, "unit": "word"}
    assert rule == "language(target=en)"
    return {"kind": "script", "scripts": ["latin"]}


def score(settings: dict[str, Any], rollout: Rollout) -> Score:
    verifier = build_verifier(VerifierConfig.model_validate(settings))
    return asyncio.run(verifier.score([rollout]))[0]


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_case(case: dict[str, Any]) -> None:
    tokens = case.get("ids", [1] * case["length"] if "length" in case else None)
    result = score(settings_of(case), text_rollout(case["completion"], tokens=tokens))
    value = None if result.status == "abstained" else result.value
    expected = case["expected"]
    if not isinstance(expected, dict):
        assert value == pytest.approx(expected)
    elif "any_of" in expected:
        assert value in expected["any_of"]
    else:
        assert value is not None
        assert expected.get("min", -9) <= value <= expected.get("max", 9)


def test_all_lines_are_there() -> None:
    assert len(CASES) == 44


def with_prefill(prefill: str, text: str) -> Rollout:
    prompt = Prompt(index=0, token_ids=(0,), text="Q", prefill=prefill)
    return Rollout(prompt=prompt, group=0, index=0, trajectories=(), text=text, stop_reason="eos")


def test_a_block_that_the_template_opened_counts() -> None:
    think = {"kind": "format", "tags": ["think"]}
    assert score(think, with_prefill("<think>\n", "Two and two.</think>4")).value == 1.0
    assert score(think, with_prefill("", "Two and two.</think>4")).value == 0.0
    assert score(think, with_prefill("<think>\n", "<think>Two and two.</think>4")).value == 0.0


def test_text_between_blocks_is_not_allowed() -> None:
    assert well_formed("<a>x</a>\n<b>y</b>\n", ("a", "b"))
    assert not well_formed("<a>x</a>so<b>y</b>", ("a", "b"))
    assert not well_formed("<b>y</b><a>x</a>", ("a", "b"))


def test_deep_nesting_and_long_integers_are_not_json_objects() -> None:
    for text in ("[" * 100_000, '{"a": ' + "9" * 10_000 + "}", '{"a": Infinity}'):
        assert score({"kind": "json_object"}, text_rollout(text)).value == 0.0
