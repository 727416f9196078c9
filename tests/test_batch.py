"""Layouts: which logits predict which token, who sees whom, and how samples are cut into micro-batches."""

import numpy as np
import pytest
import torch

from quatrain.batch import build, split_by_tokens, unit_tokens
from quatrain.types import Sample

BUILDERS = ["padded", "packed", "shared"]


def sample(prompt, rest, group=0, number=0, trained=None, **streams):
    flags = [False] * len(prompt) + (trained or [True] * len(rest))
    return Sample(token_ids=np.array([*prompt, *rest]), trained=np.array(flags), group=group, completion=number,
                  prompt_length=len(prompt), streams=streams)  # fmt: skip


def group():
    return [
        sample([1, 2, 3], [4, 5], number=0),
        sample([1, 2, 3], [6], number=1),
        sample([1, 2, 3], [7, 8, 9], number=2),
    ]


def seen(batch, n):
    """Tokens (with positions) that the n-th trained token is predicted from, in the order of positions."""
    flat = int(batch.logit_index_N[n])
    row, column = divmod(flat, batch.input_ids.shape[1])
    allowed = batch.attention_mask()[row, 0, column]
    pairs = zip(batch.position_ids[row][allowed].tolist(), batch.input_ids[row][allowed].tolist(), strict=True)
    return sorted(pairs)


def test_padded_worked():
    batch = build(group())
    assert batch.input_ids.tolist() == [[1, 2, 3, 4, 5, 0], [1, 2, 3, 6, 0, 0], [1, 2, 3, 7, 8, 9]]
    assert batch.logit_index_N.tolist() == [2, 3, 8, 14, 15, 16]
    assert batch.target_N.tolist() == [4, 5, 6, 7, 8, 9]
    assert batch.sample_N.tolist() == [0, 0, 1, 2, 2, 2]
    assert batch.plain and batch.num_samples == 3


def test_packed_worked():
    batch = build(group(), "packed", row_tokens=9)
    assert batch.input_ids.tolist() == [[1, 2, 3, 4, 5, 1, 2, 3, 6], [1, 2, 3, 7, 8, 9, 0, 0, 0]]
    assert batch.position_ids[0].tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3]
    assert batch.segment_BT.tolist() == [[1] * 5 + [2] * 4, [1] * 6 + [0] * 3]
    assert batch.logit_index_N.tolist() == [2, 3, 7, 11, 12, 13]
    assert not batch.plain


def test_shared_worked():
    batch = build(group(), "shared")
    # the prompt once; the last token of a completion predicts nothing and is not read
    assert batch.input_ids.tolist() == [[1, 2, 3, 4, 7, 8]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 3, 4]]
    # segment 3, the second completion's, is empty: its only token is predicted by the prompt
    assert batch.segment_BT.tolist() == [[1, 1, 1, 2, 4, 4]]
    assert batch.prefix_BT.tolist() == [[1] * 6]
    assert batch.logit_index_N.tolist() == [2, 3, 2, 2, 4, 5]
    assert batch.target_N.tolist() == [4, 5, 6, 7, 8, 9]


def test_masks_worked():
    allowed = build(group(), "shared").attention_mask()[0, 0].int().tolist()
    assert allowed == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 1, 0, 1, 0],
        [1, 1, 1, 0, 1, 1],
    ]


def test_padding_sees_itself_alone_and_nobody_sees_it():
    batch = build(group())
    allowed, padding = batch.attention_mask()[:, 0], batch.segment_BT == 0
    for row, column in padding.nonzero().tolist():
        assert allowed[row, column].nonzero().flatten().tolist() == [column]
        assert allowed[row, :, column].sum() == 1


def mixed():
    """Several prompts, one-token completions, interleaved trained spans, a prompt of its own inside a group."""
    return [
        sample([1, 2], [3, 4, 5, 6, 7], group=0, number=0, trained=[True, False, False, True, True], x=[1, 2, 3]),
        sample([9], [8], group=1, number=3, x=[4]),
        sample([1, 2], [3], group=0, number=1, x=[5]),
        sample([1, 2, 4], [3, 3], group=0, number=2, x=[6, 7]),
        sample([9], [8, 8, 8], group=1, number=4, x=[8, 9, 10]),
        sample([1, 2], [5, 5], group=0, number=5, trained=[False, True], x=[11]),
        sample([], [5, 5, 6], group=2, number=6, trained=[False, True, True], x=[12, 13]),
        sample([], [7, 7], group=2, number=7, trained=[False, True], x=[14]),
    ]


@pytest.mark.parametrize("builder", BUILDERS)
@pytest.mark.parametrize("row_tokens", [None, 12, 100])
def test_every_trained_token_is_predicted_from_exactly_its_past(builder, row_tokens):
    samples = mixed()
    batch = build(samples, builder, row_tokens)
    n = 0
    for index, one in enumerate(samples):
        for column in np.flatnonzero(one.trained):
            assert seen(batch, n) == list(enumerate(one.token_ids[:column].tolist()))
            assert batch.target_N[n] == one.token_ids[column]
            assert batch.sample_N[n] == index
            n += 1
    assert n == len(batch.target_N)
    assert batch.streams["x"].tolist() == list(range(1, 15))
    assert batch.streams["x"].dtype == torch.float64


def test_only_streams_that_every_sample_has():
    samples = [sample([1], [2], x=[1.0], y=[1.0]), sample([1], [3], number=1, x=[2.0])]
    assert set(build(samples).streams) == {"x"}


@pytest.mark.parametrize("builder", BUILDERS)
def test_a_sample_without_trained_tokens_adds_none(builder):
    samples = [
        sample([1, 2], [3, 4], number=0),
        sample([1, 2], [], number=1),
        sample([1, 2], [3], number=2, trained=[False]),
    ]
    batch = build(samples, builder)
    assert batch.target_N.tolist() == [3, 4]
    assert batch.num_samples == 3


def test_no_samples():
    with pytest.raises(ValueError, match="got none"):
        build([])


def test_unit_tokens_are_what_the_row_takes():
    for members in (group(), group()[:1], [sample([1, 2], [3, 4]), sample([1, 2], [], number=1)]):
        unit = list(enumerate(members))
        assert build(members, "shared").input_ids.numel() == unit_tokens(unit)


@pytest.mark.parametrize("builder", BUILDERS)
@pytest.mark.parametrize("budget", [1, 8, 20, 1000])
def test_split_keeps_every_sample_once_and_the_budget(builder, budget):
    samples = mixed()
    batches = split_by_tokens(samples, budget, builder)
    assert sorted(s.completion for batch in batches for s in batch) == sorted(s.completion for s in samples)
    for batch in batches:
        units = {(s.group, s.token_ids[: s.prompt_length].tobytes()) for s in batch} if builder == "shared" else batch
        assert build(batch, builder).input_ids.numel() <= budget or len(units) == 1
    if budget == 1000:
        assert len(batches) == 1


def test_split_does_not_depend_on_arrival():
    samples = [sample([1] * (3 + i), [2] * (i + 1), group=i, number=i) for i in range(6)]
    one = split_by_tokens(samples, 24, "packed")
    other = split_by_tokens(samples[::-1], 24, "packed")
    assert [[s.completion for s in b] for b in one] == [[s.completion for s in b] for b in other]


def test_shared_split_keeps_a_prompt_together():
    samples = [sample([g] * 5, [7, 8], group=g, number=10 * g + i) for i in range(4) for g in range(3)]
    for batch in split_by_tokens(samples, 20, "shared"):
        assert len(batch) % 4 == 0
