"""Held-out sets by name."""

import json
from typing import Any

import pytest

from quatrain.data.tasks import HELD_OUT_SEED, ask_set, held_out_set
from quatrain.errors import SettingError
from quatrain.recipe_file import validate_recipe


def recipe(**changes: Any) -> dict[str, Any]:
    return {"model": {"path": "m"}, "prompts": [], **changes}


def asked(name: str, data: dict[str, Any]) -> Any:
    chosen = held_out_set(name)
    assert chosen is not None
    ask_set(data, chosen)
    return validate_recipe(data)


@pytest.fixture(autouse=True)
def data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUATRAIN_DATA", "/data")


def test_gsm8k() -> None:
    found = asked("gsm8k", recipe())
    assert found.held_out == found.prompts and found.held_out[0].source == "/data/gsm8k/test.jsonl"
    assert "{question}" in found.held_out[0].template and "####" in found.held_out[0].template
    assert {part: config.kind for part, config in found.verifiers["gsm8k"].items()} == {
        "correct": "numeric", "form": "numeric",
    }  # fmt: skip
    assert found.evaluation.max_tokens == found.rollout.max_tokens == 512


def test_mawps() -> None:
    found = asked("mawps", recipe(rollout={"max_tokens": 400, "stop": ["x"]}))
    assert found.held_out[0].prefill == "The answer is" and found.evaluation.max_tokens == 16
    assert found.rollout.stop == [], "3.5 is not cut at its point"


def test_reasoning_gym_with_options() -> None:
    found = asked("reasoning-gym:chain_sum?size=7&min_terms=2&max_terms=3", recipe())
    assert found.held_out[0].source == "reasoning-gym:chain_sum"
    assert found.held_out[0].options == {"size": 7, "seed": HELD_OUT_SEED, "min_terms": 2, "max_terms": 3}
    assert found.verifiers["chain_sum"]["correct"].kind == "reasoning_gym"
    assert held_out_set("reasoning-gym:chain_sum").options["seed"] == HELD_OUT_SEED  # type: ignore[union-attr]


def test_a_recipe_that_asks_the_set_keeps_its_words_and_verifiers() -> None:
    own = {"source": "/elsewhere/gsm8k/train.jsonl", "prompt": "question", "prefill": "<think>", "limit": 5}
    data = recipe(prompts=[own], verifiers={"mine": {"right": {"kind": "math"}}}, rollout={"max_tokens": 99})
    found = asked("gsm8k", data)
    assert found.held_out[0].source == "/data/gsm8k/test.jsonl" and found.held_out[0].prefill == "<think>"
    assert found.held_out[0].limit is None and found.held_out[0].template is None
    assert list(found.verifiers) == ["mine"] and found.rollout.max_tokens == 99


def test_held_out_words_come_before_those_of_training() -> None:
    sources = [{"source": "reasoning-gym:chain_sum", "prefill": prefill, "options": {"seed": 0, "max_terms": 3}}
               for prefill in ("train", "test")]  # fmt: skip
    data = recipe(prompts=sources[:1], held_out=sources[1:], verifiers={"a": {"b": {"kind": "numeric"}}})
    found = asked("reasoning-gym:chain_sum", data)
    assert found.held_out[0].prefill == "test"
    assert found.held_out[0].options == {"seed": HELD_OUT_SEED, "size": 100, "max_terms": 3}


def test_other_sources_are_no_named_sets() -> None:
    for name in ("rows.jsonl", "/data/rows.jsonl", "hf:openai/gsm8k", "my.py:rows", "folder/file.parquet"):
        assert held_out_set(name) is None


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gsm9k", "--task: got gsm9k, need a known set (gsm8k, mawps, reasoning-gym:TASK), FILE.jsonl"),
        ("reasoning-gym:chain_sum?size", "--task: got size, need key=value after the question mark"),
        ("reasoning-gym:chain_sum?size=[", "--task: got size=[, need key=value after the question mark"),
    ],
)
def test_a_wrong_name_is_one_line(name: str, words: str) -> None:
    with pytest.raises(SettingError) as caught:
        held_out_set(name)
    assert str(caught.value).startswith(words) and "\n" not in str(caught.value)


def test_without_the_data_folder_the_line_says_what_to_export(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QUATRAIN_DATA")
    with pytest.raises(SettingError, match="need the environment variable QUATRAIN_DATA"):
        asked("mawps", recipe())


def test_the_sections_are_plain_data() -> None:
    data = recipe()
    chosen = held_out_set("gsm8k")
    assert chosen is not None
    ask_set(data, chosen)
    assert json.loads(json.dumps(data)) == data
    assert data["prompts"][0] is not data["held_out"][0]
