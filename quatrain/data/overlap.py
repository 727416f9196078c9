"""Held-out prompts must not be training prompts: the check that every run makes before its first step."""

import re
import unicodedata
from collections.abc import Iterable
from typing import Protocol

from quatrain.errors import SettingError

_DASHES = str.maketrans(dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212", "-"))
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_SILENT = re.escape(".,;:!?'\"`\u2018\u2019\u201c\u201d\u00ab\u00bb\u3001\u3002\u00a1\u00bf")
_TOKEN = re.compile(rf"\d+(?:[.:]\d+)*!?|[^\W\d]+|[^\w\s{_SILENT}]")

_LOWER = bytes(range(256)).lower()
_NOT_ALPHANUMERIC = bytes(code for code in range(128) if not chr(code).isalnum())


class Asking(Protocol):
    """A row that asks something: of prompts or of examples."""

    @property
    def question(self) -> str:
        """What is asked, without fixed words around it."""
        ...


def normalise(text: str) -> str:
    """Equal for texts that ask the same: Unicode form (NFKC), case, whitespace and sentence punctuation are removed.

    What carries meaning in mathematics stays (`3.5` is not `35`, `3 - 2` not `3 + 2`, `5!` not `5`, brackets):
    `"What  is 3+2 ?"` and `"what is 3 + 2"` both give `"what is 3 + 2"`. Text without a token is returned stripped.
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text).translate(_DASHES)
    folded = text.casefold()
    if "," in folded:
        folded = _THOUSANDS.sub("", folded)
    return " ".join(_TOKEN.findall(folded)) or text.strip()


def to_exclude(held_out_rows: Iterable[Asking], overlap: str) -> frozenset[str]:
    """Normalised questions that training leaves out: the held-out ones with `overlap: drop`, none otherwise."""
    return frozenset(normalise(row.question) for row in held_out_rows) if overlap == "drop" else frozenset()


def check_disjoint(train_rows: Iterable[Asking], held_out_rows: Iterable[Asking], setting: str = "held_out") -> None:
    """SettingError when a held-out question is also a training question after `normalise`.

    Questions are compared without the fixed words of a template, without system messages and before any chat
    template, so that a different wording around the same question does not hide it.
    """
    held_out = {normalise(row.question): row.question for row in held_out_rows}
    if not held_out:
        return
    sketches = set(map(_sketch, held_out))
    candidates = (text for row in train_rows if not (text := row.question).isascii() or _sketch(text) in sketches)
    shared = held_out.keys() & set(map(normalise, candidates))
    if shared:
        example = " ".join(held_out[min(shared)].split())
        example = example if len(example) <= 60 else example[:57] + "..."
        raise SettingError(
            setting,
            f"{len(shared)} of {len(held_out)} prompts that are also trained on (e.g. {example!r})",
            "none in common",
            "set overlap=drop, or use another split; reasoning-gym seeds row i with seed + i, so there keep the "
            "seeds further apart than size",
        )


def _sketch(text: str) -> bytes:
    """The ASCII letters and digits of `text`, which `normalise` keeps: a cheap first look at a million rows."""
    return text.encode("utf-8", "surrogatepass").translate(_LOWER, _NOT_ALPHANUMERIC)
