"""Where a completion ends: the end token is trained, what pads a batch is not, nothing after the end is scored."""

from io import StringIO
from pathlib import Path

import numpy as np
import pytest

from quatrain.batch import build
from quatrain.config import SamplingConfig
from quatrain.methods.online import to_samples, train
from quatrain.rollout import Request
from quatrain.rollout.completion import Completion
from quatrain.telemetry.console import Console
from quatrain.telemetry.run_log import read_metrics
from quatrain.types import Prompt, Rollout
from tests.runs import recipe, rows
from tests.tiny import CHARACTERS, SPECIAL, tiny_tokenizer

TOKENIZER = tiny_tokenizer()
PAD, EOS = 0, 1


def ids(text: str) -> list[int]:
    return [len(SPECIAL) + CHARACTERS.index(character) for character in text]


def completed(tokens: list[int], eos_ids: set[int], limit: int = 10, index: int = 0) -> Rollout:
    """A completion that drew these tokens, as far as it goes."""
    prompt = Prompt(index=0, token_ids=(5, 6), text="ab")
    request = Request(prompt=prompt, group=0, index=index, seed=(0,), sampling=SamplingConfig(max_tokens=limit))
    completion = Completion.start(request, 64)
    for token in tokens:
        if completion.add(token, -1.0, 1.0, TOKENIZER, frozenset(eos_ids)):
            break
    return completion.rollout(0)


def test_case_c33_with_pad_and_end_token_the_same_the_end_is_trained_and_padding_is_not() -> None:
    short, long = completed([5, 6, PAD], {PAD}), completed([7, 8, 9, 10, PAD], {PAD}, index=1)
    for builder in ("padded", "packed", "shared"):
        batch = build(to_samples([short, long]), builder)  # type: ignore[arg-type]
        assert batch.target_N[batch.sample_N == 0].tolist() == [5, 6, PAD]
        assert batch.target_N[batch.sample_N == 1].tolist() == [7, 8, 9, 10, PAD]


def test_case_c34_without_an_end_token_all_tokens_and_no_padding_are_trained() -> None:
    cut, long = completed([5, 6, 7], {EOS}, limit=3), completed([7, 8, 9, 10, EOS], {EOS}, index=1)
    assert cut.stop_reason == "length"
    batch = build(to_samples([cut, long]), "padded")
    assert batch.input_ids.shape == (2, 7)
    assert batch.target_N[batch.sample_N == 0].tolist() == [5, 6, 7]


def test_case_c35_any_of_the_end_ids_ends_it() -> None:
    found = completed([5, 9, 6], {3, 9})
    assert (found.stop_reason, found.num_tokens) == ("eos", 2)
    assert found.trajectories[0].token_ids.tolist() == [5, 6, 5, 9]


def test_case_c36_nothing_after_the_end_is_text() -> None:
    clean, junk = (completed([*ids("right answer"), EOS, *more], {EOS}, 40) for more in ([], ids(" junk")))
    assert clean.text == junk.text == "right answer"


@pytest.mark.parametrize("pad_is_eos", [False, True])
def test_case_c33_a_policy_that_is_paid_for_stopping_learns_to_stop(tmp_path: Path, pad_is_eos: bool) -> None:
    wanted = recipe(
        tmp_path, train={"steps": 14, "prompts_per_step": 4}, rollout={"group_size": 8, "max_tokens": 8},
        checkpoint={"every": 0}, seed=1,
        verifiers={"default": {"short": {"kind": f"{tmp_path / 'short.py'}:Short"}}},
    )  # fmt: skip
    source = (tmp_path / "letter.py").read_text().replace("class Letter", "class Short")
    (tmp_path / "short.py").write_text(
        source.replace("self.share(one.text)) for", "float(one.stop_reason == 'eos') - one.num_tokens / 100) for")
    )
    rows(tmp_path / "train.jsonl", [f"say {letter}:" for letter in "abcdefgh"])
    if pad_is_eos:
        path = tmp_path / "model" / "tokenizer_config.json"
        path.write_text(path.read_text().replace('"<pad>"', '"<eos>"'))
    train(wanted, Console(StringIO(), terminal=False))
    ended = [row.metrics["rollout/stop_eos"] for row in read_metrics(tmp_path / "run")]
    assert np.mean(ended[-3:]) > 0.9 > 0.5 > np.mean(ended[:2])
