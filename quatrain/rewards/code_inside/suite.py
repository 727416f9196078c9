"""In a process of its own: the tests of a row, with the candidate's functions reached over a pipe.

The candidate's process can send plain data here and nothing else, so an assertion's verdict is this process's own.
"""

import ast
import builtins
import json
import sys
import types
from dataclasses import dataclass
from typing import Any

from .frames import receive, send, send_frame
from .values import NotPlain, pack, unpack


class RemoteError(Exception):
    """The candidate raised something that is no built-in exception, or its process is gone."""


class Remote:
    """A function of the candidate. Lists, dicts and sets that it changes in place are changed here too.

    Not while an assertion is evaluated: in `assert f(xs) == sorted(xs)` a candidate that empties `xs` and returns an
    empty list would set its own question.
    """

    asked = 0
    asserting = False

    def __init__(self, entry: str) -> None:
        self.entry = entry

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        Remote.asked += 1
        try:
            send(4, [self.entry, pack([list(arguments), keywords])])
            said = receive(3)
            if said[0] == "value":
                for original, changed in zip(arguments, said[2], strict=True):
                    if changed is not None and not Remote.asserting:
                        _change(original, unpack(changed))
                return unpack(said[1])
            kind, text = str(said[1]), str(said[-1])
        except (EOFError, OSError, NotPlain, LookupError, TypeError, ValueError) as error:
            raise RemoteError(str(error)) from None
        found = getattr(builtins, kind, None)
        if said[0] == "raised" and isinstance(found, type) and issubclass(found, Exception) and found not in _SILENT:
            raise _exception(found, text)
        raise RemoteError(f"{kind}: {text}")


# Raised into a loop over `map`, these would end it as if all had been seen.
_SILENT = (StopIteration, StopAsyncIteration)


def _exception(kind: type[Exception], text: str) -> Exception:
    try:
        return kind(text)
    except TypeError:  # UnicodeDecodeError and its like want more
        return RemoteError(f"{kind.__name__}: {text}")


def _change(original: Any, changed: Any) -> None:
    if isinstance(original, list) and isinstance(changed, list):
        original[:] = changed
    elif isinstance(original, (dict, set)) and type(original) is type(changed):
        original.clear()
        original.update(changed)


def main() -> None:
    """Frames: ["tests", count], then ["passed"] or ["failed"] for each; or ["broken", why] for a faulty suite."""
    payload = json.loads(sys.stdin.buffer.read())
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    names = module.__dict__
    try:
        _run_context(payload["context"], names)
        suite = split(payload["tests"])
        wanted = _free_names([*suite.before, *(one for one, _ in suite.body)])
        wanted = {name for name in wanted if name not in names and not hasattr(builtins, name)}
        names.update((name, Remote(name)) for name in wanted)
        if entry := payload["entry"]:
            names.update({entry: Remote(entry), "candidate": Remote(entry)})
    except Exception as error:  # noqa: BLE001 - the row's own fault, before the candidate was asked anything
        send_frame(["broken", f"{type(error).__name__}: {error}"[:500]])
        return
    _run_tests(suite, names)


def _run_context(source: str, names: dict[str, Any]) -> None:
    """Imports and helpers of the task's prompt, when it is a program; its unfinished function is replaced later."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return
    exec(compile(tree, "prompt.py", "exec"), names)


@dataclass(frozen=True)
class Split:
    """A suite's statements: what comes before the first test, then the rest with the tests marked."""

    before: list[ast.stmt]
    body: list[tuple[ast.stmt, bool]]

    @property
    def tests(self) -> list[ast.stmt]:
        """The tests in order."""
        return [statement for statement, is_test in self.body if is_test]


