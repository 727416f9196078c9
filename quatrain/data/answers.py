"""From a prompt and its answers to token ids, with the assistant's tokens marked: what training reads of an example."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from quatrain.config import DataConfig
from quatrain.data.chat import THOUGHT, Tokenizer, add_prefill, as_messages, chat_text, plain_ids, uses_chat
from quatrain.data.conversation import ExampleRow, Turns, trained, write_transcript
from quatrain.data.sources import Messages
from quatrain.errors import SettingError

_MARK = "an answer of this length"  # stands for an answer when a template is asked what it writes behind one


class Piece(NamedTuple):
    """A stretch of text that becomes tokens by itself, so that no token reaches from the prompt into the answer."""

    text: str
    trained: bool


class Answer(NamedTuple):
    """One answer after its prompt; `trained` marks the assistant's tokens, those that end its turns included."""

    text: str
    token_ids: list[int]
    trained: list[bool]


class Written(NamedTuple):
    """A prompt as at sampling time, and the answers that continue it."""

    prompt: str
    prompt_ids: list[int]
    answers: list[Answer]


class Writer:
    """Writes examples for one tokenizer; an answer is read until prompt and answer have more than `limit` tokens."""

    def __init__(self, tokenizer: Tokenizer, limit: int) -> None:
        self.tokenizer, self.limit = tokenizer, limit
        self.bos_id: int | None = getattr(tokenizer, "bos_token_id", None)
        self.eos_id: int | None = getattr(tokenizer, "eos_token_id", None)
        special = {token.content for token in getattr(tokenizer, "added_tokens_decoder", {}).values() if token.special}
        self._ends = tuple(special | {getattr(tokenizer, "eos_token", None) or "\0"})  # texts that can end a turn

    def write(self, row: ExampleRow, source: DataConfig, setting: str) -> Written:
        """The row as tokens. Raises SettingError when it and the tokenizer do not go together."""
        pieces: Sequence[Iterable[Piece]]
        if self._uses_chat(row, source, setting):
            prompt = as_messages(row.prompt, source.system)
            text = chat_text(prompt, row.row, self.tokenizer, setting)
            prompt_ids = self.tokenizer.encode(text, add_special_tokens=False)
            pieces = [_chat_pieces(self, prompt, text, _turns(answer), row.row, setting) for answer in row.answers]
        else:
            text, pieces = _plain_pieces(row)
            prompt_ids = plain_ids(text, self.tokenizer)
        answers = [self._answer(parts, prompt_ids) for parts in pieces]
        if not prompt_ids:  # a token is needed to predict the first from
            if len(answers) > 1:
                raise SettingError(f"{setting}.prompt", f"nothing in row {row.row + 1} (the answers begin differently)",
                                   "a prompt, as the tokenizer has no BOS", "give it in a column prompt")  # fmt: skip
            prompt_ids = answers[0].token_ids[:1]
            answers = [Answer(answers[0].text, answers[0].token_ids[1:], answers[0].trained[1:])]
        return Written(text, prompt_ids, answers)

    def grows(self) -> bool:
        """Whether the chat template keeps what it wrote as a conversation goes on (True without a template).

        Templates that leave the thoughts out of earlier turns do not.
        """
        if not getattr(self.tokenizer, "chat_template", None):
            return True
        answer = {"role": "assistant", "content": "<think>\na\n</think>\n\nb"}
        prompt: Messages = ({"role": "user", "content": "c"},)
        try:
            text = chat_text(prompt, 0, self.tokenizer, "")
            list(_chat_pieces(self, prompt, text, (answer, *prompt, answer), 0, ""))
        except SettingError:
            return False
        return True

    def closed(self, text: str) -> str:
        """`text` of a turn up to the token that ends it, when there is one."""
        bare = text.rstrip()
        return bare if bare.endswith(self._ends) else text

    def _uses_chat(self, row: ExampleRow, source: DataConfig, setting: str) -> bool:
        if row.style == "plain":
            for name, value in (("chat", source.chat or None), ("system", source.system)):
                if value is not None:
                    raise SettingError(f"{setting}.{name}", value, "null: this source holds text as it stands",
                                       "remove it, or give prompts and answers as messages")  # fmt: skip
            return False
        written: Iterable[Turns] = () if row.style == "transcript" else (row.prompt, *row.answers)
        messages = next((turns for turns in written if not isinstance(turns, str)), "")
        return uses_chat(messages, row.row, source, self.tokenizer, setting)

    def _answer(self, pieces: Iterable[Piece], prompt_ids: list[int]) -> Answer:
        """Tokens of the pieces; an end token follows them where the last one does not end with one."""
        text, token_ids, marks = "", list[int](), list[bool]()
        for piece in pieces:
            text += piece.text
            part = self.tokenizer.encode(piece.text, add_special_tokens=False)
            if prompt_ids == part[:1] == [self.bos_id]:  # text that spells out its BOS
                part = part[1:]
            token_ids += part
            marks += [piece.trained] * len(part)
            if len(prompt_ids) + len(token_ids) > self.limit:
                return Answer(text, token_ids, marks)
        if self.eos_id is not None and not text.endswith(self._ends):
            token_ids.append(self.eos_id)
            marks.append(piece.trained)
        return Answer(text, token_ids, marks)


