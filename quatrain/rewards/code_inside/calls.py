"""In the candidate's process: run its program, call its functions, say what they returned. It never judges."""

import contextlib
import sys
import types
from collections.abc import Callable
from json import loads
from typing import Any

from .frames import receive, send, send_frame
from .values import NotPlain, pack, unpack


def load(payload: dict[str, Any]) -> dict[str, Any]:
    """The names that the candidate's program defines. What it raises ends the process.

    With two sources the first is the prompt's, which need not be a whole program.
    """
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    *context, program = payload["sources"]
    for source in context:
        with contextlib.suppress(SyntaxError):
            exec(compile(source, "prompt.py", "exec"), module.__dict__)
    exec(compile(program, "program.py", "exec"), module.__dict__)
    return module.__dict__


def find(names: dict[str, Any], entry: str) -> Callable[..., Any]:
    """The function `entry`; also as a method of a class Solution without arguments."""
    if entry not in names and "Solution" in names:
        return getattr(names["Solution"](), entry)
    return names[entry]


def answer(function: Callable[[], Any], arguments: list[Any], keywords: dict[str, Any]) -> list[Any]:
    """["value", packed result], ["raised", type's name, text] or ["not_plain", why]. Leaving the process passes."""
    try:
        return ["value", pack(function()(*arguments, **keywords))]
    except SystemExit:
        raise
    except NotPlain as error:
        return ["not_plain", str(error)]
    except BaseException as error:  # noqa: BLE001 - whatever the candidate raises is its answer
        return ["raised", type(error).__name__, _text(error)]


def _text(error: BaseException) -> str:
    try:
        return str(error)[:200]
    except BaseException:  # noqa: BLE001 - an exception whose text raises
        return ""


def run_calls() -> None:
    """Calls with known inputs: one frame each, as soon as it is there, so that one that hangs costs no earlier one."""
    payload = loads(sys.stdin.buffer.read())
    out = sys.stdout
    names = load(payload)
    send_frame(["loaded"])
    for entry, packed in payload["calls"]:
        arguments, keywords = unpack(packed)
        send_frame(answer(lambda entry=entry: find(names, entry), arguments, keywords))  # type: ignore[misc]
    out.flush()


def serve_calls() -> None:
    """Calls that a second process asks for over a pipe; also says how the arguments have changed."""
    payload = loads(sys.stdin.buffer.read())
    names = load(payload)
    while True:
        entry, packed = receive(3)
        arguments, keywords = unpack(packed)
        said = answer(lambda entry=entry: find(names, entry), arguments, keywords)  # type: ignore[misc]
        if said[0] == "value":
            try:
                said.append([_changed(one, old) for one, old in zip(arguments, packed[1][1:], strict=True)])
            except NotPlain as error:
                said = ["not_plain", str(error)]
        send(4, said)


def _changed(argument: Any, before: Any) -> Any:
    """The packed argument as the call left it; None when it is as it was."""
    now = pack(argument)
    return None if now == before else now
