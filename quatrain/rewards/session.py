"""A function of a Python session (script, notebook, REPL, `python -`) kept as a file that outlasts the session.

The file is an ordinary `FILE.py:FUNCTION`: it holds the function's source as a comment, to read, and its code, pickled
by value with the globals that it uses. So worker processes, deadlines, resumes and every command treat it as any other.
"""

import base64
import contextlib
import dis
import hashlib
import inspect
import os
import pickle
import sys
import textwrap
from collections.abc import Callable, Iterator
from importlib import import_module
from types import CodeType, FunctionType, ModuleType
from typing import Any

from quatrain.errors import SettingError
from quatrain.rewards.calling import describe

PYTHON = "{}.{}".format(*sys.version_info)  # code travels between processes of one Python, not between versions
FILE = '''\
# `{name}`, defined in a Python session and kept here by quatrain, so that its run can go on without that session.
{source}
from quatrain.rewards.session import restore

{name} = restore(
    python={python!r},
    folders={folders!r},
    code="""
{code}
""",
)
'''


def function_name(function: Callable[..., Any]) -> str:
    """What a function is called in metrics and files; a lambda is `reward`."""
    name = getattr(function, "__name__", type(function).__name__)
    return name if name.isidentifier() else "reward"


def function_file(function: Callable[..., Any], setting: str) -> tuple[str, str]:
    """Name and text of a file that defines the function; equal functions have equal names (see `fingerprint`).

    Raises SettingError for a class, for arguments that cannot be passed by name, and for what cannot be pickled.
    """
    name = function_name(function)
    describe(function, setting, f"the {'class' if isinstance(function, type) else 'function'} {name}")
    dill = import_module("dill")
    try:
        data = dill.dumps(function, recurse=True)
    except (pickle.PickleError, TypeError, AttributeError, ValueError, RuntimeError, NotImplementedError) as error:
        raise SettingError(setting, f"the function {name}", "a function whose globals and closure can be pickled",
                           f"{type(error).__name__}: {error}; make such objects inside the function, or put it in a "
                           f"file and name it 'FILE.py:{name}'") from None  # fmt: skip
    code = textwrap.fill(base64.b64encode(data).decode(), 100)
    text = FILE.format(name=name, source=_source(function), python=PYTHON, folders=_own_folders(), code=code)
    return f"{name}-{fingerprint(function)}.py", text


def restore(*, python: str, folders: list[str], code: str) -> Any:
    """The function of such a file; `folders` become importable. Raises ImportError under another Python."""
    if python != PYTHON:
        raise ImportError(f"it was kept by Python {python} and this is {PYTHON}; use that one, or start a new run")
    sys.path.extend(folder for folder in folders if folder not in sys.path)
    return pickle.loads(base64.b64decode(code))


def fingerprint(function: Callable[..., Any]) -> str:
    """Eight hexadecimal digits that stay while the function means the same, whatever process or cell defines it.

    It covers the code, defaults, closure and globals in use; functions and classes of the session by what they do,
    what is imported by its name, arrays by their numbers, other objects by their repr (where that is an address, by
    their attributes).
    """
    return hashlib.sha256(repr(_meaning(function, set())).encode()).hexdigest()[:8]


def _meaning(value: Any, seen: set[int]) -> Any:
    """Nested tuples of text that are equal in every process."""
    if isinstance(value, CodeType):
        shape = (value.co_argcount, value.co_kwonlyargcount, value.co_flags)
        return (value.co_code, value.co_names, value.co_varnames, shape,
                [_meaning(one, seen) for one in value.co_consts])  # fmt: skip
    if isinstance(value, ModuleType):
        return value.__name__
    if id(value) in seen:
        return "seen"
    seen.add(id(value))
    try:
        return [type(value).__qualname__, *_parts(value, seen)]
    finally:
        seen.discard(id(value))


def _parts(value: Any, seen: set[int]) -> Iterator[Any]:
    """What makes a value: contents of containers, code of the session's own functions and classes, else its repr."""
    own = getattr(value, "__module__", None) == "__main__"
    if isinstance(value, dict):
        yield sorted(repr((key, _meaning(item, seen))) for key, item in value.items())
    elif isinstance(value, (set, frozenset)):
        yield sorted(repr(_meaning(item, seen)) for item in value)
    elif isinstance(value, (list, tuple)):
        yield from (_meaning(item, seen) for item in value)
    elif isinstance(value, FunctionType) and own:
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        used = {name: value.__globals__[name] for name in sorted(_globals(value.__code__)) if name in value.__globals__}
        yield from (_meaning(part, seen) for part in (value.__code__, value.__defaults__, value.__kwdefaults__))
        yield from (_meaning(part, seen) for part in (cells, used))
    elif isinstance(value, type) and own:
        moving = ("__dict__", "__weakref__", "__firstlineno__", "__static_attributes__")
        yield _meaning({name: part for name, part in vars(value).items() if name not in moving}, seen)
        yield _meaning(value.__bases__, seen)
    elif isinstance(value, (type, FunctionType)):
        yield f"{value.__module__}.{value.__qualname__}"
    elif hasattr(value, "tolist"):
        yield _meaning(value.tolist(), seen)
    else:
        addressed = " at 0x" in (text := repr(value))
        inner = ("__func__", "__self__", "__wrapped__", "func", "args", "keywords", "__dict__") if addressed else ()
        yield "" if addressed else text
        yield from (_meaning(getattr(value, name), seen) for name in inner if hasattr(value, name))
        if own:
            yield _meaning(type(value), seen)


def _globals(code: CodeType) -> set[str]:
    """Names that the code, or a function in it, reads from its globals."""
    inner = [_globals(one) for one in code.co_consts if isinstance(one, CodeType)]
    here = {one.argval for one in dis.get_instructions(code) if one.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return here.union(*inner)


def _source(function: Callable[..., Any]) -> str:
    """The source as comment lines, where Python knows it (it does not in `python -`)."""
    with contextlib.suppress(OSError, TypeError):
        text = textwrap.dedent(inspect.getsource(inspect.unwrap(function))).rstrip()
        return "#\n" + "\n".join(f"#     {line}".rstrip() for line in text.splitlines())
    return "# Its source is not known."


def _own_folders() -> list[str]:
    """Folders that the session imports from, without Python's own: a worker finds the same modules."""
    prefixes = tuple(f"{prefix}{os.sep}" for prefix in {sys.prefix, sys.base_prefix, sys.exec_prefix})
    folders = [os.path.abspath(folder) for folder in sys.path]
    return [folder for folder in dict.fromkeys(folders) if not folder.startswith(prefixes) and os.path.isdir(folder)]
