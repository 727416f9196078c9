"""Examples: which tokens are trained, what is cut or left out, in which order they come, and that they never mix."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quatrain.batch import build
from quatrain.config import DataConfig, LengthConfig
from quatrain.data.examples import held_out_examples, split_share
from quatrain.data.mixture import SOURCE_STRIDE
from quatrain.data.overlap import check_disjoint, normalise
from quatrain.errors import DataError, ResumeError, SettingError
from quatrain.models.forward import token_outputs
from tests.data.rows import SYSTEM, TURNS, chat_tokenizer, counts, error, shown, source, stream
from tests.data.test_cases_prompts import BOS, Words
from tests.tiny import tiny_lm, tiny_tokenizer

# --- which tokens are trained -----------------------------------------------------------------------------------------


def test_prompt_and_completion_worked(tmp_path: Path) -> None:
    (example,) = stream(source(tmp_path, {"prompt": "2+2=", "completion": "4"})).take(1)
    (sample,) = example.samples
    characters = tiny_tokenizer()
    assert sample.token_ids.tolist() == [*characters.encode("2+2=4"), characters.eos_token_id]
    assert sample.trained.tolist() == [False] * 4 + [True] * 2
    assert (sample.prompt_length, sample.group, sample.completion, sample.label) == (4, 0, 0, "row 1 of rows, answer 1")
    assert (example.index, example.source, example.question, example.prompt, example.answers) == (
        0, "rows", "2+2=", "2+2=", ("4",),
    )  # fmt: skip


def test_text_is_trained_but_for_its_first_token(tmp_path: Path) -> None:
    (example,) = stream(source(tmp_path, {"text": "abc"})).take(1)
    assert shown(example) == ["a[bc<eos>]"]
    assert (example.question, example.samples[0].prompt_length) == ("abc", 1)


def test_a_bos_that_a_text_spells_out_comes_once(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"bos_token": "<s>"})
    tokenizer.add_bos_token = True
    for text in ("abc", "<s>abc"):
        assert shown(stream(source(tmp_path, {"text": text}), tokenizer=tokenizer).take(1)[0], tokenizer) == [
            "<s>[abc<eos>]"
        ]


def test_chat_prompt_ends_as_at_sampling_time_and_the_end_token_is_trained(tmp_path: Path) -> None:
    tokenizer = chat_tokenizer()
    (example,) = stream(source(tmp_path, {"prompt": "hi", "completion": "yo"}), tokenizer=tokenizer).take(1)
    asked = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert shown(example, tokenizer) == [asked + "[yo<|im_end|>]"]
    prompt_ids = tokenizer.encode(asked, add_special_tokens=False)
    assert example.samples[0].token_ids[: len(prompt_ids)].tolist() == prompt_ids


def test_every_assistant_turn_is_trained_with_its_end_and_nothing_else(tmp_path: Path) -> None:
    tokenizer = chat_tokenizer()
    (example,) = stream(source(tmp_path, {"messages": TURNS}), tokenizer=tokenizer).take(1)
    expected = (
        f"{SYSTEM}<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n[b<|im_end|>]\n"
        "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n[d<|im_end|>]"
    )
    assert shown(example, tokenizer) == [expected]
    assert example.question == "a"
    whole = tokenizer.apply_chat_template(TURNS, tokenize=False)  # the same tokens as of the whole conversation
    assert [*example.samples[0].token_ids, *tokenizer.encode("\n")] == tokenizer.encode(whole)


def test_a_message_can_be_left_out_of_the_loss(tmp_path: Path) -> None:
    tokenizer = chat_tokenizer()
    turns = [TURNS[0], {**TURNS[1], "train": False}, *TURNS[2:]]
    (example,) = stream(source(tmp_path, {"messages": turns}), tokenizer=tokenizer).take(1)
    assert "b<|im_end|>\n" in shown(example, tokenizer)[0] and shown(example, tokenizer)[0].count("[") == 1
    untrained = [TURNS[0], {**TURNS[1], "train": False}]
    assert "row 1" in error(source(tmp_path, {"messages": untrained}), tokenizer=tokenizer)


def test_messages_as_prompt_are_not_trained(tmp_path: Path) -> None:
    tokenizer = chat_tokenizer()
    row = {"prompt": TURNS[:3], "completion": [TURNS[3]]}
    (example,) = stream(source(tmp_path, row, system="so"), tokenizer=tokenizer).take(1)
    assert shown(example, tokenizer)[0].endswith("\nc<|im_end|>\n<|im_start|>assistant\n[d<|im_end|>]")
    assert example.prompt.startswith("<|im_start|>system\nso<|im_end|>\n<|im_start|>user\na<|im_end|>\n")
    assert example.question == "a\nb\nc"


def test_a_transcript_is_a_conversation_and_stays_one_without_a_template(tmp_path: Path) -> None:
    rows = source(tmp_path, {"text": "\n\nHuman: a\n\nAssistant: b\n\nHuman: c\n\nAssistant: d"})
    tokenizer = chat_tokenizer()
    as_messages = stream(source(tmp_path, {"messages": TURNS}, name="other"), tokenizer=tokenizer).take(1)[0]
    as_transcript = stream(rows, tokenizer=tokenizer).take(1)[0]
    assert as_transcript.samples[0].token_ids.tolist() == as_messages.samples[0].token_ids.tolist()
    characters = tiny_tokenizer()
    characters.add_tokens(["Human", "Assistant", "\n\n"])
    assert shown(stream(rows, tokenizer=characters).take(1)[0], characters) == [
        "\n\nHuman: a\n\nAssistant:[ b]\n\nHuman: c\n\nAssistant:[ d<eos>]"
    ]


def test_columns_are_named_by_the_recipe(tmp_path: Path) -> None:
    rows = source(
        tmp_path, {"question": "a", "answer": "b", "prompt": 7}, columns={"prompt": "question", "completion": "answer"}
    )
    assert shown(stream(rows).take(1)[0]) == ["a[b<eos>]"]
    rows = source(tmp_path, {"prompt": "a", "response": "b"})
    assert shown(stream(rows).take(1)[0]) == ["a[b<eos>]"]


def test_sft_on_pairs_trains_the_chosen_answer(tmp_path: Path) -> None:
    (example,) = stream(source(tmp_path, {"prompt": "a", "chosen": "b", "rejected": "c"})).take(1)
    assert shown(example) == ["a[b<eos>]"] and not example.samples[0].streams


def test_labelled_rows(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "completion": "b", "label": True}, {"prompt": "a", "completion": "", "label": 0}]
    made = stream(source(tmp_path, *rows), "labelled")
    examples = {example.index: example for example in made.take(2)}
    assert [shown(examples[index]) for index in (0, 1)] == [["a[b<eos>]"], ["a[<eos>]"]]
    assert [examples[index].samples[0].streams["desirable"].tolist() for index in (0, 1)] == [[1, 1], [0]]
    assert counts(made) == {"empty": 1}


def test_pairs_as_labelled_rows(tmp_path: Path) -> None:
    pair = {"prompt": "a", "chosen": "b", "rejected": "c"}
    made = stream(source(tmp_path, pair, {**pair, "tie": True}), "labelled")
    examples = {example.index: example for example in made.take(2)}
    assert {index: (shown(each)[0], each.samples[0].streams["desirable"][0]) for index, each in examples.items()} == {
        0: ("a[b<eos>]", 1), 1: ("a[c<eos>]", 0),
    }  # fmt: skip


# --- templates --------------------------------------------------------------------------------------------------------

OPENS = (
    "{% for m in messages %}{{ m['role'] + ':' + m['content'].split('</think>')[-1] + '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:<think>\n' }}{% endif %}"
)
FORGETS = (
    "{% for m in messages %}{% set words = m['content'] if loop.last else m['content'].split('</think>')[-1] %}"
    "{{ m['role'] + ':' + words + '<|im_end|>' }}{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)


@pytest.mark.parametrize("thought", ["<think>\nwhy</think>so", "why</think>so"])
def test_a_template_that_opens_a_thought_and_drops_it_keeps_the_answers_own_words(tmp_path: Path, thought: str) -> None:
    tokenizer = chat_tokenizer(OPENS)
    (example,) = stream(source(tmp_path, {"prompt": "a", "completion": thought}), tokenizer=tokenizer).take(1)
    assert shown(example, tokenizer)[0].replace("<unk>", "#") == (
        "user:a<|im_end|>assistant:#think#\n[why##think#so<|im_end|>]"
    )
    assert example.prompt + example.answers[0] == "user:a<|im_end|>assistant:<think>\nwhy</think>so<|im_end|>"
    assert "an answer without its thought in row 1" in error(
        source(tmp_path, {"prompt": "a", "completion": "so"}), tokenizer=tokenizer
    )


def test_a_template_that_forgets_thoughts_gives_an_example_for_each_turn(tmp_path: Path) -> None:
    tokenizer = chat_tokenizer(FORGETS)
    turns = [TURNS[0], {"role": "assistant", "content": "x</think>b"}, *TURNS[2:]]
    made = stream(source(tmp_path, {"messages": turns}), tokenizer=tokenizer)
    texts = {example.prompt: example.answers[0] for example in made.take(2)}
    assert texts == {
        "user:a<|im_end|>assistant:": "x</think>b<|im_end|>",
        "user:a<|im_end|>assistant:b<|im_end|>user:c<|im_end|>assistant:": "d<|im_end|>",
    }
    assert len(made) == 2
    pair = {"prompt": "a", "chosen": turns[1:], "rejected": [TURNS[3]]}
    assert "a chat template that writes earlier turns of row 1 anew" in error(
        source(tmp_path, pair), "pairs", tokenizer
    )


def test_a_template_without_an_end_of_turn_gets_the_tokenizers(tmp_path: Path) -> None:
    tokenizer = chat_tokenizer("{% for m in messages %}{{ m['role'] + ':' + m['content'] + '\n' }}{% endfor %}"
                               "{% if add_generation_prompt %}assistant:{% endif %}")  # fmt: skip
    (example,) = stream(source(tmp_path, {"messages": TURNS}), tokenizer=tokenizer).take(1)
    assert shown(example, tokenizer) == ["user:a\nassistant:[b\n]user:c\nassistant:[d\n<|im_end|>]"]


# --- length -----------------------------------------------------------------------------------------------------------


def test_answers_are_cut_at_their_end(tmp_path: Path) -> None:
    rows = source(tmp_path, {"prompt": "ab", "completion": "cdef"})
    made = stream(rows, length={"max_tokens": 5})
    assert shown(made.take(1)[0]) == ["ab[cde]"] and counts(made) == {"cut": 1}
    assert shown(stream(rows, length={"max_completion_tokens": 2}).take(1)[0]) == ["ab[cd]"]
    assert shown(stream(rows, positions=4).take(1)[0]) == ["ab[cd]"]
    made = stream(rows, length={"max_tokens": 7})
    assert shown(made.take(1)[0]) == ["ab[cdef<eos>]"] and counts(made) == {}


def test_too_long_rows_can_be_left_out(tmp_path: Path) -> None:
    rows = source(tmp_path, {"prompt": "ab", "completion": "cdef"}, {"prompt": "a", "completion": "b"})
    made = stream(rows, length={"max_tokens": 6, "too_long": "skip"})
    assert [example.index for example in made.take(3)] == [1, 1, 1]
    assert counts(made) == {"too_long": 1} and len(made) == 1 and made.longest == 3
    assert stream(rows).longest == 7


def test_a_limit_beyond_the_model(tmp_path: Path) -> None:
    message = error(source(tmp_path, {"text": "a"}), length={"max_tokens": 65}, positions=64)
    assert message == "length.max_tokens: got 65, need at most the model's 64 positions; lower it"


def test_case_c81_no_room_for_an_answer_is_counted_and_explained(tmp_path: Path) -> None:
    rows = [{"prompt": "abcd", "completion": "e"}, {"prompt": "a", "completion": "b"}]
    made = stream(source(tmp_path, *rows), length={"max_tokens": 4})
    assert [example.index for example in made.take(2)] == [1, 1] and len(made) == 1
    assert counts(made) == {"no_room": 1}
    with pytest.raises(DataError) as caught:
        stream(source(tmp_path, rows[0]), length={"max_tokens": 4}).take(1)
    assert str(caught.value) == (
        "data[0]: none of the 1 examples of rows can be trained on: 1 leave no room for an answer "
        "(length.max_tokens=4, the shortest prompt has 4 tokens); raise length.max_tokens, or give other data"
    )


def test_a_cut_in_a_later_turn_keeps_the_earlier_answers(tmp_path: Path) -> None:
    tokenizer = chat_tokenizer()
    rows = source(tmp_path, {"messages": TURNS})
    (whole,) = stream(rows, tokenizer=tokenizer).take(1)
    first = int(np.flatnonzero(whole.samples[0].trained)[0])
    (cut,) = stream(rows, tokenizer=tokenizer, length={"max_tokens": first + 4}).take(1)
    assert cut.samples[0].token_ids.tolist() == whole.samples[0].token_ids[: first + 4].tolist()
    assert cut.samples[0].num_tokens == 2


def test_rows_without_an_answer_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = stream(source(tmp_path, {"prompt": "a", "completion": " "}, {"prompt": "a", "completion": "b"}))
    with caplog.at_level(logging.WARNING):
        assert [example.index for example in made.take(3)] == [1, 1, 1]
    assert counts(made) == {"blank": 1} and caplog.text.count("no answer has text") == 1


# --- order ------------------------------------------------------------------------------------------------------------


def letters(folder: Path, name: str, count: int, **settings: Any) -> DataConfig:
    return source(folder, *({"prompt": f"{name}{i}", "completion": "x"} for i in range(count)), name=name, **settings)


def test_shares_are_exact_and_every_row_comes_once_an_epoch(tmp_path: Path) -> None:
    made = stream([letters(tmp_path, "a", 3, weight=3), letters(tmp_path, "b", 50)])
    indices = [example.index for example in made.take(12)]
    assert made.taken == {"a": 9, "b": 3} and len(made) == 53
    small = [index for index in indices if index < SOURCE_STRIDE]
    assert all(sorted(small[start : start + 3]) == [0, 1, 2] for start in (0, 3, 6))
    assert len({index for index in indices if index >= SOURCE_STRIDE}) == 3


def test_a_resumed_stream_goes_on_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    long = source(tmp_path, *({"prompt": "a" * i, "completion": "b"} for i in range(1, 12)), name="long")
    sources = [long, letters(tmp_path, "b", 7)]

    def fresh(**settings: Any) -> Any:
        return stream(sources, length={"max_tokens": 6}, **settings)

    made = fresh()
    made.take(9)
    state = json.loads(json.dumps(made.state_dict()))
    rest = [example.index for example in made.take(20)]
    resumed = fresh()
    resumed.load_state_dict(state)
    assert [example.index for example in resumed.take(20)] == rest
    assert resumed.metrics() == made.metrics() and counts(made) == {"cut": 1, "no_room": 6}
    assert fresh(seed=1).state_dict()["identity"] != state["identity"]
    with pytest.raises(ResumeError, match="data: seed was 0"):
        fresh(seed=1).load_state_dict(state)
    with pytest.raises(ResumeError, match="digest of the examples"):
        sources[1] = source(tmp_path, *({"prompt": f"c{i}", "completion": "x"} for i in range(7)), name="b")
        fresh().load_state_dict(state)


def test_rendering_waits_until_an_example_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = tiny_tokenizer()
    seen: list[str] = []
    encode = tokenizer.encode
    monkeypatch.setattr(tokenizer, "encode", lambda text, **settings: seen.append(text) or encode(text, **settings))
    made = stream(letters(tmp_path, "a", 9), tokenizer=tokenizer)
    assert seen == []
    made.take(2)
    assert seen.count("x") == 2


# --- held out ---------------------------------------------------------------------------------------------------------


def test_a_share_is_held_out_by_question(tmp_path: Path) -> None:
    rows = [{"prompt": f"q {i % 100}", "completion": f"{i}"} for i in range(300)]
    sources, held = [source(tmp_path, *rows)], split_share(0.2)
    kept = stream(sources, exclude=held)
    examples = held_out_examples(sources, tiny_tokenizer(), "sft", LengthConfig(), 100, only=held)
    check_disjoint(kept.rows(), examples)
    assert len(kept) + len(examples) == 300 and len(examples) in (45, 48, 51, 54, 57, 60, 63, 66, 69, 72, 75)
    assert [example.index for example in examples] == sorted(example.index for example in examples)
    assert ("q 1" in split_share(1.0), "q 1" in split_share(0.0)) == (True, False)
    with pytest.raises(SettingError, match="also trained on"):
        check_disjoint(stream(sources).rows(), examples)


def test_excluded_questions_and_nothing_left(tmp_path: Path) -> None:
    sources = letters(tmp_path, "a", 3)
    assert {example.index for example in stream(sources, exclude={normalise("A1.")}).take(2)} == {0, 2}
    with pytest.raises(DataError, match="every prompt is held out too"):
        stream(sources, exclude={"a0", "a1", "a2"} | {normalise(f"a{i}") for i in range(3)})
    with pytest.raises(DataError, match="held_out: no example is left"):
        held_out_examples([sources], tiny_tokenizer(), "sft", LengthConfig(), 100, only=set())


def test_held_out_examples_that_cannot_be_used_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sources = [source(tmp_path, {"prompt": "abcd", "completion": "e"}, {"prompt": "a", "completion": "b"})]
    with caplog.at_level(logging.WARNING):
        examples = held_out_examples(sources, tiny_tokenizer(), "sft", LengthConfig(max_tokens=4), 100)
    assert [example.index for example in examples] == [1]
    assert "held_out: 1 of 2 examples are left out: 1 no_room" in caplog.text


# --- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "kind", "words"),
    [
        ({"a": "x", "b": "y"}, "sft", "data[0].format: got columns a, b, need for this method one of: prompt + comp"),
        ({"prompt": "x", "completion": None}, "sft", "data[0].completion: got null in row 1"),
        ({"prompt": "x", "completion": 7.5}, "sft", "data[0].completion: got float in row 1"),
        ({"prompt": "", "completion": "y"}, "sft", "data[0].prompt: got an empty string in row 1"),
        ({"prompt": 3, "completion": "y"}, "sft", "data[0].prompt: got int in row 1"),
        ({"text": 3}, "sft", "data[0].text: got int in row 1, need text"),
        ({"messages": []}, "sft", "data[0].messages: got messages of no message in row 1"),
        ({"messages": TURNS[:3]}, "sft", "got messages of user, assistant, user in row 1"),
        ({"messages": TURNS[1:]}, "sft", "got messages of assistant, user, assistant in row 1"),
        ({"messages": [TURNS[0], TURNS[1], TURNS[1]]}, "sft", "no two assistant messages in a row"),
        ({"messages": [TURNS[0], {"role": "system", "content": "x"}, TURNS[1]]}, "sft", "only at the start"),
        ({"messages": [TURNS[0], {"role": "asistant", "content": "x"}]}, "sft", "did you mean 'assistant'?"),
        ({"messages": [TURNS[0], {"role": "assistant", "content": None}]}, "sft", "the texts role and content"),
        ({"messages": [TURNS[0], {**TURNS[1], "train": "no"}]}, "sft", "got train: 'no' in row 1, need true or false"),
        ({"prompt": TURNS[:2], "completion": "x"}, "sft", "got assistant as the last message in row 1"),
        ({"prompt": "x", "completion": TURNS[:2]}, "sft", "begins and ends with the assistant's message"),
        ({"prompt": "x", "completion": "\ud800"}, "sft", "half of a surrogate pair in row 1"),
        ({"prompt": "x", "completion": "y", "label": "good"}, "labelled", "data[0].label: got 'good' in row 1"),
        ({"prompt": "x", "completion": "y", "label": True}, "sft", "got columns prompt, completion, label, need"),
        ({"prompt": "x", "completion": "y"}, "pairs", "one of: chosen + rejected; prompt + completions"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line_with_the_row(tmp_path: Path, row: dict[str, Any], kind: str, words: str) -> None:
    assert words in error(source(tmp_path, row), kind, chat_tokenizer())


def test_a_missing_column_in_a_later_row(tmp_path: Path) -> None:
    rows = source(tmp_path, {"prompt": "x", "completion": "y"}, {"prompt": "x", "text": "y"}, offset=0)
    assert error(rows) == (
        "data[0].columns: got row 2 without completion, need a column completion in every row; this one has: prompt, "
        "text; name the column that holds it: columns: {completion: ...}"
    )
    assert "data[0].columns.prompt: got qestion, need a column of row 1" in error(
        source(tmp_path, {"question": "x"}, columns={"prompt": "qestion"})
    )


def test_messages_and_templates_must_go_together(tmp_path: Path) -> None:
    assert "messages in row 1 without a chat template" in error(source(tmp_path, {"messages": TURNS}))
    assert "data[0].chat: got True, need null" in error(
        source(tmp_path, {"text": "a"}, chat=True), tokenizer=chat_tokenizer()
    )
    assert "for this method one of" in error(source(tmp_path, {"text": "a"}, format="text"), "pairs")


def test_a_row_of_a_megabyte(tmp_path: Path) -> None:
    rows = [{"chosen": "a b" + end * 500_000, "rejected": "a c"} for end in ("b ", "c")]
    made = stream(source(tmp_path, *rows), "pairs", Words([BOS]), length={"max_tokens": 64})
    assert [len(example.samples[1].token_ids) for example in made.take(2)] == [4, 4]


# --- packing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("builder", ["packed", "shared"])
def test_packed_examples_do_not_see_each_other(tmp_path: Path, builder: Any) -> None:
    """Equal outputs packed or alone, and no position that may look at another example's tokens."""
    rows = [
        {"prompt": "ab", "completion": "cd"},
        {"prompt": "e", "completion": "fgh"},
        {"text": "ijklm", "prompt": "i", "completion": "j"},
    ]
    samples = [example.samples[0] for example in stream(source(tmp_path, *rows)).take(3)]
    lm = tiny_lm(dtype=torch.float64)
    together = build(samples, builder, row_tokens=64)
    assert together.input_ids.shape[0] == 1 and int(together.segment_BT.max()) == 3
    allowed, segment = together.attention_mask()[0, 0], together.segment_BT[0]
    assert not (allowed & (segment[:, None] != segment[None, :])).any()
    alone = torch.cat([token_outputs(lm, build([sample]), 1.0).logprobs_N for sample in samples])
    torch.testing.assert_close(token_outputs(lm, together, 1.0).logprobs_N, alone, rtol=1e-9, atol=1e-9)
