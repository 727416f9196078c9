"""Pairs and rankings: what is the prompt, which answer is better, and the listed cases of preference data."""

import logging
from pathlib import Path
from typing import Any

import pytest

from quatrain.batch import build
from quatrain.data.examples import Example
from quatrain.errors import DataError, SettingError
from tests.data.rows import SYSTEM, TURNS, chat_tokenizer, counts, error, shown, source, stream
from tests.data.test_cases_prompts import BOS, EOS, Words

PAIR = {"prompt": "a", "chosen": "b", "rejected": "c"}
ASKED = f"{SYSTEM}<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"


def one(folder: Path, row: dict[str, Any], kind: str = "pairs", tokenizer: Any = None, **settings: Any) -> Example:
    return stream(source(folder, row), kind, tokenizer, **settings).take(1)[0]


def stream_of(example: Example, name: str) -> list[float]:
    """The one value per sample, which is the same at all of its tokens."""
    for sample in example.samples:
        assert len(set(sample.streams[name].tolist())) == 1
    return [sample.streams[name][0] for sample in example.samples]


# --- pairs ------------------------------------------------------------------------------------------------------------


def test_a_pair_worked(tmp_path: Path) -> None:
    example = one(tmp_path, PAIR)
    assert shown(example) == ["a[b<eos>]", "a[c<eos>]"]
    assert stream_of(example, "rank") == [0, 1]
    assert [(sample.prompt_length, sample.completion) for sample in example.samples] == [(1, 0), (1, 1)]
    assert set(example.samples[0].streams) == {"rank"}


@pytest.mark.parametrize(
    "row",
    [
        PAIR,
        {"prompt": [TURNS[0]], "chosen": "b", "rejected": "c"},
        {"prompt": [TURNS[0]], "chosen": [TURNS[1]], "rejected": [{"role": "assistant", "content": "c"}]},
        {"prompt": "a", "chosen": TURNS[:2], "rejected": [TURNS[0], {"role": "assistant", "content": "c"}]},
        {"chosen": TURNS[:2], "rejected": [TURNS[0], {"role": "assistant", "content": "c"}], "score_chosen": 3.0},
        {"chosen": "\n\nHuman: a\n\nAssistant: b", "rejected": "\n\nHuman: a\n\nAssistant: c"},
        {"prompt": "\n\nHuman: a\n\nAssistant:", "chosen": " b", "rejected": " c"},
    ],
    ids=["text", "messages+text", "messages", "binarised", "implicit", "transcript", "transcript prompt"],
)
def test_every_form_of_a_pair_gives_the_same_tokens(tmp_path: Path, row: dict[str, Any]) -> None:
    tokenizer = chat_tokenizer()
    example = one(tmp_path, row, tokenizer=tokenizer)
    assert shown(example, tokenizer) == [f"{ASKED}[b<|im_end|>]", f"{ASKED}[c<|im_end|>]"]
    assert example.question == "a"


@pytest.mark.parametrize(
    ("chosen", "rejected", "expected"),
    [
        ("who is it: paul did", "who is it: peter", ["who is it:[ paul did<eos>]", "who is it:[ peter<eos>]"]),
        ("a b", "a c", ["a[ b<eos>]", "a[ c<eos>]"]),
        ("a b", "a b c", ["a[ b<eos>]", "a[ b c<eos>]"]),
        ("so is it", "so it is", ["so[ is it<eos>]", "so[ it is<eos>]"]),
    ],
)  # fmt: skip
def test_texts_without_a_prompt_share_what_they_begin_with(
    tmp_path: Path, chosen: str, rejected: str, expected: list[str]
) -> None:
    for tokenizer in (None, chat_tokenizer()):  # never in a chat template: nobody said who speaks
        example = one(tmp_path, {"chosen": chosen, "rejected": rejected}, tokenizer=tokenizer)
        wanted = [text.replace("<eos>", "<|im_end|>") if tokenizer else text for text in expected]
        assert shown(example, tokenizer) == wanted


