"""The turns of an example: read from messages, text or a transcript, checked, and split into prompt and answer."""

import contextlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

from quatrain.data.sources import Messages, check_characters, checked_messages, spoken
from quatrain.errors import SettingError, nearest

ROLES = ("system", "developer", "user", "assistant", "tool")
Turns = str | Messages


@dataclass(frozen=True, slots=True)
class RawRow:
    """A row as it was read, under the recipe's names for its columns; errors name its place and its number."""

    data: Mapping[str, Any]
    number: int
    setting: str

    def __contains__(self, column: str) -> bool:
        return column in self.data

    def get(self, column: str) -> Any:
        """The value of a column; SettingError when it is missing or null."""
        value = self.data.get(column)
        if value is None and column not in self.data:
            names = ", ".join(map(str, self.data))
            raise SettingError(f"{self.setting}.columns", f"row {self.number + 1} without {column}",
                               f"a column {column} in every row; this one has: {names}",
                               f"name the column that holds it: columns: {{{column}: ...}}")  # fmt: skip
        if value is None:
            raise self.mistake(column, "null", "a value", "remove the row, or fill in the column")
        return value

    def text(self, column: str) -> str:
        """The value of a column that must be text."""
        value = self.get(column)
        if not isinstance(value, str):
            raise self.mistake(column, type(value).__name__, "text", "convert it, or name another column")
        check_characters(value, f"{self.setting}.{column}", self.number)
        return value

    def real(self, column: str, low: float = -math.inf, high: float = math.inf) -> float:
        """The value of a column that must be a finite number from `low` to `high`."""
        return self.checked_real(self.get(column), column, low, high)

    def checked_real(self, value: Any, column: str, low: float = -math.inf, high: float = math.inf) -> float:
        """`value`, of `column`, as a finite number from `low` to `high`."""
        number = math.nan
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            with contextlib.suppress(OverflowError):
                number = float(value)
        if not math.isfinite(number) or not low <= number <= high:
            limits = f" from {low:g} to {high:g}" if low > -math.inf else ""
            raise self.mistake(column, repr(value), f"a finite number{limits}", "repair or remove the row")
        return number

    def items(self, column: str) -> list[Any]:
        """The value of a column that must be a list."""
        value = self.get(column)
        if not isinstance(value, (list, tuple)):
            raise self.mistake(column, type(value).__name__, "a list", "give one entry for each completion")
        return list(value)

    def mistake(self, column: str, got: str, need: str, do: str) -> SettingError:
        """The error for a value that cannot be used."""
        return SettingError(f"{self.setting}.{column}", f"{got} in row {self.number + 1}", need, do)


@dataclass(frozen=True, kw_only=True, slots=True)
class ExampleRow:
    """What a row says, before it is rendered: a prompt and its answers, with one number per answer and stream.

    `style` says how text becomes tokens: `chat` with the chat template where there is one, `plain` always as it stands,
    `transcript` like chat, but without a template as "\\n\\nHuman: ...\\n\\nAssistant: ...".
    """

    number: int  # for Example.index
    row: int  # in the source, for errors
    prompt: Turns
    answers: tuple[Turns, ...]
    streams: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    attribute: str | None = None
    style: Literal["chat", "plain", "transcript"] = "chat"

    @property
    def question(self) -> str:
        """What is asked, without system messages; plain text without a prompt is its own question."""
        return spoken(self.prompt) or "\n".join(map(spoken, self.answers))


def read_turns(raw: RawRow, column: str, value: Any) -> Messages:
    """Messages with known roles in an order that a chat template can write; keys that are null are left out."""
    place = f"{raw.setting}.{column}"
    messages = checked_messages(value, place, raw.number)
    check_characters(messages, place, raw.number)
    messages = tuple({key: part for key, part in message.items() if part is not None} for message in messages)
    for message in messages:
        if message["role"] not in ROLES:
            raise raw.mistake(column, f"the role {message['role']!r}", f"one of {', '.join(ROLES)}",
                              nearest(message["role"], ROLES))  # fmt: skip
        if not isinstance(message.get("train", True), bool):
            raise raw.mistake(column, f"train: {message['train']!r}", "true or false", "repair the message")
    roles = [message["role"] for message in messages]
    if any(role in ROLES[:2] for role in roles[1:]) or ("assistant", "assistant") in pairwise(roles):
        raise raw.mistake(column, f"messages of {', '.join(roles[:20])}", "a system message only at the start and no "
                          "two assistant messages in a row", "join or reorder the messages")  # fmt: skip
    return messages


