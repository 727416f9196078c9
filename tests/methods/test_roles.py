"""Which models a critic may start from."""

from pathlib import Path

import pytest

from quatrain.methods.roles import same_tokenizer
from tests.tiny import save_tiny, tiny_lm, tiny_tokenizer


@pytest.mark.parametrize(("changes", "same"), [
    ({}, True),
    ({"pad_token": "<|pad|>"}, True),  # added for padding; no text becomes it
    ({"additional_special_tokens": ["<tool>"]}, False),
], ids=["equal", "padding", "another token"])  # fmt: skip
def test_a_padding_token_of_one_side_alone_is_no_difference(tmp_path: Path, changes: dict, same: bool) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens(changes)
    save_tiny(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert same_tokenizer(str(tmp_path), tiny_lm()) is same


def test_the_same_tokens_under_other_numbers_differ(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    text = (tmp_path / "tokenizer.json").read_text()
    (tmp_path / "tokenizer.json").write_text(text.replace('"a": 3', '"a": 4').replace('"b": 4', '"b": 3', 1))
    assert not same_tokenizer(str(tmp_path), tiny_lm())
