"""Listed cases on prompts: special tokens exactly once, whatever the tokenizer adds by itself."""

from collections.abc import Sequence

import pytest

from quatrain.config import SourceConfig
from quatrain.data.chat import render
from quatrain.data.sources import Row
from quatrain.methods.online import to_samples
from quatrain.types import Prompt, Rollout, Trajectory

BOS, EOS = 1, 2


class Words:
    """A tokenizer of one token a word that puts `before` and `after` around every text it encodes."""

    chat_template = None
    bos_token_id, eos_token_id = BOS, EOS

    def __init__(self, before: Sequence[int] = (), after: Sequence[int] = (), add_bos_token: bool = False) -> None:
        self.before, self.after, self.add_bos_token = list(before), list(after), add_bos_token

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        bare = [10 + len(word) for word in text.split()]
        return [*self.before, *bare, *self.after] if add_special_tokens else bare


def ids(tokenizer: Words, text: str = "a bb") -> tuple[int, ...]:
    return render(Row(number=0, prompt=text, question=text, columns={}), SourceConfig(source="x.jsonl"),
                  tokenizer).token_ids  # fmt: skip


def test_case_c76_the_joined_sequence_has_one_bos_at_its_start() -> None:
    """The completion is never encoded again, so nothing can be put between it and the prompt."""
    prompt = Prompt(index=0, token_ids=ids(Words([BOS], [EOS])), text="a bb")
    trajectory = Trajectory.single_turn(prompt.token_ids, [13, EOS], [-1.0, -1.0], [1.0, 1.0], 0)
    rollout = Rollout(prompt=prompt, group=0, index=0, trajectories=(trajectory,), text="ccc", stop_reason="eos")
    (sample,) = to_samples([rollout])
    assert sample.token_ids.tolist() == [BOS, 11, 12, 13, EOS]
    assert sample.trained.tolist() == [False, False, False, True, True]


@pytest.mark.parametrize("tokenizer", [Words([BOS]), Words([BOS], [EOS]), Words(add_bos_token=True)])
def test_case_c77_a_model_that_needs_bos_gets_it_once(tokenizer: Words) -> None:
    assert ids(tokenizer) == (BOS, 11, 12)


@pytest.mark.parametrize("tokenizer", [Words(after=[EOS]), Words([BOS], [EOS])])
def test_case_c87_an_end_that_the_tokenizer_adds_does_not_move_the_boundary(tokenizer: Words) -> None:
    assert EOS not in ids(tokenizer) and ids(tokenizer)[-2:] == (11, 12)