def test_texts_that_begin_differently_need_a_bos(tmp_path: Path) -> None:
    row = {"chosen": "a", "rejected": "b"}
    assert "data[0].prompt: got nothing in row 1 (the answers begin differently)" in error(
        source(tmp_path, row), "pairs"
    )
    example = one(tmp_path, row | {"chosen": "aa"}, tokenizer=Words([BOS]))
    assert [sample.token_ids.tolist() for sample in example.samples] == [[BOS, 12, EOS], [BOS, 11, EOS]]


def test_conversations_that_part_early_are_trained_on_all_their_own_turns(tmp_path: Path) -> None:
    tokenizer = chat_tokenizer()
    other = [TURNS[0], {"role": "assistant", "content": "e"}]
    example = one(tmp_path, {"chosen": TURNS, "rejected": other}, tokenizer=tokenizer)
    assert shown(example, tokenizer) == [
        f"{ASKED}[b<|im_end|>]\n<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n[d<|im_end|>]",
        f"{ASKED}[e<|im_end|>]",
    ]
    longer = one(tmp_path, {"chosen": TURNS, "rejected": TURNS[:2]}, tokenizer=tokenizer)
    assert shown(longer, tokenizer)[1] == f"{ASKED}[b<|im_end|>]"


def test_neighbouring_turns_of_one_speaker_in_a_transcript_are_joined(tmp_path: Path) -> None:
    tokenizer = chat_tokenizer()
    opened = "\n\nHuman: a\n\nHuman: b\n\nAssistant: c"
    example = one(tmp_path, {"chosen": opened, "rejected": opened + "d\n\nHuman: e"}, tokenizer=tokenizer)
    assert example.question == "a\n\nb"
    assert [text.partition("assistant\n")[2] for text in shown(example, tokenizer)] == [
        "[c<|im_end|>]",
        "[cd<|im_end|>]",
    ]


def test_ties_margins_and_confidence(tmp_path: Path) -> None:
    rows = [PAIR | {"tie": True}, PAIR | {"margin": 0.5}, PAIR | {"confidence": 0.75}, PAIR]
    made = stream(source(tmp_path, *rows), "pairs")
    tie, margin, confidence, plain = sorted(made.take(4), key=lambda example: example.index)
    assert stream_of(tie, "rank") == [0, 0] and counts(made) == {"ties": 1}
    assert stream_of(margin, "margin") == [0.5, 0.5]
    assert stream_of(confidence, "confidence") == [0.75, 0.75]
    for example in (tie, plain):  # rows that say nothing have what changes nothing
        assert (stream_of(example, "margin"), stream_of(example, "confidence")) == ([0, 0], [1, 1])


# --- rankings ---------------------------------------------------------------------------------------------------------


def test_rankings_by_rank_or_score(tmp_path: Path) -> None:
    row = {"prompt": "q", "completions": ["a", "b", "c"]}
    ranked = one(tmp_path, row | {"ranks": [3, 1, 1]})
    assert shown(ranked) == ["q[a<eos>]", "q[b<eos>]", "q[c<eos>]"]
    assert stream_of(ranked, "rank") == [1, 0, 0]
    assert stream_of(one(tmp_path, row | {"scores": [0.1, 7, -2]}), "rank") == [1, 0, 2]


def test_scores_of_attributes_make_a_ranking_each(tmp_path: Path) -> None:
    row = {"prompt": "q", "completions": ["a", "b"], "scores": {"help": [1, 2], "form": [3, 3]}}
    made = stream(source(tmp_path, row), "scores")
    assert made.attributes == ("help", "form") and len(made) == 2
    examples = sorted(made.take(2), key=lambda example: example.index)
    assert [(stream_of(each, "head"), stream_of(each, "rank")) for each in examples] == [
        ([0, 0], [1, 0]),
        ([1, 1], [0, 0]),
    ]
    chosen = stream(source(tmp_path, row), "scores", attributes=("form",))
    assert [stream_of(each, "head") for each in chosen.take(1)] == [[0, 0]] and len(chosen) == 1
    assert "algorithm.attributes: got tone, need attributes that the data name: help, form" in error(
        source(tmp_path, row), "scores", attributes=("tone",)
    )


