"""`code`: what is paid and what is not, for each way to write down tests."""

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from quatrain.config import VerifierConfig
from quatrain.errors import SettingError, VerifierError
from quatrain.rewards import Verifier, build_verifier, text_rollout
from quatrain.sandbox import Outcome, SandboxError, choose
from quatrain.types import Score
from tests.sandbox.machine import children, isolated

pytestmark = isolated


@pytest.fixture(scope="module")
def code() -> Iterator[Verifier]:
    built = build_verifier(VerifierConfig(kind="code", timeout_s=30.0))
    yield built
    built.close()


@pytest.fixture(scope="module")
def share() -> Iterator[Verifier]:
    built = build_verifier(VerifierConfig.model_validate({"kind": "code", "timeout_s": 3.0, "reward": "share"}))
    yield built
    built.close()


def score(verifier: Verifier, program: str, columns: dict[str, Any], prompt: str = "") -> Score:
    return asyncio.run(verifier.score([text_rollout(program, columns, prompt=prompt)]))[0]


ADD = "def add(a, b):\n    return a + b\n"
WRONG = "def add(a, b):\n    return 5\n"
ROWS: dict[str, dict[str, Any]] = {
    "test_list": {"test_list": ["assert add(2, 3) == 5", "assert add(1, 1) == 2"]},
    "tests as text": {"tests": "assert add(2, 3) == 5\nassert add(1, 1) == 2"},
    "helpers": {"tests": ["expected = 5", "assert add(2, 3) == expected", "assert abs(add(1, 1) - 2) < 1e-9"]},
    "functions": {"tests": "def test_one():\n    assert add(2, 3) == 5\ndef test_two():\n    assert add(1, 1) == 2"},
    "inputs and outputs": {"entry_point": "add", "inputs": [[2, 3], [1, 1]], "outputs": [5, 2]},
    "keywords": {"entry_point": "add", "inputs": [{"a": 2, "b": 3}, {"a": 1, "b": 1}], "outputs": [5, 2]},
    "input_output (APPS)": {
        "input_output": json.dumps({"fn_name": "add", "inputs": [[2, 3], [1, 1]], "outputs": [[5], [2]]})
    },
    "public_test_cases (LiveCodeBench)": {
        "public_test_cases": json.dumps(
            [{"input": "2\n3", "output": "5", "testtype": "functional"},
             {"input": "1\n1", "output": "2", "testtype": "functional"}]
        ),
        "metadata": json.dumps({"func_name": "add"}),
    },
    "check (HumanEval)": {
        "entry_point": "add",
        "prompt": 'def add(a, b):\n    """Add."""\n',
        "test": "def check(candidate):\n    assert candidate(2, 3) == 5\n    assert candidate(1, 1) == 2\n",
    },
    "check that returns": {
        "entry_point": "add",
        "test": "def check(candidate):\n    assert candidate(2, 3) == 5\n    assert candidate(1, 1) == 2\n    return\n",
    },
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS)
def test_every_layout_pays_the_right_program_only(code: Verifier, row: str) -> None:
    assert score(code, ADD, ROWS[row]).value == 1.0
    assert score(code, WRONG, ROWS[row]).value == 0.0
    assert score(code, "def other(): pass", ROWS[row]).value == 0.0
    assert score(code, "", ROWS[row]).value == 0.0


@pytest.mark.parametrize("row", [row for row in ROWS if row != "check that returns"])
def test_the_share_of_the_tests(share: Verifier, row: str) -> None:
    assert score(share, WRONG, ROWS[row]).value == 0.5


def test_a_class_solution_with_a_method(code: Verifier) -> None:
    program = "class Solution:\n    def add(self, a, b):\n        return a + b\n"
    assert score(code, program, ROWS["public_test_cases (LiveCodeBench)"]).value == 1.0


