import math
import re
from pathlib import Path

import pytest

from quatrain.config import SourceConfig
from quatrain.data.overlap import check_disjoint
from quatrain.data.sources import load_rows
from quatrain.errors import SettingError
from quatrain.registry import load_attribute

FILE = Path(__file__).parents[2] / "recipes" / "compare_numbers.py"
TASKS = ["larger_of_two", "largest_of_three", "word_sums"]


def task(name):
    return load_attribute(f"{FILE}:{name}", "source")


def rows(name, count=300, seed=0, **options):
    return load_rows(SourceConfig(source=f"{FILE}:{name}", options={"count": count, "seed": seed, **options}))


@pytest.mark.parametrize("name", TASKS)
def test_prompts_are_distinct_deterministic_and_follow_the_seed(name):
    first = rows(name)
    assert len({row.prompt for row in first}) == 300
    assert first == rows(name)
    assert first != rows(name, seed=1)


@pytest.mark.parametrize("name", TASKS)
def test_held_out_is_disjoint_whatever_the_seeds(name):
    check_disjoint(rows(name, 3000), rows(name, 500, split="held_out"))


@pytest.mark.parametrize("name", TASKS[:2])
def test_held_out_comparisons_are_not_trained_in_another_order(name):
    def numbers(row):
        return frozenset(re.findall(r"\d+", row.prompt))

    small = {"low": 10, "high": 40}
    train, held_out = rows(name, 300, **small), rows(name, 40, split="held_out", **small)
    assert not set(map(numbers, train)) & set(map(numbers, held_out))


@pytest.mark.parametrize("name", TASKS[:2])
def test_answer_is_the_largest(name):
    for row in rows(name):
        assert int(row.columns["answer"]) == max(map(int, re.findall(r"\d+", row.prompt)))


def test_word_sums_answers():
    for row in rows("word_sums", 1000):
        a, b = map(int, re.findall(r"\d+", row.prompt))
        away = any(words in row.prompt for words in ("gives away", "lost", "takes out", "needs"))
        assert int(row.columns["answer"]) == (a - b if away else a + b) >= 0


def test_space_sizes_are_large_enough_and_exact_when_small():
    assert task("space_size")("larger_of_two") == 990 * 989
    assert task("space_size")("largest_of_three") == 990 * 989 * 988
    assert task("space_size")("word_sums") == 40 * 30 * (4 * 81 + 4 * 45)
    assert all(task("space_size")(name) >= 20 * 4000 for name in TASKS)
    low, high = 1, 12
    found = {row.prompt for split in ("train", "held_out") for seed in range(200)
             for row in rows("larger_of_two", 8, seed, low=low, high=high, split=split)}  # fmt: skip
    assert len(found) == task("space_size")("larger_of_two", low, high) == math.perm(12, 2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"count": 10**6}, "options.count: got 1000000, need 1 to"),
        ({"count": 0}, "options.count: got 0"),
        ({"low": 5, "high": 5}, "options.count"),
        ({"split": "test"}, "options.split: got test, need train or held_out"),
        ({"sise": 3}, "options"),
    ],
)
def test_bad_options_are_one_clear_line(options, words):
    with pytest.raises(SettingError) as caught:
        rows("larger_of_two", **options)
    assert str(caught.value).startswith("prompts[0].options") and words in str(caught.value)


def test_both_orders_leave_nothing_to_answer_by_position() -> None:
    rows = task("larger_of_two")(40, seed=1, split="held_out", both_orders=True)
    assert len({row["prompt"] for row in rows}) == 40
    first, second = rows[0]["prompt"], rows[1]["prompt"]
    assert re.findall(r"\d+", first) == re.findall(r"\d+", second)[::-1]
    by_position = [task("choice")(re.findall(r"\d+", row["prompt"])[0], row["answer"]) for row in rows]
    assert sum(by_position) == 20
    with pytest.raises(SettingError, match="an even number"):
        task("larger_of_two")(3, seed=1, both_orders=True)


def test_without_credit_for_form() -> None:
    texts = ("It is 643, not 107", "107 is larger than 643", "I cannot say")
    assert [task("choice")(text, "643") for text in texts] == [1.0, 0.0, 0.5]
