"""Small generated tasks for a first run: comparing numbers and one-step word problems.

Use as `source: recipes/compare_numbers.py:larger_of_two` with `options: {count: 4000, seed: 0, split: train}`. A
prompt belongs to `train` or to `held_out` by a hash of what it asks (about one in eight is held out), so the two never
share one whatever the seeds; for the comparisons not even in another order of the numbers. Rows: `prompt`, `answer`.
"""

import math
import random
import re
import zlib
from collections.abc import Callable

from quatrain.errors import SettingError, nearest

Row = dict[str, str]
HELD_OUT_OF = 8  # one question in so many is held out

NAMES = [
    "Sam", "Anna", "Ben", "Lucy", "Tom", "Mia", "Jack", "Emma", "Leo", "Ruth", "Max", "Nora", "Paul", "Ella", "Hugo",
    "Rosa", "Adam", "Clara", "Finn", "Grace", "Ivan", "Julia", "Karl", "Lena", "Mark", "Nina", "Oscar", "Petra",
    "Ravi", "Sara", "Theo", "Uma", "Victor", "Wendy", "Yusuf", "Zoe", "Alan", "Beth", "Carlos", "Dina",
]  # fmt: skip
THINGS = [
    "apples", "books", "coins", "pens", "cards", "shells", "stamps", "eggs", "marbles", "stickers", "pencils",
    "cookies", "balloons", "buttons", "flowers", "oranges", "plates", "cups", "toys", "rocks", "keys", "hats",
    "tickets", "lemons", "leaves", "beads", "candles", "ribbons", "puzzles", "photos",
]  # fmt: skip
PHRASES = {  # the answer is first + second, or first - second
    "{name} has {a} {things} and gets {b} more. How many {things} does {name} have?": 1,
    "{name} found {a} {things} in the morning and {b} in the evening. How many {things} did {name} find?": 1,
    "There are {a} {things} on the table. {name} adds {b} more. How many {things} are on the table now?": 1,
    "{name} buys {a} {things} and a friend gives {name} {b} more. How many {things} does {name} have?": 1,
    "{name} has {a} {things} and gives away {b}. How many {things} does {name} have left?": -1,
    "{name} had {a} {things} and lost {b} of them. How many {things} are left?": -1,
    "There are {a} {things} in a box. {name} takes out {b}. How many {things} are still in the box?": -1,
    "{name} needs {a} {things} and already has {b}. How many more {things} does {name} need?": -1,
}


def larger_of_two(
    count: int, seed: int, low: int = 10, high: int = 999, split: str = "train", both_orders: bool = False
) -> list[Row]:
    """`count` distinct questions "Which number is larger, a or b?" with low <= a, b <= high.

    With `both_orders` every pair is asked both ways round: an answer by position is right exactly half the time.
    """

    def row(a: int, b: int) -> Row:
        return {"prompt": f"Which number is larger, {a} or {b}?", "answer": str(max(a, b))}

    def make(rng: random.Random) -> tuple[str, Row]:
        a, b = rng.sample(range(low, high + 1), 2)
        a, b = (min(a, b), max(a, b)) if both_orders else (a, b)
        return f"{sorted((a, b))}", row(a, b)

    if not both_orders:
        return _distinct(make, count, seed, split, space_size("larger_of_two", low, high))
    if count % 2:
        raise SettingError("options.count", count, "an even number with both_orders", "add one")
    pairs = _distinct(make, count // 2, seed, split, space_size("larger_of_two", low, high) // 2)
    numbers = [[int(number) for number in re.findall(r"\d+", pair["prompt"])] for pair in pairs]
    return [turned for a, b in numbers for turned in (row(a, b), row(b, a))]


def largest_of_three(count: int, seed: int, low: int = 10, high: int = 999, split: str = "train") -> list[Row]:
    """`count` distinct questions "Which number is the largest: a, b or c?" with low <= a, b, c <= high."""

    def make(rng: random.Random) -> tuple[str, Row]:
        a, b, c = rng.sample(range(low, high + 1), 3)
        prompt = f"Which number is the largest: {a}, {b} or {c}?"
        return f"{sorted((a, b, c))}", {"prompt": prompt, "answer": str(max(a, b, c))}

    return _distinct(make, count, seed, split, space_size("largest_of_three", low, high))


def word_sums(count: int, seed: int, low: int = 1, high: int = 9, split: str = "train") -> list[Row]:
    """`count` distinct word problems with one sum or difference of numbers from low to high, never below zero."""
    phrases = list(PHRASES)

    def make(rng: random.Random) -> tuple[str, Row]:
        a, b = rng.randint(low, high), rng.randint(low, high)
        phrase = rng.choice(phrases)
        if PHRASES[phrase] < 0:
            a, b = max(a, b), min(a, b)
        prompt = phrase.format(name=rng.choice(NAMES), things=rng.choice(THINGS), a=a, b=b)
        return prompt, {"prompt": prompt, "answer": str(a + PHRASES[phrase] * b)}

    return _distinct(make, count, seed, split, space_size("word_sums", low, high))


def choice(completion: str, answer: str) -> float:
    """The first number of the completion, no credit for form: 1 when right, 0 when wrong, 0.5 when there is none.

    Naming either number at random, or in the order of the question, earns 0.5 on average, and so does saying neither.
    """
    found = re.search(r"\d+", completion)
    return 0.5 if found is None else float(found[0] == answer)


def space_size(task: str, low: int | None = None, high: int | None = None) -> int:
    """How many distinct prompts `task` has, both splits together (with the task's own range unless given).

    n numbers give n (n - 1) ordered pairs, n (n - 1) (n - 2) triples, n^2 sums and n (n + 1) / 2 differences.
    """
    defaults = {"larger_of_two": (10, 999), "largest_of_three": (10, 999), "word_sums": (1, 9)}
    if task not in defaults:
        raise SettingError("task", task, "a task of compare_numbers.py", nearest(task, defaults))
    low, high = defaults[task][0] if low is None else low, defaults[task][1] if high is None else high
    numbers = max(0, high - low + 1)
    if task != "word_sums":
        return math.perm(numbers, 2 if task == "larger_of_two" else 3)
    sums = sum(sign > 0 for sign in PHRASES.values())
    pairs = sums * numbers**2 + (len(PHRASES) - sums) * numbers * (numbers + 1) // 2
    return len(NAMES) * len(THINGS) * pairs


def _distinct(
    make: Callable[[random.Random], tuple[str, Row]], count: int, seed: int, split: str, space: int
) -> list[Row]:
    """The first `count` distinct rows of a split; `make` gives a row and the key that decides its split."""
    if split not in ("train", "held_out"):
        raise SettingError("options.split", split, "train or held_out", nearest(split, ("train", "held_out")))
    share = space // HELD_OUT_OF if split == "held_out" else space - space // HELD_OUT_OF
    too_many = SettingError("options.count", count, f"1 to {share // 2}, half of the distinct prompts of {split}",
                            "ask for fewer or widen low and high")  # fmt: skip
    if not 0 < count <= share // 2:
        raise too_many
    rng = random.Random(seed)
    rows: dict[str, Row] = {}
    for _ in range(1000 + 100 * count):  # in a tiny space the hash may give a split less than its share
        if len(rows) == count:
            return list(rows.values())
        key, row = make(rng)
        if (zlib.crc32(key.encode()) % HELD_OUT_OF == 0) == (split == "held_out"):
            rows[row["prompt"]] = row
    raise too_many