def test_standard_input_and_output(code: Verifier, share: Verifier) -> None:
    row = {"inputs": ["2 3\n", "1 1\n"], "outputs": ["5\n", "2"]}
    program = "a, b = map(int, open(0).read().split())\nprint(a + b)"
    assert score(code, program, row).value == 1.0
    assert score(share, "print(5)", row).value == 0.5
    assert score(code, program + "\nraise SystemExit(1)", row).value == 0.0
    assert score(code, "print(5)\nprint(2)", row).value == 0.0


def test_a_continuation_of_the_prompt_and_a_whole_program(code: Verifier) -> None:
    prompt = 'from math import gcd\n\ndef half(n):\n    """Half of it."""\n'
    row = {"entry_point": "half", "test": "def check(candidate):\n    assert candidate(8) == 4\n"}
    assert score(code, "    return n // gcd(2, 2)\n", row, prompt).value == 1.0
    assert score(code, "Here it is:\n```python\ndef half(n):\n    return n // gcd(2, 2)\n```", row, prompt).value == 1.0
    assert score(code, "    return n\n", row, prompt).value == 0.0


def test_changes_in_place_and_exceptions_reach_the_tests(code: Verifier) -> None:
    row = {"tests": (
        "numbers = [3, 1, 2]\nwork(numbers)\nassert numbers == [1, 2, 3]\n"
        "try:\n    work(None)\n    assert False\nexcept ValueError as error:\n    assert str(error) == 'nothing'\n"
    )}  # fmt: skip
    right = "def work(x):\n    if x is None: raise ValueError('nothing')\n    x.sort()\n"
    assert score(code, right, row).value == 1.0
    assert score(code, right.replace("ValueError", "KeyError"), row).value == 0.0
    assert score(code, right.replace("x.sort()", "pass"), row).value == 0.0


def test_a_statement_that_fails_takes_the_tests_behind_it_along(share: Verifier) -> None:
    """Otherwise an assertion would be judged on what an earlier call left in a variable."""
    row = {"tests": "r = f(1)\nassert r == 1\nr = f(2)\nassert r == 1\n"}
    assert score(share, "def f(x):\n    if x == 2: raise OSError\n    return 1\n", row).value == 0.5


def test_a_candidate_cannot_set_its_own_question(code: Verifier) -> None:
    for tests in (
        "xs = [3, 1, 2]\nassert f(xs) == sorted(xs)",
        "for xs in ([3, 1, 2], [2, 1]):\n    assert f(xs) == sorted(xs)",
        "def holds(xs):\n    return f(xs) == sorted(xs)\nassert holds([3, 1, 2])",
    ):
        assert score(code, "def f(xs): return sorted(xs)", {"tests": tests}).value == 1.0
        assert score(code, "def f(xs):\n    xs.clear()\n    return []", {"tests": tests}).value == 0.0


def test_an_exception_that_ends_loops_does_not_end_the_tests(code: Verifier) -> None:
    tests = "cases = [(1, 2), (2, 3)]\nassert all(map(lambda case: f(case[0]) == case[1], cases))"
    assert score(code, "def f(x): return x + 1", {"tests": tests}).value == 1.0
    for kind in ("StopIteration", "StopAsyncIteration", "GeneratorExit", "KeyboardInterrupt"):
        assert score(code, f"def f(x): raise {kind}", {"tests": tests}).value == 0.0


# The cases of the training list, by their ids.


def test_d02_a_pool_is_not_filled_by_programs_that_hang() -> None:
    verifier = build_verifier(VerifierConfig.model_validate({"kind": "code", "timeout_s": 0.5, "workers": 4}))
    try:
        hanging = [text_rollout("while True: pass", {"answer": "1"})] * 20
        started = time.monotonic()
        scores = asyncio.run(verifier.score(hanging))
        assert time.monotonic() - started < 60.0  # 20 / 4 * 0.5 s = 2.5 s where nothing else runs
        assert [one.value for one in scores] == [0.0] * 20
        assert {one.error for one in scores} == {"timeout"}
        servers = [child for pid in verifier.inner._sandbox.processes() for child in children(pid)]  # type: ignore[attr-defined]
        assert [len(children(server)) for server in servers] == [1] * 4  # the one that waits
    finally:
        verifier.close()


