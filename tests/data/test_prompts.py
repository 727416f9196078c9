import json
import logging
import os
from pathlib import Path

import pytest

from quatrain.config import SourceConfig
from quatrain.data.mixture import SOURCE_STRIDE
from quatrain.data.prompts import PromptStream, held_out_prompts
from quatrain.errors import DataError, ResumeError, SettingError

DATA = Path(os.environ.get("QUATRAIN_DATA", Path(__file__).parents[2].parent / "shared" / "data"))


class Bytes:
    """A tokenizer whose tokens are bytes; counts what it was asked to encode."""

    chat_template = None
    bos_token_id = None

    def __init__(self):
        self.encoded = 0

    def encode(self, text, *, add_special_tokens=True):
        self.encoded += not add_special_tokens
        return list(text.encode())


def source(tmp_path, name, prompts, **settings):
    path = tmp_path / f"{name}.jsonl"
    rows = [prompt if isinstance(prompt, dict) else {"prompt": prompt} for prompt in prompts]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return SourceConfig(source=str(path), **settings)


def stream(sources, limit=100, **settings):
    return PromptStream(sources, Bytes(), settings.pop("seed", 0), limit, **settings)


def test_a_prompt_carries_its_row(tmp_path):
    rows = [{"prompt": "ab", "answer": "1", "task": "maths"}]
    (prompt,) = stream([source(tmp_path, "rows", rows, verifier_column="task", prefill="c")]).take(1)
    assert (prompt.index, prompt.text, prompt.token_ids, prompt.prefill) == (0, "abc", (97, 98, 99), "c")
    assert dict(prompt.columns) == {"answer": "1", "task": "maths"}
    assert (prompt.source, prompt.verifier) == ("rows", "maths")


def test_index_names_the_row_of_the_data_whatever_the_offset(tmp_path):
    first, second = source(tmp_path, "a", "pq"), source(tmp_path, "b", "rstu", offset=2, limit=2)
    prompts = stream([first, second]).take(4)
    assert {prompt.index: prompt.text for prompt in prompts} == {
        0: "p", 1: "q", SOURCE_STRIDE + 2: "t", SOURCE_STRIDE + 3: "u",
    }  # fmt: skip


def test_rendering_waits_until_a_prompt_is_taken(tmp_path):
    made = stream([source(tmp_path, "a", [f"p{i}" for i in range(50)])])
    assert made.tokenizer.encoded == 0
    made.take(3)
    assert made.tokenizer.encoded == 3
    assert len(made) == 50


def test_long_prompts_are_skipped_and_each_is_counted_once(tmp_path):
    made = stream([source(tmp_path, "a", ["a", "bbbb", "c", "ddddd", "eee"])], limit=3)
    for _ in range(3):  # epochs
        assert sorted(prompt.text for prompt in made.take(3)) == ["a", "c", "eee"]
    made.take(1)
    assert made.skipped_long == 2


def test_long_prompts_as_an_error_come_before_the_first_step(tmp_path):
    sources = [source(tmp_path, "a", ["a"]), source(tmp_path, "b", ["a", "bbbb"])]
    with pytest.raises(SettingError) as caught:
        stream(sources, limit=3, long_prompts="error")
    assert str(caught.value) == (
        "prompts[1]: got a prompt of 4 tokens (row 2 of b), need at most 3 (rollout.max_context - rollout.max_tokens); "
        "raise rollout.max_context, lower rollout.max_tokens, or set rollout.long_prompts=skip"
    )
    assert len(stream(sources, limit=4, long_prompts="error").take(3)) == 3


def test_a_source_with_nothing_short_enough_says_why(tmp_path):
    made = stream([source(tmp_path, "a", ["a"]), source(tmp_path, "long", ["bbbb", "ccccc"])], limit=3)
    with pytest.raises(DataError, match=r"all 2 prompts of long are too long: the shortest has 4 tokens .* leaves 3"):
        made.take(2)


def test_no_room_for_any_prompt(tmp_path):
    with pytest.raises(SettingError, match=r"rollout.max_tokens: got 0 tokens left for a prompt"):
        stream([source(tmp_path, "a", ["a"])], limit=0)


def test_unknown_verifier_in_a_column_is_found_at_the_start(tmp_path):
    sources = [source(tmp_path, "a", [{"prompt": "a", "task": "math"}], verifier_column="task")]
    with pytest.raises(SettingError, match=r"prompts\[0\].verifier_column: got 'math' in row 1.*'maths'"):
        stream(sources, verifiers=["maths", "code"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda _: {"seed": 1}, "seed was 0"),
        (lambda path: path.write_text('{"prompt": "x"}\n{"prompt": "z"}\n') and {}, "digest of the prompts"),
        (lambda path: path.write_text('{"prompt": "x"}\n') and {}, r"rows was \[2\]"),
    ],
)
def test_resume_refuses_another_order(tmp_path, change, words):
    sources = [source(tmp_path, "a", "xy")]
    state = stream(sources).state_dict()
    changed = stream(sources, **change(tmp_path / "a.jsonl"))
    with pytest.raises(ResumeError, match=words):
        changed.load_state_dict(state)


def test_held_out_prompts_are_all_rows_in_order(tmp_path):
    sources = [source(tmp_path, "a", "rq", limit=1), source(tmp_path, "b", "yx", offset=0)]
    prompts = held_out_prompts(sources, Bytes(), 10)
    assert [prompt.text for prompt in prompts] == ["r", "y", "x"]
    assert [prompt.index for prompt in prompts] == [0, SOURCE_STRIDE, SOURCE_STRIDE + 1]
    assert held_out_prompts([], Bytes(), 10) == []


def test_long_held_out_prompts(tmp_path, caplog):
    sources = [source(tmp_path, "a", ["a", "bbbb", "c"])]
    with caplog.at_level(logging.WARNING):
        assert [prompt.text for prompt in held_out_prompts(sources, Bytes(), 3)] == ["a", "c"]
    assert "held_out: 1 of 3 prompts are left out" in caplog.text
    with pytest.raises(SettingError, match=r"held_out\[0\]: got a prompt of 4 tokens \(row 2 of a\)"):
        held_out_prompts(sources, Bytes(), 3, "error")
    with pytest.raises(DataError, match="all 3 prompts are longer"):
        held_out_prompts(sources, Bytes(), 0)


@pytest.mark.parametrize(("name", "rows"), [("gsm8k/train", 7473), ("gsm8k/test", 1319), ("mawps/train", 1515)])
def test_real_data(name, rows):
    path = DATA / f"{name}.jsonl"
    if not path.is_file():
        pytest.skip(f"{path} is not there; set QUATRAIN_DATA to the folder that holds it")
    config = SourceConfig(source=str(path), template="{question}\nAnswer with a number.", columns={"gold": "answer"})
    made = stream([config], limit=10_000)
    assert len(made) == rows
    taken = made.take(rows)
    assert {prompt.index for prompt in taken} == set(range(rows))
    assert all(set(prompt.columns) >= {"question", "gold"} and "answer" not in prompt.columns for prompt in taken)
    assert taken[0].source == name.split("/")[0]
