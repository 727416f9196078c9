"""Running the candidate's program as `python program.py` would, in a process that was forked and not started."""

import atexit
import builtins
import contextlib
import io
import os
import sys
import threading
import traceback
import types
from collections.abc import Callable

MEMORY_EXIT = 86  # tells "out of memory" from other failures; a label only, since a candidate can exit with it too


def run(source: bytes) -> int:
    """Execute `source` as the module __main__ and return the exit status; never raises."""
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = module
    sys.argv = ["program.py"]
    sys.set_int_max_str_digits(0)  # printing a large integer is no mistake; time and memory are bounded anyway
    _new_streams()
    status = _guarded(lambda: exec(compile(source, "program.py", "exec"), module.__dict__))
    # A program may write its answer from an exit handler or a thread that is still running.
    for last in (threading._shutdown, atexit._run_exitfuncs, lambda: sys.stdout.flush()):  # type: ignore[attr-defined]
        status = max(status, _guarded(last))
    return status


def _guarded(action: Callable[[], object]) -> int:
    try:
        action()
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF
        return 1
    except MemoryError:
        return MEMORY_EXIT
    except BaseException:  # noqa: BLE001 - the candidate's own failure, of any kind, becomes its exit status
        with contextlib.suppress(BaseException):  # its text may raise, its stream may be closed
            traceback.print_exc(limit=8)
        return 1
    return 0


def _new_streams() -> None:
    """Text streams on descriptors 0 to 2, with the buffering and encodings of a program whose output is a pipe."""
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), "utf-8", "surrogateescape")
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "wb", closefd=False)), "utf-8", "surrogateescape")
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(io.FileIO(2, "wb", closefd=False)), "utf-8", "backslashreplace", write_through=True
    )
    for name in ("stdin", "stdout", "stderr"):
        setattr(sys, f"__{name}__", getattr(sys, name))
    os.environ.clear()


def warm_up() -> None:
    """Run something harmless, so that the pages which any program writes to are this process's own beforehand."""
    _new_streams()
    exec(compile("print(1)", "program.py", "exec"), {"__builtins__": builtins})
    sys.stdout.flush()