@pytest.mark.parametrize("leave", ["os._exit(0)", "raise SystemExit(0)", "sys.exit(0)"])
@pytest.mark.parametrize("place", ["def add(a, b):\n    {}\n", "{}\n"])
def test_d05_leaving_is_not_passing(code: Verifier, leave: str, place: str) -> None:
    for row in ("test_list", "helpers"):
        assert score(code, "import os, sys\n" + place.format(leave), ROWS[row]).value == 0.0


def test_d06_an_object_equal_to_everything_is_not_an_answer(code: Verifier) -> None:
    program = "class E:\n    def __eq__(s, o): return True\ndef add(a, b):\n    return E()\n"
    for row in ("test_list", "helpers", "inputs and outputs"):
        assert score(code, program, ROWS[row]).value == 0.0


def test_d07_raising_is_not_returning_an_empty_text(code: Verifier) -> None:
    row = {"entry_point": "f", "inputs": [[]], "outputs": [""]}
    assert score(code, "def f():\n    raise ValueError", row).value == 0.0
    assert score(code, "def f():\n    return ''", row).value == 1.0
    printed = {"inputs": [""], "outputs": [""]}
    assert score(code, "raise ValueError", printed).value == 0.0
    assert score(code, "pass", printed).value == 1.0


@pytest.mark.parametrize(
    "row",
    [{"test_list": []}, {"tests": []}, {"tests": "assert True"}, {"inputs": [], "outputs": []}, {"tests": "x = 1"},
     {"entry_point": "f", "test": "def check(candidate):\n    pass\n"}, {"public_test_cases": "[]"}],
)  # fmt: skip
def test_d08_no_tests_is_not_a_pass(code: Verifier, row: dict[str, Any]) -> None:
    got = score(code, ADD, row)
    assert (got.status, got.error) == ("error", "the row has no tests")


def test_d09_a_failing_sandbox_is_no_zero(code: Verifier, monkeypatch: pytest.MonkeyPatch) -> None:
    async def unreachable(*_: Any) -> list[Outcome]:
        raise SandboxError("the sandbox failed twice: gone")

    monkeypatch.setattr(code.inner._sandbox, "run", unreachable)  # type: ignore[attr-defined]
    for row in ROWS.values():
        got = score(code, ADD, row)
        assert got.status == "error"
        assert got.error.startswith("infrastructure: ")


def test_d09_tests_that_cannot_run_are_the_rows_fault(code: Verifier) -> None:
    got = score(code, ADD, {"tests": "import no_such_module\nassert add(1, 1) < 3"})
    assert got.status == "error"
    assert got.error.startswith("the row's tests cannot run")


def test_d11_standard_output_has_a_buffer(code: Verifier) -> None:
    assert score(code, "import sys\nsys.stdout.buffer.write(b'72\\n')", {"answer": "72"}).value == 1.0


def test_d12_large_integers(code: Verifier) -> None:
    big = "1" + "0" * 5000
    assert score(code, "print(10 ** 5000)", {"answer": big}).value == 1.0
    assert score(code, "print(10 ** 5000 + 1)", {"answer": big}).value == 0.0
    row = {"entry_point": "f", "inputs": [[5000]], "outputs": [10**5000]}
    assert score(code, "def f(n): return 10 ** n", row).value == 1.0
    assert score(code, "def f(n): return 10 ** n + 1", row).value == 0.0


def test_d13_floats_in_returned_lists(code: Verifier) -> None:
    row = {"entry_point": "f", "inputs": [[]], "outputs": [[0.3]]}
    assert score(code, "def f(): return [0.1 + 0.2]", row).value == 1.0
    assert score(code, "def f(): return [0.31]", row).value == 0.0
    assert score(code, "def f(): return [float('nan')]", row).value == 0.0


