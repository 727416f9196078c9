"""What a row is: its format told from its columns, and the examples that it makes for a kind of training."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

from quatrain.config import DataConfig
from quatrain.data.conversation import (
    ExampleRow,
    RawRow,
    is_transcript,
    read_answer,
    read_transcript,
    read_turns,
    split_conversation,
    trained,
)
from quatrain.data.preferences import SCORED, explicit, group_scored, read_pair, read_ranking
from quatrain.data.sources import Messages, read_rows
from quatrain.errors import SettingError

Kind = Literal["sft", "pairs", "labelled", "scores"]
ALIASES = {"response": "completion", "responses": "completions"}  # read where the name on the right is not there

# format: columns that a row of it has
COLUMNS: dict[str, tuple[str, ...]] = {
    "completion": ("prompt", "completion"),
    "messages": ("messages",),
    "preference": ("chosen", "rejected"),
    "ranking": ("prompt", "completions"),
    "scored": ("prompt", "completion"),
    "labelled": ("prompt", "completion", "label"),
    "transcript": ("text",),
    "text": ("text",),
}
# kind: formats that it can train on, the first that fits is meant
FORMATS: dict[Kind, tuple[str, ...]] = {
    "sft": ("completion", "messages", "transcript", "text", "preference"),
    "pairs": ("preference", "ranking", "scored"),
    "labelled": ("labelled", "preference"),
    "scores": ("preference", "ranking", "scored"),
}


def load_examples(source: DataConfig, kind: Kind, setting: str, per_turn: bool = False) -> list[ExampleRow]:
    """Every row of a source, checked and not yet rendered.

    With `per_turn`, a conversation becomes one example for each trained turn (for chat templates that write earlier
    turns anew, so that no single text holds all of them). Rows that make several examples, or none, move the numbers of
    those after them. Raises SettingError for a row that cannot be used, with its number and what to do.
    """
    raws = [
        RawRow(_renamed(data, source, source.offset + index, setting), source.offset + index, setting)
        for index, data in enumerate(read_rows(source, setting))
    ]
    form = _format(raws[0], source, kind)
    made = [example for raw in (group_scored(raws) if form == "scored" else raws) for example in _read(raw, form, kind)]
    if per_turn and kind == "sft":
        made = [turn for example in made for turn in _each_turn(example)]
    if not made:
        raise SettingError(f"{setting}.source", f"{source.source} with nothing to compare", "at least one example",
                           "give two or more answers of different worth to a prompt")  # fmt: skip
    return [replace(example, number=source.offset + place) for place, example in enumerate(made)]


def _renamed(data: Mapping[str, Any], source: DataConfig, number: int, setting: str) -> Mapping[str, Any]:
    """The row under our names for its columns."""
    if source.columns:
        kept = {name: value for name, value in data.items() if name not in source.columns.values()}
        raw = RawRow(data, number, setting)
        for new, old in source.columns.items():
            if old not in data:
                raise SettingError(f"{setting}.columns.{new}", old, f"a column of row {number + 1}, which has: "
                                   f"{', '.join(map(str, data))}", "choose one of these")  # fmt: skip
            kept[new] = raw.data[old]
        data = kept
    for old, new in ALIASES.items():
        if old in data and new not in data:
            data = {**data, new: data[old]}
    return data


def _format(raw: RawRow, source: DataConfig, kind: Kind) -> str:
    """The format of a source, told from its first row where it is not set."""
    known = FORMATS[kind]
    if source.format == "auto":
        found = next((form for form in known if _fits(raw, form)), None)
        if found is None:
            forms = "; ".join(dict.fromkeys(" + ".join(COLUMNS[form]) for form in known))
            raise SettingError(f"{raw.setting}.format", f"columns {', '.join(map(str, raw.data))}",
                               f"for this method one of: {forms}",
                               "name them, e.g. columns: {prompt: question, completion: answer}")  # fmt: skip
        return found
    form: str = source.format
    if form == "transcript" and "chosen" in raw:
        form = "preference"
    if form == "ranking" and "completions" not in raw and "completion" in raw:
        form = "scored"
    if form not in known:
        raise SettingError(f"{raw.setting}.format", source.format, f"for this method one of {', '.join(known)}",
                           "use other data, or another algorithm")  # fmt: skip
    return form


def _fits(raw: RawRow, form: str) -> bool:
    if not all(column in raw for column in COLUMNS[form]):
        return False
    if form == "completion":
        return "label" not in raw
    if form == "scored":
        return any(name in raw for name in SCORED)
    return form != "transcript" or is_transcript(raw.get("text"))


def _read(raw: RawRow, form: str, kind: Kind) -> list[ExampleRow]:
    """The examples of a row."""
    if form == "ranking" or form == "scored":
        return read_ranking(raw)
    if form != "preference":
        return [READERS[form](raw)]
    pair = read_pair(raw)
    if kind == "sft":
        return [_trained(raw, "chosen", replace(pair, answers=pair.answers[:1], streams={}, attribute=None))]
    if kind != "labelled":
        return [pair]
    if not any(pair.streams["rank"]):  # a tie is neither good nor bad
        return []
    return [replace(pair, answers=(answer,), streams={"desirable": (worth,)}, attribute=None)
            for answer, worth in zip(pair.answers, (1.0, 0.0), strict=True)]  # fmt: skip


def _completion(raw: RawRow) -> ExampleRow:
    answer = read_answer(raw, "completion", raw.get("completion"))
    return _trained(raw, "completion", explicit(raw, (answer,)))


def _messages(raw: RawRow) -> ExampleRow:
    return _conversation(raw, "messages", read_turns(raw, "messages", raw.get("messages")))


def _transcript(raw: RawRow) -> ExampleRow:
    return replace(_conversation(raw, "text", read_transcript(raw, "text")), style="transcript")


def _conversation(raw: RawRow, column: str, messages: Messages) -> ExampleRow:
    prompt, answer = split_conversation(raw, column, messages)
    return _trained(raw, column, ExampleRow(number=raw.number, row=raw.number, prompt=prompt, answers=(answer,)))


def _text(raw: RawRow) -> ExampleRow:
    return ExampleRow(number=raw.number, row=raw.number, prompt="", answers=(raw.text("text"),), style="plain")


def _labelled(raw: RawRow) -> ExampleRow:
    label = raw.get("label")
    if label not in (0, 1):
        raise raw.mistake("label", repr(label), "true (a good answer) or false", "repair or remove the row")
    return replace(_completion(raw), streams={"desirable": (float(label),)})


READERS: dict[str, Callable[[RawRow], ExampleRow]] = {
    "completion": _completion,
    "messages": _messages,
    "transcript": _transcript,
    "text": _text,
    "labelled": _labelled,
}


def _trained(raw: RawRow, column: str, example: ExampleRow) -> ExampleRow:
    """`example`, when some message of its answer is trained."""
    [answer] = example.answers
    if not isinstance(answer, str) and not any(trained(message) for message in answer):
        raise raw.mistake(column, "train: false on every answer", "an answer to train on", "remove the row")
    return example


def _each_turn(example: ExampleRow) -> Iterator[ExampleRow]:
    """An example for each trained turn of a conversation, with all that comes before it as its prompt."""
    [answer] = example.answers
    if isinstance(answer, str) or isinstance(example.prompt, str) or len(answer) == 1:
        yield example
        return
    for place, message in enumerate(answer):
        if trained(message):
            yield replace(example, prompt=(*example.prompt, *answer[:place]), answers=((message,),))
