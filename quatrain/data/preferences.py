"""What is compared: pairs and rankings of answers to one prompt, from the columns that public datasets have."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

from quatrain.data.conversation import (
    ExampleRow,
    RawRow,
    Turns,
    is_transcript,
    read_answer,
    read_prompt,
    read_transcript,
    read_turns,
    split_conversation,
)
from quatrain.data.sources import Messages

# the attributes of HelpSteer (arXiv:2311.09528), a column each; rows with the same prompt are compared
SCORED = ("helpfulness", "correctness", "coherence", "complexity", "verbosity")
_LOG = logging.getLogger("quatrain")


def read_pair(raw: RawRow) -> ExampleRow:
    """`chosen` and `rejected`, with `prompt` or with what both begin alike; optional `tie`, `margin`, `confidence`.

    Streams: `rank` (0 the better one; 0 for both in a tie), and the optional ones on both sides.
    """
    tie = raw.get("tie") if "tie" in raw else False
    if not isinstance(tie, bool):
        raise raw.mistake("tie", repr(tie), "true or false", "repair or remove the row")
    streams = {"rank": (0.0, 0.0 if tie else 1.0)}
    if "margin" in raw:
        streams["margin"] = (raw.real("margin"),) * 2
    if "confidence" in raw:
        streams["confidence"] = (raw.real("confidence", 0, 1),) * 2
    return replace(_sides(raw), streams=streams, attribute=_attribute(raw))


def _sides(raw: RawRow) -> ExampleRow:
    """Prompt and the two answers, whatever form they have."""
    chosen, rejected = raw.get("chosen"), raw.get("rejected")
    if isinstance(chosen, str) and isinstance(rejected, str):
        if is_transcript(chosen) and is_transcript(rejected):
            first, second = read_transcript(raw, "chosen"), read_transcript(raw, "rejected")
            return replace(_implicit(raw, first, second), style="transcript")
        if "prompt" not in raw:
            return _implicit_text(raw, raw.text("chosen"), raw.text("rejected"))
    elif isinstance(chosen, (list, tuple)) and isinstance(rejected, (list, tuple)):
        first, second = read_turns(raw, "chosen", chosen), read_turns(raw, "rejected", rejected)
        if "prompt" not in raw or not (first and first[0]["role"] == "assistant"):
            return _implicit(raw, first, second)
    elif "prompt" not in raw:
        raise raw.mistake("rejected", f"{type(rejected).__name__} beside chosen as {type(chosen).__name__}",
                          "two texts or two lists of messages", "write both sides alike")  # fmt: skip
    answers = tuple(read_answer(raw, column, raw.get(column)) for column in ("chosen", "rejected"))
    return explicit(raw, answers)


def explicit(raw: RawRow, answers: tuple[Turns, ...]) -> ExampleRow:
    """Answers to the row's `prompt`: text, messages, or a transcript that ends with "Assistant:"."""
    if is_transcript(raw.get("prompt")) and raw.text("prompt").rstrip().endswith("\n\nAssistant:"):
        prompt = read_transcript(raw, "prompt")[:-1]
        spoken = tuple(answer.strip() if isinstance(answer, str) else answer for answer in answers)
        return ExampleRow(number=raw.number, row=raw.number, prompt=prompt, answers=spoken, style="transcript")
    return ExampleRow(number=raw.number, row=raw.number, prompt=read_prompt(raw), answers=answers)


def _implicit(raw: RawRow, first: Messages, second: Messages) -> ExampleRow:
    """Two conversations: the prompt is what both begin with, up to where the assistant answers."""
    for column, messages in (("chosen", first), ("rejected", second)):
        split_conversation(raw, column, messages)
    cut = min(_alike(first, second), len(first) - 1, len(second) - 1)
    while cut and {first[cut]["role"], second[cut]["role"]} != {"assistant"}:
        cut -= 1
    if not cut:
        raise raw.mistake("chosen", "a conversation that begins otherwise than rejected", "the same prompt on both "
                          "sides", "remove the row, or give the prompt in a column of its own")  # fmt: skip
    return ExampleRow(number=raw.number, row=raw.number, prompt=first[:cut], answers=(first[cut:], second[cut:]))


def _alike(first: Sequence[Any], second: Sequence[Any]) -> int:
    """How many elements both begin with."""
    return sum(1 for _ in takewhile(lambda both: both[0] == both[1], zip(first, second, strict=False)))


def _implicit_text(raw: RawRow, first: str, second: str) -> ExampleRow:
    """Two texts: the prompt is what both begin with, cut before the last space so that no word is split."""
    alike = first[: _alike(first, second)]
    cut = len(alike.rstrip()) if alike != alike.rstrip() else max(alike.rfind(" "), alike.rfind("\n"), 0)
    return ExampleRow(number=raw.number, row=raw.number, prompt=first[:cut], answers=(first[cut:], second[cut:]),
                      style="plain")  # fmt: skip


# --- rankings ---------------------------------------------------------------------------------------------------------


def read_ranking(raw: RawRow) -> list[ExampleRow]:
    """`prompt` and `completions` with `ranks` (0 best) or `scores` (higher is better), a list or one per attribute.

    A mapping of attributes gives a ranking for each. Stream: `rank`, how many different values are better (equal
    numbers are ties).
    """
    answers = tuple(read_answer(raw, "completions", value) for value in raw.items("completions"))
    if len(answers) < 2:
        raise raw.mistake("completions", f"{len(answers)}", "at least 2 to compare", "remove the row")
    row = explicit(raw, answers)
    column, sign = ("ranks", 1.0) if "ranks" in raw else ("scores", -1.0)
    value = raw.get(column)
    if not isinstance(value, Mapping):
        return [replace(row, streams={"rank": _ranks(raw, column, value, sign, len(answers))},
                        attribute=_attribute(raw))]  # fmt: skip
    return [
        replace(row, streams={"rank": _ranks(raw, column, part, sign, len(answers))}, attribute=str(name))
        for name, part in value.items()
        if part is not None
    ]


def _ranks(raw: RawRow, column: str, values: Any, sign: float, count: int) -> tuple[float, ...]:
    if not isinstance(values, (list, tuple)) or len(values) != count:
        got = f"{len(values)} numbers" if isinstance(values, (list, tuple)) else type(values).__name__
        raise raw.mistake(column, got, f"a list with a number for each of the {count} completions", "repair the row")
    numbers = [sign * raw.checked_real(value, column) for value in values]
    order = {number: place for place, number in enumerate(sorted(set(numbers)))}
    return tuple(float(order[number]) for number in numbers)


def _attribute(raw: RawRow) -> str | None:
    return raw.text("attribute") if "attribute" in raw else None


def group_scored(rows: Iterable[RawRow]) -> Iterator[RawRow]:
    """Rows of a prompt, one `response` and a score per attribute each, as rankings of the prompt's responses.

    A ranking stands where its prompt came first; prompts with a single response are left out and counted in a warning.
    """
    groups: dict[str, list[RawRow]] = {}
    for raw in rows:
        groups.setdefault(repr(raw.get("prompt")), []).append(raw)
    alone = 0
    for members in groups.values():
        if len(members) == 1:
            alone += 1
            continue
        first = members[0]
        scores = {name: [member.real(name) for member in members] for name in SCORED if name in first}
        answers = [member.get("completion") for member in members]
        yield replace(first, data={"prompt": first.get("prompt"), "completions": answers, "scores": scores})
    if alone:
        _LOG.warning("%d of %d prompts have a single response and cannot be compared", alone, len(groups))
