"""Every recorded case on training is a test that carries its id in its name (`test_case_c70_...`)."""

import json
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
LINES = [json.loads(line) for path in sorted((TESTS / "cases").glob("training_*.jsonl"))
         for line in path.read_text("utf-8").splitlines()]  # fmt: skip
NAMES = re.findall(r"^def (test_\w+)", "\n".join(path.read_text("utf-8") for path in TESTS.rglob("test_*.py")), re.M)


@pytest.mark.parametrize("case", [line["id"] for line in LINES])
def test_a_case_is_a_test(case: str) -> None:
    assert [name for name in NAMES if f"_{case.lower()}_" in f"{name}_"], f"no test is named after {case}"


def test_no_case_is_there_twice() -> None:
    ids = [line["id"] for line in LINES]
    assert len(ids) == len(set(ids))
