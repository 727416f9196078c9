"""From a row to token ids: the chat template rendered once, special tokens exactly where the model expects them."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from quatrain.config import DataConfig, SourceConfig
from quatrain.data.sources import Messages, Row
from quatrain.errors import SettingError


class Tokenizer(Protocol):
    """What is used of a transformers tokenizer (besides `chat_template`, `bos_token_id` and `eos_token_id`)."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`, never truncated."""
        ...

    def apply_chat_template(
        self, conversation: list[dict[str, Any]], *, tokenize: bool, add_generation_prompt: bool
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
    chat = uses_chat(row.prompt, row.number, source, tokenizer, setting)
    text = str(row.prompt)
    if chat:
        text = chat_text(as_messages(row.prompt, source.system), row.number, tokenizer, setting)
    text, prefill = add_prefill(text, source.prefill)
    token_ids = tokenizer.encode(text, add_special_tokens=False) if chat else plain_ids(text, tokenizer)
    if not token_ids:
        raise SettingError(f"{setting}.prompt", f"{text!r} (row {row.number + 1})", "text that the tokenizer knows",
                           "it gives no tokens; remove the row")  # fmt: skip
    return Rendered(text, tuple(int(token) for token in token_ids), prefill)


def uses_chat(
    prompt: str | Messages, number: int, source: SourceConfig | DataConfig, tokenizer: Tokenizer, setting: str
) -> bool:
    """Whether the chat template applies to row `number`: as set, else when the tokenizer has one."""
    has_template = bool(getattr(tokenizer, "chat_template", None))
    chat = has_template if source.chat is None else source.chat
    need, do = "a tokenizer with a chat template", "choose an instruct model, or give prompts as plain text"
    if chat and not has_template:
        raise SettingError(f"{setting}.chat", True, need, do)
    if not chat and not isinstance(prompt, str):
        raise SettingError(f"{setting}.prompt", f"messages in row {number + 1} without a chat template", need, do)
    if not chat and source.system is not None:
        raise SettingError(f"{setting}.system", source.system, need, "put it into the template instead")
    return chat


def as_messages(prompt: str | Messages, system: str | None) -> Messages:
    """A prompt as messages, its system message replaced by `system` when there is one."""
    messages: Messages = ({"role": "user", "content": prompt},) if isinstance(prompt, str) else prompt
    if system is None:
        return messages
    kept = messages[1:] if messages[0]["role"] == "system" else messages
    return ({"role": "system", "content": system}, *kept)


def chat_text(
    messages: Messages, number: int, tokenizer: Tokenizer, setting: str, *, add_generation_prompt: bool = True
) -> str:
    """The messages of row `number` as the chat template writes them. Raises SettingError where it refuses them."""
    from jinja2 import TemplateError  # as late as transformers does

    conversation = [dict(message) for message in messages]
    try:
        return tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=add_generation_prompt)
    except TemplateError as error:
        roles = ", ".join(message["role"] for message in messages)
        raise SettingError(f"{setting}.prompt", f"messages of {roles} in row {number + 1}",
                           "a conversation that the chat template accepts", str(error)) from None  # fmt: skip


# a thought that a template opens (and perhaps closes again) as its very last words
THOUGHT = re.compile(r"(?:<(think|thinking|thought|reasoning)>\s*(?:</\1>\s*)?|\[THINK\]\s*(?:\[/THINK\]\s*)?)\Z")


def add_prefill(text: str, prefill: str) -> tuple[str, str]:
    """`text` with `prefill` after it, and all of its end that belongs to the answer.

    A thought that `text` already opens is part of the answer and is not opened twice:
    `("...<think>\\n", "<think>\\nSo")` gives `("...<think>\\nSo", "<think>\\nSo")`.
    """
    match = THOUGHT.search(text)
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
