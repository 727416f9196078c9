"""Shared by the tests of examples: rows in a file, a character tokenizer with a chat template, and what is trained."""

import json
from pathlib import Path
from typing import Any

import pytest

from quatrain.config import DataConfig, LengthConfig
from quatrain.data.examples import Example, ExampleStream
from quatrain.errors import SettingError
from tests.tiny import tiny_tokenizer

CHATML = (  # as SmolLM2's: a system message of its own, and a line break behind every end of turn
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nbe kind<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SYSTEM = "<|im_start|>system\nbe kind<|im_end|>\n"
TURNS = [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "b"},
    {"role": "user", "content": "c"},
    {"role": "assistant", "content": "d"},
]


def chat_tokenizer(template: str = CHATML) -> Any:
    """One token per character, special tokens and a chat template."""
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"})
    tokenizer.chat_template = template
    return tokenizer


def source(folder: Path, *rows: dict[str, Any], name: str = "rows", **settings: Any) -> DataConfig:
    """A file of rows."""
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return DataConfig(source=str(path), **settings)


def stream(
    sources: DataConfig | list[DataConfig], kind: Any = "sft", tokenizer: Any = None, positions: int = 1000,
    length: dict[str, Any] | None = None, **settings: Any,
) -> ExampleStream:  # fmt: skip
    """A stream over `sources`; without a tokenizer, the tiny one (no chat template)."""
    sources = sources if isinstance(sources, list) else [sources]
    tokenizer = tiny_tokenizer() if tokenizer is None else tokenizer
    return ExampleStream(sources, tokenizer, settings.pop("seed", 0), kind, LengthConfig(**(length or {})), positions,
                         **settings)  # fmt: skip


def shown(example: Example, tokenizer: Any = None) -> list[str]:
    """Text of every sample, with brackets around what is trained: `2+2=[4<eos>]`."""
    tokenizer = tiny_tokenizer() if tokenizer is None else tokenizer
    texts = []
    for sample in example.samples:
        text, inside = "", False
        for token, trained in zip(sample.token_ids.tolist(), sample.trained.tolist(), strict=True):
            text += "[" * (trained and not inside) + "]" * (inside and not trained) + tokenizer.decode([token])
            inside = trained
        texts.append(text + "]" * inside)
    return texts


def counts(made: ExampleStream) -> dict[str, int]:
    """What was counted, without the zeros."""
    return {name.split("/")[1]: int(metric.value) for name, metric in made.metrics().items() if metric.value}


def error(sources: Any, kind: str = "sft", tokenizer: Any = None, **settings: Any) -> str:
    """The one line that taking an example ends with."""
    with pytest.raises(SettingError) as caught:
        stream(sources, kind, tokenizer, **settings).take(1)
    assert "\n" not in str(caught.value)
    return str(caught.value)
