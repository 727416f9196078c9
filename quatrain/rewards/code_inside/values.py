"""Plain data across the border between processes that do not trust each other.

A value is a JSON list of a tag and its content; numbers travel as text, so that neither side's limits or rounding come
in. Subclasses are sent as the plain type beneath them: what arrives has no code of the sender's, and `==` on it is
Python's own. Nothing is ever evaluated or unpickled.
"""

# Bound now: a candidate that replaces `len` or `isinstance` in its process must not bring down its own report.
from builtins import isinstance, len, list, type  # noqa: UP029
from json import dumps, loads
from typing import Any, NoReturn

MAX_DEPTH = 64


class NotPlain(Exception):
    """A value that is not plain data, is nested too deeply, or text that no honest sender writes."""


def pack(value: Any, depth: int = 0) -> list[Any]:
    """`value` as tagged data; raises NotPlain for anything else than the built-in types of data."""
    if depth > MAX_DEPTH:
        raise NotPlain("nested too deeply")
    if value is None:
        return ["n"]
    if value is True or value is False:
        return ["B", int(value)]
    if isinstance(value, int):
        return ["i", int.__format__(value, "x")]
    if isinstance(value, float):
        return ["f", float.hex(value)]
    if isinstance(value, complex):
        return ["c", float.hex(value.real), float.hex(value.imag)]
    if isinstance(value, str):
        return ["s", str.__str__(value)]
    if isinstance(value, (bytes, bytearray)):
        return ["b", bytes(value).hex()]
    for kind, tag in _CONTAINERS:
        if isinstance(value, kind):
            return [tag, *[pack(one, depth + 1) for one in kind.__iter__(value)]]
    if isinstance(value, dict):
        return ["d", *[[pack(key, depth + 1), pack(one, depth + 1)] for key, one in dict.items(value)]]
    return _from_number_type(value, depth)


_CONTAINERS: list[tuple[Any, str]] = [(list, "l"), (tuple, "t"), (set, "S"), (frozenset, "F")]


def _from_number_type(value: Any, depth: int) -> list[Any]:
    """Arrays and scalars of numpy and its like as the plain data they hold."""
    module = type(value).__module__.partition(".")[0]
    if module == "numpy" and hasattr(value, "tolist"):
        return pack(value.tolist(), depth + 1)
    if module == "collections" and type(value).__name__ == "deque":
        return pack(list(value), depth + 1)
    raise NotPlain(f"{type(value).__name__} is not plain data")


def unpack(packed: Any, depth: int = 0) -> Any:
    """The value; raises NotPlain for anything that `pack` does not write."""
    if depth > MAX_DEPTH or not isinstance(packed, list) or not packed:
        raise NotPlain("not a packed value")
    tag, *content = packed
    try:
        if tag in ("l", "t", "S", "F"):
            return _MAKE[tag](unpack(one, depth + 1) for one in content)
        if tag == "d":
            return {unpack(key, depth + 1): unpack(value, depth + 1) for key, value in content}
        return _SCALARS[tag](*content)
    except (KeyError, TypeError, ValueError) as error:
        raise NotPlain(f"not a packed value: {error}") from None


def _text(content: str) -> str:
    if type(content) is not str:
        raise TypeError("not text")
    return content


_MAKE: dict[str, Any] = {"l": list, "t": tuple, "S": set, "F": frozenset}
_SCALARS: dict[str, Any] = {
    "n": lambda: None,
    "B": lambda content: {0: False, 1: True}[content],
    "i": lambda content: int(_text(content), 16),  # linear in its length, unlike decimal digits
    "f": lambda content: float.fromhex(_text(content)),
    "c": lambda real, imaginary: complex(float.fromhex(_text(real)), float.fromhex(_text(imaginary))),
    "s": _text,
    "b": lambda content: bytes.fromhex(_text(content)),
}


def to_bytes(message: Any) -> bytes:
    """JSON in ASCII; lone surrogates travel as escapes."""
    return dumps(message).encode("ascii")


def from_bytes(data: bytes) -> Any:
    """The inverse; raises NotPlain also for large numbers, objects and bottomless nesting, which no message has."""
    try:
        return loads(data, parse_float=_refuse, parse_constant=_refuse, parse_int=_small, object_pairs_hook=_refuse)
    except (ValueError, RecursionError) as error:
        raise NotPlain(f"not a message: {error}") from None


def _refuse(content: object) -> NoReturn:
    raise ValueError(f"{type(content).__name__} in a message")


def _small(text: str) -> int:
    return int(text) if len(text) < 10 else _refuse(text)
