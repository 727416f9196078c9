"""Comparing what a candidate sent with what was expected, here, where the candidate's code is not.

The answer stays packed until its shape is known to be that of the expected value. So the work is bounded by the row's
own data: a dictionary of a million keys that all hash alike is turned down by its length.
"""

import math
import re
from typing import Any

from quatrain.rewards.code_inside.values import NotPlain, unpack

_CONTAINER_OF = {"l": list, "t": tuple, "S": (set, frozenset), "F": (set, frozenset), "d": dict}
MAX_KEY_ITEMS = 256


def equals(packed: Any, expected: Any) -> bool:
    """`answer == expected` as Python has it, for plain data: 1 == 1.0 == True, but not [1] == (1,) nor nan == nan."""
    return _same(packed, expected, None)


def matches(packed: Any, expected: Any, tolerance: float) -> bool:
    """Equal as JSON values: a tuple is a list, true is not 1, and a float is within the tolerance (absolute, relative).

    Two integers must be equal exactly. NaN and infinity match nothing.
    """
    return _same(packed, expected, tolerance)


def _same(packed: Any, expected: Any, tolerance: float | None) -> bool:
    if not isinstance(packed, list) or not packed or not isinstance(packed[0], str):
        raise NotPlain("not a packed value")
    tag, *content = packed
    as_json = tolerance is not None
    if tag not in _CONTAINER_OF:
        return _same_scalar(unpack(packed), expected, tolerance)
    kinds: Any = (list, tuple) if as_json and tag in ("l", "t") else _CONTAINER_OF[tag]
    if not isinstance(expected, kinds) or len(content) != len(expected):
        return False
    if tag in ("l", "t"):
        return all(_same(one, other, tolerance) for one, other in zip(content, expected, strict=True))
    if tag in ("S", "F"):
        return {_key(one) for one in content} == expected
    answer = {_key(pair[0]): pair[1] for pair in content if isinstance(pair, list) and len(pair) == 2}
    if answer.keys() != expected.keys():
        return False
    return all(_same(answer[key], value, tolerance) for key, value in expected.items())


def _same_scalar(answer: Any, expected: Any, tolerance: float | None) -> bool:
    if tolerance is None or not isinstance(expected, (bool, int, float)):
        return bool(answer == expected)
    if isinstance(answer, bool) or isinstance(expected, bool):
        return answer is expected
    if isinstance(answer, int) and isinstance(expected, int):
        return answer == expected
    return isinstance(answer, (int, float)) and close(answer, expected, tolerance)


def close(answer: float, expected: float, tolerance: float) -> bool:
    """|a - e| <= tolerance * max(1, |e|), for finite numbers."""
    try:
        answer, expected = float(answer), float(expected)
    except OverflowError:
        return False
    if not (math.isfinite(answer) and math.isfinite(expected)):
        return False
    return abs(answer - expected) <= tolerance * max(1.0, abs(expected))


def _key(packed: Any) -> Any:
    """A member of a set or a key; one with very many parts is refused, since its parts may all hash alike."""
    if _items(packed) > MAX_KEY_ITEMS:
        raise NotPlain("a key with too many parts")
    return unpack(packed)


def _items(packed: Any, depth: int = 0) -> int:
    if not isinstance(packed, list) or depth > 8:
        return 1 if depth <= 8 else MAX_KEY_ITEMS + 1
    return sum(_items(one, depth + 1) for one in packed)


_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
MAX_NUMBER = 400  # characters; a longer numeral must be equal as text


def same_output(output: bytes, expected: str, tolerance: float) -> bool:
    """Line by line, as many lines in both; white space at line ends and blank lines at the end do not count.

    A line that differs is still right when both consist of numbers only, each pair either two equal integers or, when
    one of the two is written as a decimal, within the tolerance.
    """
    lines, wanted = _lines(output.decode("utf-8", "replace")), _lines(expected)
    if len(lines) != len(wanted):
        return False
    return all(one == other or _same_numbers(one, other, tolerance) for one, other in zip(lines, wanted, strict=True))


def _lines(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.rstrip().split("\n")]
    return lines if lines != [""] else []


def _same_numbers(line: str, wanted: str, tolerance: float) -> bool:
    tokens, others = line.split(), wanted.split()
    if len(tokens) != len(others):
        return False
    return all(_same_number(one, other, tolerance) for one, other in zip(tokens, others, strict=True))


def _same_number(token: str, wanted: str, tolerance: float) -> bool:
    if len(token) > MAX_NUMBER or len(wanted) > MAX_NUMBER:
        return token == wanted
    if not (_NUMBER.fullmatch(token) and _NUMBER.fullmatch(wanted)):
        return False
    if _INTEGER.fullmatch(token) and _INTEGER.fullmatch(wanted):
        return int(token) == int(wanted)
    return close(float(token), float(wanted), tolerance)