def _plain_pieces(row: ExampleRow) -> tuple[str, list[Iterable[Piece]]]:
    """Prompt and answers as they stand, or as a transcript."""
    if row.style != "transcript":
        return str(row.prompt), [[Piece(str(answer), True)] for answer in row.answers]
    assert not isinstance(row.prompt, str)
    opened = "\n\nAssistant:"
    return write_transcript(row.prompt) + opened, [list(_spoken(_turns(answer), opened)) for answer in row.answers]


def _spoken(answer: Messages, opened: str) -> Iterator[Piece]:
    """The turns of a transcript after `opened`, which every answer follows."""
    for place, message in enumerate(answer):
        if message["role"] == "assistant":
            if place:
                yield Piece(opened, False)
            yield Piece(f" {message['content']}" if message["content"] else "", trained(message))
        else:
            yield Piece(write_transcript((message,)), False)


def _turns(answer: Turns) -> Messages:
    return ({"role": "assistant", "content": answer},) if isinstance(answer, str) else answer


def _chat_pieces(
    writer: Writer, prompt: Messages, text: str, answer: Messages, number: int, setting: str
) -> Iterator[Piece]:
    """The turns after `text`, the rendered prompt, as the template writes them from where the model begins to speak.

    What a template puts between the end of a turn and the next answer (a line break, the user's turn) is not trained.
    """
    said, done = list(prompt), text
    for place, message in enumerate(answer):
        if message["role"] == "assistant":
            before = chat_text(tuple(said), number, writer.tokenizer, setting) if place else text
            if not before.startswith(done):
                raise _rewritten(number, setting)
            if before != done:
                yield Piece(before[len(done) :], False)
            turn = writer.closed(_turn(writer, before, said, message, number, setting))
            yield Piece(turn, trained(message))
            done = before + turn
        said.append(_bare(message))


def _bare(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as templates know it."""
    return {key: value for key, value in message.items() if key != "train"}


def _turn(writer: Writer, before: str, said: list[Any], message: Any, number: int, setting: str) -> str:
    """What the model says after `before`: as the template writes it, or in its own words where that loses a thought."""
    content: str = message["content"]

    def render(words: str) -> str:
        spoken = {**_bare(message), "content": words}
        return chat_text((*said, spoken), number, writer.tokenizer, setting, add_generation_prompt=False)

    whole = render(content)
    turn = whole[len(before) :]
    if whole.startswith(before) and ("</think>" in turn or "</think>" not in content):
        return turn
    thought = THOUGHT.search(before)
    if thought is None and "</think>" not in content:
        raise _rewritten(number, setting)
    end = f"</{thought[1]}>" if thought and thought[1] else "[/THINK]"
    if thought and end not in thought[0] and end not in content:
        raise SettingError(f"{setting}.chat", f"an answer without its thought in row {number + 1}",
                           f"one with {end}, as the chat template opens a thought before every answer",
                           "add the thoughts, or use a template that opens none")  # fmt: skip
    return add_prefill(before, content)[0][len(before) :] + render(_MARK).rpartition(_MARK)[2]


def _rewritten(number: int, setting: str) -> SettingError:
    return SettingError(f"{setting}.chat", f"a chat template that writes earlier turns of row {number + 1} anew",
                        "one whose text only grows with each turn", "use another chat template, or a row "
                        "for each answer")  # fmt: skip
