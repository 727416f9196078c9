"""The order of prompts: what holds for every seed, mixture and point of interruption."""

import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quatrain.config import SourceConfig
from quatrain.data.mixture import permutation
from quatrain.data.prompts import PromptStream


class Letters:
    chat_template = None
    bos_token_id = None

    def encode(self, text, **_):
        return list(text.encode())


MAX_ROWS, MAX_TOKENS = 12, 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files of 1 to MAX_ROWS rows; every fourth row, beginning with the third, is too long."""
    made = tmp_path_factory.mktemp("sources")
    for count in range(1, MAX_ROWS + 1):
        lines = [json.dumps({"prompt": "too long" if i % 4 == 2 else f"{i:02d}"}) + "\n" for i in range(count)]
        (made / f"{count}.jsonl").write_text("".join(lines))
    return made


def usable(count):
    return {i for i in range(count) if i % 4 != 2}


def build(folder, mixture, seed):
    sources = [SourceConfig(source=f"{folder}/{count}.jsonl", weight=weight) for count, weight in mixture]
    return PromptStream(sources, Letters(), seed, MAX_TOKENS)


def indices(prompts):
    return [prompt.index for prompt in prompts]


mixtures = st.lists(st.tuples(st.integers(1, MAX_ROWS), st.sampled_from([0.1, 1.0, 2.5, 7.0])), min_size=1, max_size=4)
seeds = st.integers(0, 2**31)


@settings(max_examples=60)
@given(mixture=mixtures, seed=seeds, before=st.integers(0, 40), sizes=st.lists(st.integers(0, 7), max_size=5))
def test_resuming_anywhere_continues_exactly(folder, mixture, seed, before, sizes):
    straight = build(folder, mixture, seed)
    expected = indices(straight.take(before + sum(sizes)))
    stopped = build(folder, mixture, seed)
    assert indices(stopped.take(before)) == expected[:before]
    state = json.loads(json.dumps(stopped.state_dict()))
    stopped.take(5)  # what comes after the save must not leak into it
    resumed = build(folder, mixture, seed)
    resumed.load_state_dict(state)
    assert [index for size in sizes for index in indices(resumed.take(size))] == expected[before:]
    assert resumed.skipped_long == straight.skipped_long
    assert resumed.state_dict() == straight.state_dict()


@settings(max_examples=60)
@given(count=st.integers(1, MAX_ROWS), seed=seeds, epochs=st.integers(1, 4))
def test_every_epoch_has_each_prompt_exactly_once(folder, count, seed, epochs):
    made = build(folder, [(count, 1.0)], seed)
    rows = usable(count)
    for _ in range(epochs):
        assert sorted(indices(made.take(len(rows)))) == sorted(rows)


@settings(max_examples=60)
@given(mixture=mixtures, seed=seeds, total=st.integers(1, 120))
def test_shares_follow_the_weights_and_rows_of_a_source_are_balanced(folder, mixture, seed, total):
    made = build(folder, mixture, seed)
    taken = made.take(total)
    weights = [weight for _, weight in mixture]
    for number, (count, weight) in enumerate(mixture):
        own = [prompt.index % 2**40 for prompt in taken if prompt.index // 2**40 == number]
        assert abs(len(own) - total * weight / sum(weights)) <= max(1, len(mixture) - 1)
        assert set(own) <= usable(count)
        seen = Counter(own)
        assert max(seen.values(), default=0) - min((seen[row] for row in usable(count)), default=0) <= 1


def test_order_depends_on_seed_and_epoch_and_source(folder):
    first = indices(build(folder, [(12, 1.0)], 0).take(18))
    assert first != indices(build(folder, [(12, 1.0)], 1).take(18))
    assert first[:9] != first[9:]
    twice = indices(build(folder, [(12, 1.0), (12, 1.0)], 0).take(18))
    assert [i for i in twice if i < 2**40] == first[:9]
    assert [i - 2**40 for i in twice if i >= 2**40] != first[:9]


def test_the_order_is_mixed():
    """Over many seeds each row comes first about equally often (chi-squared, 7 degrees of freedom, p = 1e-4)."""
    counts = Counter(int(permutation(8, (seed, 0, 0))[0]) for seed in range(4000))
    assert sum((counts[row] - 500) ** 2 / 500 for row in range(8)) < 29.9