def test_pairs_can_name_their_attribute(tmp_path: Path) -> None:
    rows = [PAIR | {"attribute": "form"}, PAIR | {"attribute": "help"}]
    made = stream(source(tmp_path, *rows), "scores", attributes=("help", "form"))
    assert {example.index: stream_of(example, "head") for example in made.take(2)} == {0: [1, 1], 1: [0, 0]}
    assert "data[0].attribute: got none in row 1, need one of help, form" in error(
        [source(tmp_path, PAIR), source(tmp_path, *rows, name="other")], "scores", attributes=("help", "form")
    )


def test_rows_of_one_prompt_with_a_score_per_attribute(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [
        {"prompt": "q", "response": "a", "helpfulness": 3, "verbosity": 1},
        {"prompt": "p", "response": "x", "helpfulness": 2, "verbosity": 2},
        {"prompt": "q", "response": "b", "helpfulness": 4, "verbosity": 1},
    ]
    with caplog.at_level(logging.WARNING):
        made = stream(source(tmp_path, *rows), "scores")
    assert made.attributes == ("helpfulness", "verbosity") and len(made) == 2
    assert "1 of 2 prompts have a single response" in caplog.text
    examples = sorted(made.take(2), key=lambda example: example.index)
    assert [stream_of(each, "rank") for each in examples] == [[1, 0], [0, 0]]
    assert examples[0].answers == ("a", "b")


# --- reward models ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("builder", ["padded", "packed", "shared"])
def test_scores_are_read_at_the_last_real_token(tmp_path: Path, builder: Any) -> None:
    example = one(tmp_path, PAIR | {"rejected": "cd"}, "scores")
    assert shown(example) == ["ab<eos>[<eos>]", "acd<eos>[<eos>]"]
    assert stream_of(example, "rank") == [0, 1]
    batch = build(example.samples, builder)
    read = batch.input_ids.reshape(-1)[batch.logit_index_N]
    places = batch.position_ids.reshape(-1)[batch.logit_index_N]
    assert (read.tolist(), places.tolist()) == ([1, 1], [2, 3])


def test_scores_leave_a_position_for_the_token_behind(tmp_path: Path) -> None:
    example = one(tmp_path, PAIR | {"chosen": "bcdefg"}, "scores", positions=5)
    assert shown(example) == ["abcd[d]", "ac<eos>[<eos>]"]


# --- listed cases -----------------------------------------------------------------------------------------------------


def test_case_c76_bos_only_at_the_start_of_both_sides(tmp_path: Path) -> None:
    row = {"prompt": "a bb", "chosen": "ccc", "rejected": "dddd"}
    for tokenizer in (Words([BOS]), Words([BOS], [EOS]), Words(add_bos_token=True)):  # and C87: no EOS at the boundary
        example = one(tmp_path, row, tokenizer=tokenizer)
        assert [sample.token_ids.tolist() for sample in example.samples] == [
            [BOS, 11, 12, 13, EOS], [BOS, 11, 12, 14, EOS],
        ]  # fmt: skip
        assert example.samples[0].prompt_length == 3


def test_case_c82_each_side_is_cut_on_its_own(tmp_path: Path) -> None:
    example = one(tmp_path, {"prompt": "q", "chosen": "abc", "rejected": "d" * 500}, length={"max_tokens": 40})
    assert shown(example) == ["q[abc<eos>]", f"q[{'d' * 39}]"]


@pytest.mark.parametrize("kind", ["pairs", "scores"])
def test_case_c83_both_sides_keep_to_the_limit_and_to_one_prompt(tmp_path: Path, kind: str) -> None:
    row = {"prompt": "q" * 7, "chosen": "a" * 9, "rejected": "b" * 2}
    example = one(tmp_path, row, kind, length={"max_tokens": 10})
    first, second = example.samples
    assert [len(sample.token_ids) - (kind == "scores") for sample in example.samples] == [10, 10]
    assert first.token_ids[:7].tolist() == second.token_ids[:7].tolist() and first.prompt_length == 7


def test_case_c84_identical_sides_are_left_out_also_after_a_cut(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [PAIR | {"rejected": "b"}, PAIR | {"chosen": "bbbc", "rejected": "bbbd"}, PAIR, PAIR | {"tie": True}]
    made = stream(source(tmp_path, *rows), "pairs", length={"max_tokens": 4})
    with caplog.at_level(logging.WARNING):
        assert {example.index for example in made.take(4)} == {2, 3}
    assert counts(made) == {"identical": 2, "ties": 1} and len(made) == 2
    assert caplog.text.count("two answers are the same tokens") == 1
    with pytest.raises(DataError, match=r"none of the 1 examples of rows can be trained on: 1 have identical answers"):
        stream(source(tmp_path, rows[0]), "pairs").take(1)


def test_an_answer_that_stands_twice_in_a_ranking_is_kept_once(tmp_path: Path) -> None:
    example = one(tmp_path, {"prompt": "q", "completions": ["a", "b", "a"], "ranks": [0, 1, 2]})
    assert shown(example) == ["q[a<eos>]", "q[b<eos>]"] and stream_of(example, "rank") == [0, 1]


def test_case_c85_an_empty_side_is_warned_of_and_two_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [PAIR | {"rejected": ""}, PAIR | {"chosen": "", "rejected": ""}]
    made = stream(source(tmp_path, *rows), "pairs")
    with caplog.at_level(logging.WARNING):
        example = next(example for example in made.take(2) if example.index == 0)
    assert shown(example) == ["a[b<eos>]", "a[<eos>]"]
    assert counts(made) == {"empty": 1, "blank": 1} and len(made) == 1
    assert "row 1 of rows: an answer is empty" in caplog.text and "row 2 of rows: no answer has text" in caplog.text


# --- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"chosen": "a b", "rejected": None}, "data[0].rejected: got null in row 1"),
        ({"chosen": "a b", "rejected": TURNS}, "got list beside chosen as str in row 1, need two texts or two lists"),
        (PAIR | {"tie": 1}, "data[0].tie: got 1 in row 1, need true or false"),
        (PAIR | {"margin": "big"}, "data[0].margin: got 'big' in row 1, need a finite number"),
        (PAIR | {"margin": True}, "data[0].margin: got True in row 1, need a finite number"),
        (PAIR | {"confidence": 1.5}, "data[0].confidence: got 1.5 in row 1, need a finite number from 0 to 1"),
        ({"chosen": TURNS, "rejected": [TURNS[2], TURNS[3]]}, "begins otherwise than rejected in row 1"),
        ({"chosen": TURNS[:3], "rejected": TURNS}, "data[0].chosen: got messages of user, assistant, user in row 1"),
        ({"prompt": "q", "completions": "ab", "ranks": [0, 1]}, "data[0].completions: got str in row 1, need a list"),
        ({"prompt": "q", "completions": ["a"], "ranks": [0]}, "data[0].completions: got 1 in row 1, need at least 2"),
        ({"prompt": "q", "completions": ["a", "b"], "ranks": [0]}, "data[0].ranks: got 1 numbers in row 1"),
        ({"prompt": "q", "completions": ["a", "b"], "scores": [0, None]}, "data[0].scores: got None in row 1"),
        ({"prompt": "q", "completions": ["a", 3], "ranks": [0, 1]}, "data[0].completions: got int in row 1"),
        ({"prompt": "q", "completions": ["a", "b"]}, "row 1 without scores"),
    ],
)  # fmt: skip
def test_mistakes_in_comparisons_are_one_line(tmp_path: Path, row: dict[str, Any], words: str) -> None:
    assert words in error(source(tmp_path, row), "pairs", chat_tokenizer())


def test_a_format_that_is_set_must_fit(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"data\[0\].columns: got row 1 without completions"):
        stream(source(tmp_path, PAIR, format="ranking"), "pairs")
    assert shown(one(tmp_path, PAIR)) == shown(stream(source(tmp_path, PAIR, format="preference"), "pairs").take(1)[0])
