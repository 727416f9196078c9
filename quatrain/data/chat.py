"""From a row to token ids: the chat template rendered once, special tokens exactly where the model expects them."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from quatrain.config import SourceConfig
from quatrain.data.sources import Row
from quatrain.errors import SettingError


class Tokenizer(Protocol):
    """What is used of a transformers tokenizer (besides `chat_template`, `bos_token_id` and `eos_token_id`)."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`, never truncated."""
        ...

    def apply_chat_template(
        self, conversation: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool
    ) -> Any:
        """The conversation as one string, when `tokenize` is False."""
        ...


class Rendered(NamedTuple):
    """A prompt ready for the model; `text` ends with `prefill`, the part that is already the assistant's answer."""

    text: str
    token_ids: tuple[int, ...]
    prefill: str


def render(row: Row, source: SourceConfig, tokenizer: Tokenizer, setting: str = "prompts") -> Rendered:
    """Text, token ids and prefill of a row.

    With a chat template, the template alone decides about special tokens. Plain text gets those that the tokenizer
    puts *before* a text (BOS, once) and none of those that it puts after (an EOS would end the prompt).
    Raises SettingError when the row and the tokenizer do not go together.
    """
    chat = uses_chat(row, source, tokenizer, setting)
    text = _chat_text(row, source, tokenizer, setting) if chat else str(row.prompt)
    text, prefill = add_prefill(text, source.prefill)
    token_ids = tokenizer.encode(text, add_special_tokens=False) if chat else plain_ids(text, tokenizer)
    if not token_ids:
        raise SettingError(f"{setting}.prompt", f"{text!r} (row {row.number + 1})", "text that the tokenizer knows",
                           "it gives no tokens; remove the row")  # fmt: skip
    return Rendered(text, tuple(int(token) for token in token_ids), prefill)


def uses_chat(row: Row, source: SourceConfig, tokenizer: Tokenizer, setting: str) -> bool:
    """Whether the chat template applies: as set, else when the tokenizer has one."""
    has_template = bool(getattr(tokenizer, "chat_template", None))
    chat = has_template if source.chat is None else source.chat
    need, do = "a tokenizer with a chat template", "choose an instruct model, or give prompts as plain text"
    if chat and not has_template:
        raise SettingError(f"{setting}.chat", True, need, do)
    if not chat and not isinstance(row.prompt, str):
        raise SettingError(f"{setting}.prompt", f"messages in row {row.number + 1} without a chat template", need, do)
    if not chat and source.system is not None:
        raise SettingError(f"{setting}.system", source.system, need, "put it into the template instead")
    return chat


def _chat_text(row: Row, source: SourceConfig, tokenizer: Tokenizer, setting: str) -> str:
    from jinja2 import TemplateError  # as late as transformers does

    if isinstance(row.prompt, str):
        messages = [{"role": "user", "content": row.prompt}]
    else:
        messages = [dict(message) for message in row.prompt]
    if source.system is not None:
        kept = messages[1:] if messages[0]["role"] == "system" else messages
        messages = [{"role": "system", "content": source.system}, *kept]
    try:
        return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except TemplateError as error:
        roles = ", ".join(message["role"] for message in messages)
        raise SettingError(f"{setting}.prompt", f"messages of {roles} in row {row.number + 1}",
                           "a conversation that the chat template accepts", str(error)) from None  # fmt: skip


# a thought that a template opens (and perhaps closes again) as its very last words
_THOUGHT = re.compile(r"(?:<(think|thinking|thought|reasoning)>\s*(?:</\1>\s*)?|\[THINK\]\s*(?:\[/THINK\]\s*)?)\Z")


def add_prefill(text: str, prefill: str) -> tuple[str, str]:
    """`text` with `prefill` after it, and all of its end that belongs to the answer.

    A thought that `text` already opens is part of the answer and is not opened twice:
    `("...<think>\\n", "<think>\\nSo")` gives `("...<think>\\nSo", "<think>\\nSo")`.
    """
    match = _THOUGHT.search(text)
    opened = match[0] if match else ""
    if opened and prefill.lstrip().startswith(opened.strip()):
        prefill = prefill.lstrip().removeprefix(opened.strip())
        prefill = prefill.removeprefix(opened[len(opened.rstrip()) :]) if prefill.strip() else ""
    return text + prefill, opened + prefill


def plain_ids(text: str, tokenizer: Tokenizer) -> list[int]:
    """Token ids of plain text; what the tokenizer adds in front stays (BOS at most once), what it adds behind goes."""
    bare = tokenizer.encode(text, add_special_tokens=False)
    full = tokenizer.encode(text, add_special_tokens=True)
    start = _find(bare, full)
    token_ids = full[: start + len(bare)] if start is not None else bare
    bos = getattr(tokenizer, "bos_token_id", None)
    if bos is None:
        return token_ids
    if token_ids[:1] != [bos] and (getattr(tokenizer, "add_bos_token", False) or full[:1] == [bos]):
        return [bos, *token_ids]
    while token_ids[:2] == [bos, bos]:
        token_ids = token_ids[1:]
    return token_ids


def _find(part: Sequence[int], whole: Sequence[int]) -> int | None:
    """Where `part` first begins in `whole`."""
    return next((i for i in range(len(whole) - len(part) + 1) if whole[i : i + len(part)] == part), None)
