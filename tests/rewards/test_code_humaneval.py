"""HumanEval: what its authors wrote passes, and the same with the answer spoilt does not."""

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quatrain.config import VerifierConfig
from quatrain.rewards import Verifier, build_verifier, text_rollout
from quatrain.rewards.code_rows import Asserts, Calls, read_suite
from quatrain.types import Rollout
from tests.sandbox.machine import isolated

DATA = Path(os.environ.get("QUATRAIN_DATA", Path(__file__).parents[2].parent / "shared" / "data"))
FILE = DATA / "humaneval" / "HumanEval.jsonl"
pytestmark = [isolated, pytest.mark.skipif(not FILE.is_file(), reason=f"{FILE} is not there; set QUATRAIN_DATA")]


@pytest.fixture(scope="module")
def code() -> Iterator[Verifier]:
    built = build_verifier(VerifierConfig(kind="code", timeout_s=60.0))
    yield built
    built.close()


def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]


def rollout(row: dict[str, Any], completion: str) -> Rollout:
    return text_rollout(completion, {name: row[name] for name in ("test", "entry_point", "prompt")})


def wholly(row: dict[str, Any]) -> str:
    return f"```python\n{row['prompt']}{row['canonical_solution']}\n```"


def spoilt(row: dict[str, Any]) -> list[str]:
    """Three programs that are wrong for every question: another value, none, an exception."""
    solution = row["prompt"] + row["canonical_solution"]
    name = row["entry_point"]
    return [
        f"{solution}\n_right = {name}\ndef {name}(*a, **k):\n    return ('spoilt', _right(*a, **k))\n",
        f"{solution}\n_right = {name}\ndef {name}(*a, **k):\n    _right(*a, **k)\n",
        f"{solution}\n_right = {name}\ndef {name}(*a, **k):\n    _right(*a, **k)\n    raise ValueError\n",
    ]


def check(code: Verifier, chosen: list[dict[str, Any]]) -> None:
    continued = asyncio.run(code.score([rollout(row, row["canonical_solution"]) for row in chosen]))
    assert [row["task_id"] for row, one in zip(chosen, continued, strict=True) if one.value != 1.0] == []
    whole = asyncio.run(code.score([rollout(row, wholly(row)) for row in chosen]))
    assert [row["task_id"] for row, one in zip(chosen, whole, strict=True) if one.value != 1.0] == []
    wrong = [(row, text) for row in chosen for text in spoilt(row)]
    scores = asyncio.run(code.score([rollout(row, text) for row, text in wrong]))
    paid = [(row["task_id"], text[-60:]) for (row, text), one in zip(wrong, scores, strict=True) if one.value != 0.0]
    assert paid == []


def test_a_sample(code: Verifier) -> None:
    check(code, rows()[::12])


def test_both_ways_of_running_assertions_are_in_the_sample() -> None:
    kinds = {type(read_suite(row, "")) for row in rows()[::12]}
    assert kinds == {Calls, Asserts}


@pytest.mark.full
def test_all_of_them(code: Verifier) -> None:
    check(code, rows())