def read_prompt(raw: RawRow, column: str = "prompt") -> Turns:
    """Text, or messages whose last one the model answers."""
    value = raw.get(column)
    if isinstance(value, str):
        text = raw.text(column)
        if not text or text.isspace():
            raise raw.mistake(column, "an empty string", "a prompt with text", "remove the row")
        return text
    messages = read_turns(raw, column, value)
    if not messages or messages[-1]["role"] not in ("user", "tool"):
        last = messages[-1]["role"] if messages else "no message"
        raise raw.mistake(column, f"{last} as the last message", "a last message that the model answers",
                          "end the prompt with the user's message")  # fmt: skip
    return messages


def read_answer(raw: RawRow, column: str, value: Any) -> Turns:
    """Text, or messages from the assistant's first to its last."""
    if isinstance(value, str):
        check_characters(value, f"{raw.setting}.{column}", raw.number)
        return value
    messages = read_turns(raw, column, value)
    if not messages or {messages[0]["role"], messages[-1]["role"]} != {"assistant"}:
        shown = ", ".join(message["role"] for message in messages[:20]) or "no message"
        raise raw.mistake(column, f"messages of {shown}", "an answer that begins and ends with the assistant's message",
                          "move what comes before it into the prompt, and leave out what comes after")  # fmt: skip
    return messages


def split_conversation(raw: RawRow, column: str, messages: Messages) -> tuple[Messages, Messages]:
    """The prompt up to the assistant's first message, and all from there on; the last one must be the assistant's."""
    first = next((index for index, message in enumerate(messages) if message["role"] == "assistant"), 0)
    asked = first > 0 and messages[first - 1]["role"] in ("user", "tool")
    if not asked or messages[-1]["role"] != "assistant":
        shown = ", ".join(message["role"] for message in messages[:20]) or "no message"
        raise raw.mistake(column, f"messages of {shown}", "a user's message first and an assistant's message last",
                          "cut the conversation so that it ends with an answer")  # fmt: skip
    return messages[:first], messages[first:]


def trained(message: Mapping[str, Any]) -> bool:
    """True for a message of the assistant that the loss counts."""
    return message["role"] == "assistant" and message.get("train", True)


def assistant_turns(answer: Turns) -> list[str]:
    """The texts that the assistant says in an answer."""
    if isinstance(answer, str):
        return [answer]
    return [message["content"] for message in answer if message["role"] == "assistant"]


# --- transcripts ------------------------------------------------------------------------------------------------------

_SPEAKER = re.compile(r"(?:\A\s*|\n\n)(Human|Assistant):")
_SPEAKERS = {"Human": "user", "Assistant": "assistant"}


def is_transcript(value: Any) -> bool:
    """True for text like "\\n\\nHuman: ...\\n\\nAssistant: ..." (the form of hh-rlhf)."""
    return isinstance(value, str) and value.lstrip().startswith("Human:") and "\n\nAssistant:" in value


def read_transcript(raw: RawRow, column: str) -> Messages:
    """The turns of a transcript; neighbouring ones of one speaker are joined, and what follows the last answer goes."""
    pieces = _SPEAKER.split(raw.text(column))
    if len(pieces) < 3 or pieces[0].strip() or pieces[1] != "Human":
        raise raw.mistake(column, repr(pieces[0][:40] or pieces[1]), "a transcript that begins with Human:",
                          'e.g. "\\n\\nHuman: Hi!\\n\\nAssistant: Hello."')  # fmt: skip
    messages: list[dict[str, str]] = []
    for speaker, text in zip(pieces[1::2], pieces[2::2], strict=True):
        role, content = _SPEAKERS[speaker], text.strip()
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += "\n\n" + content
        else:
            messages.append({"role": role, "content": content})
    if messages[-1]["role"] == "user" and len(messages) > 1:
        messages.pop()
    return tuple(messages)


def write_transcript(messages: Messages) -> str:
    """The inverse of `read_transcript`."""
    names = {role: speaker for speaker, role in _SPEAKERS.items()}
    return "".join(f"\n\n{names[message['role']]}: {message['content']}" for message in messages)
