"""HH-RLHF (Bai et al. 2022, arXiv:2204.05862) in two parts that share no dialogue.

Dialogues of one question, short enough for a CPU, are for the three stages; the longer conversations are for the scorer
that judges them at the end.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

HUMAN, ASSISTANT = "\n\nHuman:", "\n\nAssistant:"
SIDES = ("chosen", "rejected")
DECLINES = re.compile(r"\b(?:sorry|can.?t help|cannot help|won.?t|don.?t (?:know|think|want|understand|recommend)"
                      r"|not (?:sure|able|going to|comfortable)|illegal|shouldn.?t)\b", re.IGNORECASE)  # fmt: skip


def pairs(path: str, characters: int = 600) -> Iterator[dict[str, str]]:
    """Rows `prompt`, `chosen`, `rejected` of dialogues with one question, none of them longer than `characters`."""
    return (row for row in _dialogues(path) if all(len(text) <= characters for text in row.values()))


def prompts(path: str, characters: int = 200) -> Iterator[dict[str, str]]:
    """The questions alone, each once, whatever the length of their answers."""
    asked = dict.fromkeys(row["prompt"] for row in _dialogues(path))
    return ({"prompt": question} for question in asked if len(question) <= characters)


def conversations(path: str, characters: int = 1000) -> Iterator[dict[str, str]]:
    """The rows of the file with more than one question, as they are, none of them longer than `characters`."""
    rows = (json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines())
    return (row for row in rows if all(row[side].count(HUMAN) > 1 and len(row[side]) <= characters for side in SIDES))


def _dialogues(path: str) -> Iterator[dict[str, str]]:
    """Dialogues with a single question and an answer on both sides."""
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if all(row[side].count(HUMAN) == row[side].count(ASSISTANT) == 1 for side in SIDES):
            (question, chosen), (_, rejected) = (row[side].split(ASSISTANT) for side in SIDES)
            found = {"prompt": question.removeprefix(HUMAN), "chosen": chosen, "rejected": rejected}
            if all(text.strip() for text in found.values()):
                yield {name: text.strip() for name, text in found.items()}


def declines(completion: str) -> float:
    """1 for an answer with a word of refusal, doubt or regret, else 0: a surface that shows where answers went."""
    return float(DECLINES.search(completion) is not None)
