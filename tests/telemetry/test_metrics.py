"""Reductions merge to what the whole would give."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quatrain.telemetry.metrics import Last, Max, Mean, Min, Sum, merge_metrics

NUMBERS = st.lists(st.integers(-1000, 1000), min_size=1, max_size=9)


@given(left=NUMBERS, right=NUMBERS)
def test_two_parts_read_as_the_whole(left: list[int], right: list[int]) -> None:
    whole = left + right
    for kind, expected in ((Sum, sum(whole)), (Max, max(whole)), (Min, min(whole))):
        reduce = {Sum: sum, Max: max, Min: min}[kind]
        merged = merge_metrics({"x": kind(reduce(left))}, {"x": kind(reduce(right))})
        assert merged["x"].value == expected
    mean = merge_metrics({"x": Mean(sum(left), len(left))}, {"x": Mean(sum(right), len(right))})
    assert mean["x"].value == sum(whole) / len(whole)


def test_a_mean_of_parts_of_unequal_size_is_not_the_mean_of_their_means() -> None:
    assert merge_metrics({"x": Mean(1.0, 1)}, {"x": Mean(0.0, 3)})["x"].value == 0.25


def test_nothing_counted_is_not_a_zero() -> None:
    assert math.isnan(Mean(0, 0).value)
    assert Mean(0, 0).merge(Mean(3, 2)).value == 1.5


@pytest.mark.parametrize("kind", [Max, Min])
def test_nan_is_never_hidden(kind: type[Max] | type[Min]) -> None:
    nan = math.nan
    assert math.isnan(merge_metrics({"x": kind(1.0)}, {"x": kind(nan)})["x"].value)
    assert math.isnan(merge_metrics({"x": kind(nan)}, {"x": kind(1.0)})["x"].value)


def test_the_last_reading_wins() -> None:
    assert merge_metrics({"x": Last(1)}, {"x": Last(2), "y": Sum(1)}) == {"x": Last(2), "y": Sum(1)}


def test_one_name_has_one_reduction() -> None:
    with pytest.raises(TypeError, match="metric x: got Max, need Sum"):
        merge_metrics({"x": Sum(1)}, {"x": Max(1)})
