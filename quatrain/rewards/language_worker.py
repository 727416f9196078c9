"""Which language a text is in, piece by piece (py3langid); runs in a worker process with the model in it."""

import re
from collections.abc import Iterator
from functools import lru_cache

import py3langid  # type: ignore[import-not-found,import-untyped,unused-ignore]

from quatrain.rewards.shaping import letters, without_code

PIECE_LETTERS = 16  # a piece is at least so long: shorter ones are guesses
READ_CHARACTERS = 400  # of a piece
LEAST_LETTERS = 8  # a whole text below it is not judged
MOST_PIECES = 200  # longer texts are cut into longer pieces
DENSE = re.compile(r"[\u1100-\u11ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff]")
_SENTENCE = re.compile(r"[^.!?;\n\u3002\uff01\uff1f\u0964]*[.!?;\n\u3002\uff01\uff1f\u0964]*")


def warm_up() -> None:
    """Load the model."""
    identify("This is a sentence.", ("en", "fr"))


@lru_cache(maxsize=1)
def _tell_apart(languages: tuple[str, ...]) -> None:
    """Set the languages of the model, which takes longer than asking it."""
    py3langid.set_languages(list(languages))


def identify(text: str, languages: tuple[str, ...]) -> str:
    """The most probable of the languages, by ISO 639-1 code, from the first READ_CHARACTERS."""
    _tell_apart(languages)
    readable = text[:READ_CHARACTERS].encode("utf-8", "replace").decode("utf-8")
    return str(py3langid.classify(readable)[0])


def share(completion: str, prompt: str, language: str, languages: tuple[str, ...]) -> float | None:
    """The share of the completion's letters in pieces of the wanted language; None when there is too little to judge.

    Letters of scripts that write a syllable or a word with one count three times.
    """
    if language == "prompt":
        plain = without_code(prompt)
        if weight(plain) < LEAST_LETTERS:
            return None
        language = identify(plain, languages)
    found = {True: 0, False: 0}
    for piece in pieces(without_code(completion)):
        found[identify(piece, languages) == language] += weight(piece)
    total = sum(found.values())
    return found[True] / total if total else None


def weight(text: str) -> int:
    """Letters, dense scripts three times."""
    return len(letters(text)) + 2 * len(DENSE.findall(text))


def pieces(text: str) -> Iterator[str]:
    """Sentences, joined until each piece is long enough; a short rest belongs to the last piece."""
    total = weight(text)
    if total < LEAST_LETTERS:
        return
    least, kept, held, weighed = max(PIECE_LETTERS, total // MOST_PIECES), "", "", 0
    for sentence in _SENTENCE.findall(text):
        held += sentence
        weighed += weight(sentence)
        if weighed >= least:
            if kept:
                yield kept
            kept, held, weighed = held, "", 0
    yield kept + held