def split(source: str) -> Split:
    """Each top-level statement that asserts, itself or through a function of the suite, is one test.

    `check(candidate)` is opened up where that means the same; functions named test_* are called when nothing else calls
    them. `assert True` and the like test nothing and are left out.
    """
    body = ast.parse(source).body
    functions = [one for one in body if isinstance(one, ast.FunctionDef)]
    checks = [one for one in functions if one.name == "check"]
    if checks and _opens(checks[-1]):
        body = [one for one in body if one is not checks[-1] and "check" not in _called(one)] + checks[-1].body
    called = {name for one in body if not isinstance(one, ast.FunctionDef) for name in _called(one)}
    for one in functions:
        if one in body and one.name not in called and (one.name == "check" or one.name.startswith("test")):
            body += ast.parse(f"{one.name}({'candidate' if one.name == 'check' else ''})").body
    asserting = {one.name for one in functions if any(isinstance(node, ast.Assert) for node in ast.walk(one))}
    marked = [(one, _asserts(one) or bool(_called(one) & asserting)) for one in body]
    first = next((index for index, (_, is_test) in enumerate(marked) if is_test), len(marked))
    return Split([one for one, _ in marked[:first]], marked[first:])


def _called(statement: ast.stmt) -> set[str]:
    return {node.func.id for node in _own(statement) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}


def _opens(check: ast.FunctionDef) -> bool:
    """True when the statements of `check` mean the same outside a function."""
    arguments = [one.arg for one in check.args.args]
    inner = (ast.Return, ast.Yield, ast.Global, ast.Nonlocal)
    return arguments == ["candidate"] and not any(isinstance(node, inner) for one in check.body for node in _own(one))


def _own(statement: ast.AST) -> list[ast.AST]:
    """The nodes of a statement without those of functions defined in it."""
    found: list[ast.AST] = [statement]
    if not isinstance(statement, (ast.FunctionDef, ast.Lambda, ast.ClassDef)):
        for child in ast.iter_child_nodes(statement):
            found += _own(child)
    return found


def _asserts(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Assert) and isinstance(statement.test, ast.Constant) and statement.test.value:
        return False
    return any(isinstance(node, ast.Assert) for node in _own(statement))


def _free_names(statements: list[ast.stmt]) -> set[str]:
    """Names that are called or read and never assigned: those that the candidate must provide."""
    nodes = [node for one in statements for node in ast.walk(one)]
    read = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    bound = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    bound |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    bound |= {node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    bound |= {(one.asname or one.name).partition(".")[0] for node in nodes
              if isinstance(node, (ast.Import, ast.ImportFrom)) for one in node.names}  # fmt: skip
    bound |= {node.name for node in nodes if isinstance(node, ast.ExceptHandler) and node.name}
    return read - bound


def _run_tests(suite: Split, names: dict[str, Any]) -> None:
    """In order and in one namespace. When a statement that is no test fails, the tests behind it have failed."""
    sound = True
    for statement in suite.before:
        sound = sound and _runs(statement, names)
    if not sound and not Remote.asked:
        send_frame(["broken", "the statements before the tests fail without the candidate"])
        return
    send_frame(["tests", len(suite.tests)])
    for statement, is_test in suite.body:
        passed = sound and _runs(statement, names)
        if is_test:
            send_frame(["passed" if passed else "failed"])
        else:
            sound = passed


class _Asserting(ast.NodeTransformer):
    """Marks the time in which an assertion is evaluated."""

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        """The assertion between two calls of `_set_asserting`."""
        begin, end = ast.parse(f"{_SET}(True)\n{_SET}(False)").body
        return ast.Try(body=[begin, node], handlers=[], orelse=[], finalbody=[end])


_SET = "_set_asserting_of_the_suite"


def _set_asserting(value: bool) -> None:
    Remote.asserting = value


def _runs(statement: ast.stmt, names: dict[str, Any]) -> bool:
    names[_SET] = _set_asserting
    tree = ast.fix_missing_locations(ast.Module([_Asserting().visit(statement)], []))
    try:
        exec(compile(tree, "tests.py", "exec"), names)
    except Exception:  # noqa: BLE001 - a failed assertion, or anything else the test raises
        return False
    return True
