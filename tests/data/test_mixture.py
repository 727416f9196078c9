"""The order of rows over several sources, by hand."""

import pytest

from quatrain.data.mixture import Mixture, permutation
from quatrain.errors import ResumeError


def visit(mixture: Mixture, count: int) -> list[tuple[int, int]]:
    """(source, row) of the next `count` rows."""
    found = []
    for _ in range(count):
        source = mixture.due()
        position = mixture.position[source]
        found.append((source, mixture.row(source, position)))
        mixture.hand_out(source, position)
    return found


def test_the_source_furthest_behind_its_share_is_due() -> None:
    # behind after n rows: 2/3 (n + 1) - taken and 1/3 (n + 1) - taken; the first source wins a tie
    assert [source for source, _ in visit(Mixture([2, 1], [10, 10], seed=0), 6)] == [0, 1, 0, 0, 1, 0]


def test_every_row_comes_once_an_epoch_in_an_order_of_its_own() -> None:
    rows = [row for _, row in visit(Mixture([1], [8], seed=0), 16)]
    assert rows[:8] == [7, 6, 1, 3, 5, 2, 4, 0]  # pinned: a saved run must find its order again
    assert sorted(rows[8:]) == list(range(8)) and rows[8:] != rows[:8]


def test_rows_that_are_left_out_count_as_visited() -> None:
    mixture = Mixture([1], [4], seed=0)
    assert mixture.ahead(0) == range(0, 8)
    mixture.hand_out(0, 2)
    assert (mixture.taken, mixture.position, mixture.ahead(0)) == ([1], [3], range(3, 11))


def test_state_goes_on_and_other_data_is_refused() -> None:
    mixture = Mixture([2, 1], [5, 5], seed=3)
    visit(mixture, 4)
    state = mixture.state_dict(mixture.identity("rows", "abc"))
    resumed = Mixture([2, 1], [5, 5], seed=3)
    resumed.load_state_dict(state, resumed.identity("rows", "abc"), "data", "rows")
    assert visit(resumed, 9) == visit(mixture, 9)
    for other, digest, words in (
        (Mixture([2, 1], [5, 5], seed=4), "abc", "data: seed was 3"),
        (Mixture([1, 1], [5, 5], seed=3), "abc", "weights was"),
        (Mixture([2, 1], [5, 6], seed=3), "abc", "rows was"),
        (Mixture([2, 1], [5, 5], seed=3), "abd", "digest of the rows was 'abc'"),
    ):
        with pytest.raises(ResumeError, match=words):
            other.load_state_dict(state, other.identity("rows", digest), "data", "rows")


def test_permutation_is_pinned() -> None:
    # the order of a run must not change with a version of a library
    assert permutation(8, (0, 0, 0)).tolist() == [0, 3, 7, 5, 1, 2, 6, 4]
    assert permutation(8, (0, 0, 1)).tolist() != [0, 3, 7, 5, 1, 2, 6, 4]
