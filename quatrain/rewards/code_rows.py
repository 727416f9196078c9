"""Reading a row's tests: the column layouts of HumanEval, MBPP, APPS and LiveCodeBench, and plain ones of one's own."""

import ast
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quatrain.errors import VerifierError
from quatrain.rewards.code_inside.suite import split
from quatrain.rewards.code_inside.values import NotPlain, pack

LAYOUTS = (
    "test with entry_point (HumanEval), test_list (MBPP), tests, inputs with outputs, input_output (APPS), "
    "public_test_cases (LiveCodeBench), or answer (what the program must print)"
)


@dataclass(frozen=True, slots=True)
class Call:
    """A call with known arguments (packed), and what it must return: equal as in `assert`, or as JSON values."""

    entry: str
    packed: list[Any]
    expected: Any
    asserted: bool = False


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls in one process of the candidate."""

    calls: tuple[Call, ...]
    context: str = ""
    entry: str = ""


@dataclass(frozen=True, slots=True)
class Streams:
    """Whole runs of the program: (standard input, expected standard output)."""

    tests: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Asserts:
    """Python statements with assertions, run in a process of their own that reaches the candidate's functions."""

    source: str
    context: str = ""
    entry: str = ""


Suite = Calls | Streams | Asserts


class NoTests(Exception):
    """The row has a column of tests, and nothing in it."""


def read_suite(columns: Mapping[str, Any], prompt: str) -> Suite:
    """The tests of a row. `prompt` is its raw text, which a HumanEval completion continues.

    Raises NoTests for an empty suite and VerifierError, without a place, for a row that cannot be read.
    """
    try:
        suite = _read(columns, prompt)
    except (ValueError, TypeError, KeyError, NotPlain, RecursionError) as error:
        raise VerifierError(f"the tests cannot be read ({type(error).__name__}: {error}); need {LAYOUTS}") from None
    if not (suite.calls if isinstance(suite, Calls) else suite.tests if isinstance(suite, Streams) else True):
        raise NoTests
    return suite


def _read(columns: Mapping[str, Any], prompt: str) -> Suite:
    entry = _entry(columns)
    if isinstance(columns.get("test"), str) and entry:
        context = columns["prompt"] if isinstance(columns.get("prompt"), str) else prompt
        return _asserts(columns["test"], context, entry)
    if columns.get("test_list") is not None:
        setup = [*_lines(columns.get("test_imports")), *_lines(columns.get("test_setup_code"))]
        return _asserts("\n".join([*setup, *_lines(columns["test_list"])]), "", "")
    if columns.get("tests") is not None:
        return _own_tests(_plain(columns["tests"]), entry)
    if columns.get("input_output") is not None:
        table = _plain(columns["input_output"])
        return _table(table["inputs"], table["outputs"], table.get("fn_name") or "", wrapped=True)
    if columns.get("public_test_cases") is not None or columns.get("private_test_cases") is not None:
        cases = [*_cases(columns.get("public_test_cases")), *_cases(columns.get("private_test_cases"))]
        return _own_tests(cases, entry)
    if columns.get("inputs") is not None:
        return _table(_plain(columns["inputs"]), _plain(columns["outputs"]), entry)
    if columns.get("answer") is not None:
        return Streams((("", str(columns["answer"])),))
    raise KeyError("no column of tests; the row has " + (", ".join(sorted(columns)) or "none"))


def _entry(columns: Mapping[str, Any]) -> str:
    for name in ("entry_point", "fn_name"):
        if isinstance(columns.get(name), str):
            return columns[name]
    metadata = _plain(columns.get("metadata") or {})
    found = metadata.get("func_name") if isinstance(metadata, dict) else None
    return found if isinstance(found, str) else ""


def _plain(value: Any) -> Any:
    """JSON text as what it says; anything else as it is."""
    return json.loads(value) if isinstance(value, str) and value.lstrip()[:1] in ("[", "{") else value


