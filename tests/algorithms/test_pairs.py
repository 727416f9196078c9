"""Which answers are compared, how much each comparison counts, and what counts as equal."""

import pytest
import torch

from quatrain.algorithms.pairs import difference_metrics, groups_of, pairs_of, sample_values, without_ties
from quatrain.batch import build
from tests.algorithms.offline import group, numbered


def batch_of(*groups):
    return build(numbered([sample for one in groups for sample in one]))


def test_a_pair_and_a_ranking_in_the_order_of_the_batch():
    pairs = pairs_of(batch_of(group(4, [5], [[6], [7]], rank=(1, 0)), group(2, [5], [[8], [9], [10]], rank=(0, 2, 1))))
    assert list(zip(pairs.chosen_P.tolist(), pairs.rejected_P.tolist(), strict=True)) == [
        (1, 0),
        (2, 3),
        (2, 4),
        (4, 3),
    ]
    assert pairs.weight_P.tolist() == [1.0, 1 / 3, 1 / 3, 1 / 3]  # 1 / (K choose 2)
    assert not pairs.tie_P.any()


def test_ties_are_marked_and_are_not_among_the_decided():
    pairs = pairs_of(batch_of(group(0, [5], [[6], [7]], rank=(0, 0)), group(1, [5], [[8], [9]], rank=(0, 1))))
    assert pairs.tie_P.tolist() == [True, False]
    assert pairs.decided.chosen_P.tolist() == [2] and pairs.decided.rejected_P.tolist() == [3]
    assert pairs.decided.weight_P.tolist() == [1.0]


def test_a_side_without_the_other_is_an_error():
    samples = group(0, [5], [[6], [7]], rank=(0, 1))
    with pytest.raises(ValueError, match="need at least 2"):
        pairs_of(build(numbered(samples[:1])))


def test_groups_without_a_preference_are_left_out():
    samples = [*group(0, [5], [[6], [7]], rank=(0, 0)), *group(1, [5], [[6], [7], [8]], rank=(0, 1, 1))]
    assert {sample.group for sample in without_ties(samples)} == {1}
    assert groups_of(samples) == {0: [0, 1], 1: [2, 3, 4]}


def test_accuracy_is_of_those_that_differ_and_equal_ones_are_counted_apart():
    """1 right, 1 wrong, 1 equal up to rounding, and a tie that is asked nothing."""
    pairs = pairs_of(batch_of(*(group(n, [5], [[6], [7]], rank=(0, n < 3)) for n in range(4))))
    values_S = torch.tensor([1.0, 0.5, 0.0, 2.0, 1.0, 1.0 + 1e-7, 9.0, 0.0])
    found = difference_metrics("x", pairs, values_S, torch.full((8,), 1e-6))
    assert found["x/accuracy"].value == 0.5 and found["x/equal"].value == pytest.approx(1 / 3)
    assert difference_metrics("x", pairs, torch.zeros(8), torch.zeros(8)).keys() == {"x/equal"}


def test_numbers_of_a_sample_and_what_stands_for_missing_ones():
    batch = batch_of(group(0, [5], [[6], [7, 8]], rank=(0, 1), margin=(0.5, 0.5)))
    assert sample_values(batch, "margin").tolist() == [0.5, 0.5]
    assert sample_values(batch, "confidence", 1.0).tolist() == [1.0, 1.0]
    with pytest.raises(ValueError, match="stream head of prompt 0, completion 0: got none"):
        sample_values(batch, "head")
