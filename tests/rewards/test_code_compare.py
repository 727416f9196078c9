"""Comparing what came back: values by type and value, outputs line by line, in bounded time."""

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quatrain.rewards.code_compare import equals, matches, same_output
from quatrain.rewards.code_inside.frames import MARK, frames
from quatrain.rewards.code_inside.values import NotPlain, from_bytes, pack, to_bytes, unpack

NAN, INF = float("nan"), float("inf")
scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
    | st.complex_numbers(allow_nan=False)
)  # fmt: skip
keys = st.none() | st.booleans() | st.integers() | st.text() | st.tuples(st.integers(), st.text())
plain = st.recursive(
    scalars,
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(keys, inner) | st.sets(keys)
    | st.frozensets(keys),
    max_leaves=20,
)  # fmt: skip


@settings(max_examples=40)
@given(plain)
def test_a_value_survives_the_wire(value: Any) -> None:
    packed = from_bytes(to_bytes(pack(value)))
    assert unpack(packed) == value
    assert type(unpack(packed)) is type(value)
    assert equals(packed, value)


@settings(max_examples=40)
@given(plain, plain)
def test_equality_is_pythons(answer: Any, expected: Any) -> None:
    assert equals(pack(answer), expected) == (answer == expected)


@pytest.mark.parametrize(
    ("answer", "expected", "asserted", "as_json"),
    [
        (1, 1, True, True),
        (1, True, True, False),
        (True, 1, True, False),
        (1, 1.0, True, True),
        (1.0000001, 1, False, True),
        (20000, 20001, False, False),
        (10**400, 10**400 + 1, False, False),
        (10**400, 1.0, False, False),
        (NAN, NAN, False, False),
        (INF, INF, True, False),
        ([1, 2], (1, 2), False, True),
        ((1, 2), [1, 2], False, True),
        ([1, [2.0000001]], [1, [2]], False, True),
        ({1}, [1], False, False),
        ({1, 2}, {2, 1}, True, True),
        ({"a": 0.1 + 0.2}, {"a": 0.3}, False, True),
        ({"a": 1, "b": 2}, {"a": 1}, False, False),
        ("1", 1, False, False),
        ("\ud800", "\ud800", True, True),
        (None, False, False, False),
        (b"x", "x", False, False),
    ],
)
def test_values(answer: Any, expected: Any, asserted: bool, as_json: bool) -> None:
    assert equals(pack(answer), expected) is asserted
    assert matches(pack(answer), expected, 1e-6) is as_json


def test_subclasses_arrive_as_plain_data() -> None:
    class Text(str):
        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 0

    assert not equals(pack(Text("0")), "1")
    assert type(unpack(pack(Text("0")))) is str
    for strange in (object(), print, iter([]), type):
        with pytest.raises(NotPlain):
            pack(strange)


@pytest.mark.parametrize(
    "packed",
    [None, [], ["?"], ["i", 5], ["i"], ["i", "zz"], ["f", "x"], ["B", 2], ["d", [["i", "1"]]], ["S", ["l"]], ["s", 1],
     [["i", "1"]], ["c", "0x1p+0"], ["t", 1]],
)  # fmt: skip
def test_what_no_honest_sender_writes_is_refused(packed: Any) -> None:
    with pytest.raises(NotPlain):
        unpack(packed)


def test_messages_with_numbers_objects_and_bottomless_nesting_are_refused() -> None:
    for data in (b"9" * 60_000, b"[1.5]", b'{"a": 1}', b"[" * 60_000, b"nan", b"[NaN]", b"\xff", b""):
        with pytest.raises(NotPlain):
            from_bytes(data)


def test_work_is_bounded_by_what_was_expected() -> None:
    """Numbers that all hash alike make a dictionary or set of n entries cost n squared."""
    same_hash = [["i", f"{k * (2**61 - 1):x}"] for k in range(30_000)]
    started = time.monotonic()
    assert not equals(["S", *same_hash], {1, 2})
    assert not equals(["d", *[[one, ["n"]] for one in same_hash]], {1: 2})
    with pytest.raises(NotPlain):
        equals(["S", ["F", *same_hash], ["n"]], {1, 2})
    deep: list[Any] = ["l"]
    for _ in range(500):
        deep = ["l", deep]
    assert not equals(deep, [[]])
    assert time.monotonic() - started < 2.0


def test_frames_are_found_among_other_output_up_to_a_broken_one() -> None:
    def frame(message: Any) -> bytes:
        data = to_bytes(message)
        return MARK + len(data).to_bytes(4, "big") + data

    assert frames(b"noise" + frame([1]) + b"\x00" + frame([2]) + b"noise") == ([[1], [2]], True)
    assert frames(frame([1]) + frame([2])[:-1]) == ([[1]], False)
    assert frames(frame([1]) + MARK + b"\xff\xff\xff\xff" + frame([2])) == ([[1]], False)
    assert frames(b"") == ([], True)


@pytest.mark.parametrize(
    ("output", "expected", "same"),
    [
        ("0.333333", "0.333333333333", True),
        ("3.0000001", "3", True),
        ("20000", "20001", False),
        ("0.3334", "0.3333", False),
        ("1e-9", "0", True),
        ("5\n", "5", True),
        ("5  \n\n", "5\n", True),
        ("5\n6", "5", False),
        ("5", "5\n6", False),
        ("\n5", "5", False),
        ("1 2 3", "1 2 3.0", True),
        ("1 2", "1 2 3", False),
        ("yes 1.0", "yes 1", False),
        ("Yes", "yes", False),
        ("nan", "nan", True),
        ("nan", "1.0", False),
        ("1e999", "1e998", False),
        ("inf", "1e999", False),
        ("007", "7", True),
        ("9" * 5000, "9" * 5000, True),
        ("9" * 5000, "9" * 4999 + "8", False),
        ("", "", True),
        ("", "0", False),
        ("\u0661", "1", False),
    ],
)
def test_d10_outputs(output: str, expected: str, same: bool) -> None:
    assert same_output(output.encode(), expected, 1e-6) is same


def test_d10_without_tolerance_decimals_are_equal_by_value() -> None:
    assert same_output(b"0.50", "0.5", 0.0)
    assert not same_output(b"0.5000001", "0.5", 0.0)