def _lines(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else [str(one) for one in value or []]


def _own_tests(tests: Any, entry: str) -> Suite:
    """`tests`: assertions (a text or a list), or a list of {"input", "output"}, where an entry point makes calls."""
    if isinstance(tests, str) or (tests and all(isinstance(one, str) for one in tests)):
        return _asserts("\n".join(_lines(tests)), "", entry)
    functional = [bool(entry) and one.get("testtype", "functional") == "functional" for one in tests]
    inputs, outputs = [one["input"] for one in tests], [one["output"] for one in tests]
    if not any(functional):
        return _table(inputs, outputs, "")
    # LiveCodeBench writes each argument as JSON on a line of its own, and the result as JSON
    inputs = [[json.loads(line) for line in one.split("\n") if line.strip()] if isinstance(one, str) else one
              for one in inputs]  # fmt: skip
    outputs = [json.loads(one) if isinstance(one, str) else one for one in outputs]
    return _table(inputs, outputs, entry)


def _cases(column: Any) -> list[dict[str, Any]]:
    if isinstance(column, str) and column.strip() and column.lstrip()[0] != "[":
        raise ValueError("private_test_cases is a compressed pickle, which is not opened here; decode it beforehand")
    return list(_plain(column) or [])


def _table(inputs: Any, outputs: Any, entry: str, wrapped: bool = False) -> Suite:
    """Rows of inputs and outputs: of a program as texts, of a function as lists of arguments.

    `wrapped`: some of the outputs stand in a list of one (APPS), so that [3] means 3 when the inputs are lists too.
    """
    if len(inputs) != len(outputs):
        raise ValueError(f"{len(inputs)} inputs for {len(outputs)} outputs")
    if not entry:
        return Streams(tuple((_text(one), _text(other)) for one, other in zip(inputs, outputs, strict=True)))
    if wrapped and all(isinstance(one, list) and len(one) == 1 for one in outputs):
        outputs = [one[0] for one in outputs]
    calls = []
    for one, other in zip(inputs, outputs, strict=True):
        arguments, keywords = ([], one) if isinstance(one, dict) else (one if isinstance(one, list) else [one], {})
        calls.append(Call(entry, pack([arguments, keywords]), other))
    return Calls(tuple(calls))


def _text(value: Any) -> str:
    return "\n".join(_text(one) for one in value) if isinstance(value, list) else str(value)


def _asserts(source: str, context: str, entry: str) -> Suite:
    """Assertions: as calls, when every one of them is a call compared with a literal; else as a program of tests."""
    try:
        suite = split(source)
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise VerifierError(f"the tests are no Python program: {error}") from None
    if not suite.tests:
        raise NoTests
    calls = [_as_call(one, entry) for one, is_test in suite.body]
    known = [call for call in calls if call is not None]
    if len(known) == len(calls) == len(suite.tests):
        return Calls(tuple(known), context, entry)
    return Asserts(source, context, entry)


def _as_call(statement: ast.stmt, entry: str) -> Call | None:
    """`assert f(2) == 4`, with literals on both sides, as a call; None for any other form."""
    if not isinstance(statement, ast.Assert) or not isinstance(statement.test, ast.Compare):
        return None
    test = statement.test
    call, value = test.left, test.comparators[0]
    if len(test.ops) != 1 or not isinstance(test.ops[0], ast.Eq):
        return None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        return None
    try:
        expected = ast.literal_eval(value)
        arguments = [ast.literal_eval(one) for one in call.args]
        keywords = {_name(one): ast.literal_eval(one.value) for one in call.keywords}
        name = entry if call.func.id == "candidate" and entry else call.func.id
        return Call(name, pack([arguments, keywords]), expected, asserted=True)
    except (ValueError, TypeError, SyntaxError, NotPlain):
        return None


def _name(keyword: ast.keyword) -> str:
    if keyword.arg is None:
        raise ValueError("**keywords")
    return keyword.arg