def test_d17_memory_is_limited_and_the_next_program_is_scored(code: Verifier) -> None:
    got = score(code, "x = bytearray(8 << 30)\nprint(72)", {"answer": "72"})
    assert (got.value, got.error) == (0.0, "memory")
    assert score(code, "def add(a, b): return bytearray(8 << 30)", ROWS["test_list"]).error == "memory"
    assert score(code, "print(72)", {"answer": "72"}).value == 1.0


def test_d18_files_of_this_machine_cannot_be_read(code: Verifier) -> None:
    program = f"import os\nprint(os.path.exists({__file__!r}), os.path.exists('/etc/passwd'))"
    assert score(code, program, {"answer": "False False"}).value == 1.0


def test_d19_there_are_no_tests_to_edit(code: Verifier) -> None:
    program = (
        "import os\n"
        "for folder, _, files in os.walk('/'):\n"
        "    for name in files:\n"
        "        try: open(os.path.join(folder, name), 'w').write('')\n"
        "        except OSError: pass\n"
    )
    for row in ("test_list", "helpers"):
        assert score(code, program + WRONG, ROWS[row]).value == 0.0
        assert score(code, ADD, ROWS[row]).value == 1.0


def test_d20_without_isolation_it_refuses_and_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "why_not", lambda **_: "clone: Operation not permitted; as root: sysctl -w x=1")
    with pytest.raises(SettingError, match=r"isolation: got namespace, need .*sysctl -w x=1.*none_i_accept_the_risk"):
        build_verifier(VerifierConfig(kind="code"), "verifiers.main.correct")
    risky = build_verifier(VerifierConfig.model_validate({"kind": "code", "isolation": "none_i_accept_the_risk"}))
    try:
        assert score(risky, ADD, ROWS["test_list"]).value == 1.0
        assert score(risky, WRONG, ROWS["helpers"]).value == 0.0
        assert score(risky, "while True: pass", {"answer": "1"}).value == 0.0
    finally:
        risky.close()


def test_d21_a_long_program(code: Verifier) -> None:
    program = ADD + "# padding\n" * 20_000
    assert len(program) > 200_000
    assert score(code, program, ROWS["test_list"]).value == 1.0


def test_a_row_that_cannot_be_read_stops_and_names_the_layouts(code: Verifier) -> None:
    for row, reason in (
        ({"text": "x"}, "no column of tests"),
        ({"inputs": [1], "outputs": []}, "1 inputs for 0 outputs"),
        ({"private_test_cases": "eJxrYJ"}, "compressed pickle"),
        ({"tests": "assert ("}, "no Python program"),
    ):
        with pytest.raises(VerifierError, match=f"prompt 0, completion 0: .*{reason}"):
            score(code, ADD, row)


def test_a_hanging_call_costs_only_itself_and_what_follows(share: Verifier) -> None:
    row = {"entry_point": "f", "inputs": [[1], [2], [3]], "outputs": [1, 2, 3]}
    got = score(share, "def f(x):\n    while x == 2: pass\n    return x\n", row)
    assert (got.value, got.error) == (pytest.approx(1 / 3), "timeout")


def test_a_package_that_is_not_there_is_one_line() -> None:
    with pytest.raises(SettingError, match=r"packages: got \('no_such_package',\), need installed packages"):
        build_verifier(VerifierConfig.model_validate({"kind": "code", "packages": ["no_such_package"]}))


def test_the_prompts_program_is_not_the_answer(code: Verifier) -> None:
    """A prompt whose function already passes earns nothing for a completion that says nothing."""
    row = {"entry_point": "add", "test": "def check(candidate):\n    assert candidate(2, 3) == 5\n", "prompt": ADD}
    assert score(code, "", row).value == 0.0
    assert score(code, "def add(a, b): return 0", row).value == 0.0
