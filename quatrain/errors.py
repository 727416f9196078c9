"""Errors a user can cause or must act on; everything else is a bug and keeps its traceback."""

import difflib
from collections.abc import Iterable


class QuatrainError(Exception):
    """Base of every error that the command line prints as one clear line."""

    def __init__(self, message: str = "") -> None:
        super().__init__(one_line(message, 2000))


class SettingError(QuatrainError, ValueError):
    """A setting, file or row that cannot be used: `<setting>: got <value>, need <condition>; <what to do>`."""

    def __init__(self, setting: str, got: object, need: str, do: str = "") -> None:
        self.setting, self.got, self.need, self.do = setting, got, need, do
        try:
            shown = one_line(got if isinstance(got, str) else repr(got), 120)
        except (ValueError, RecursionError):  # Python writes no integer beyond 4300 digits
            shown = f"a value of type {type(got).__name__} too large to show"
        message = f"{one_line(setting, 120)}: got {shown}, need {one_line(need, 600)}"
        super().__init__(message + (f"; {one_line(do, 600)}" if do else ""))


class DataError(QuatrainError):
    """A batch of work that cannot be trained on (no usable prompt, no scored group for many steps in a row)."""


class NonFiniteError(QuatrainError):
    """A loss or gradient is NaN or infinite; raised before the optimizer moves any weight.

    `samples` are those of the micro-batch (for a gradient: of the update) in which it appeared.
    """

    samples: tuple[object, ...] = ()


class VerifierError(QuatrainError):
    """A verifier failed or answered with something that is not a score; carries the verifier's name."""


class ResumeError(QuatrainError):
    """A run folder that this recipe, code or machine cannot continue."""


class Interrupted(QuatrainError):
    """The user asked to stop (Ctrl-C or SIGTERM); the state has been saved."""


def one_line(text: str, limit: int) -> str:
    """`text` with single spaces, unprintable characters as escapes, and no more than `limit` characters."""
    words = " ".join(text[: 4 * limit].split())
    shown = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in words)
    return shown if len(shown) <= limit and len(text) <= 4 * limit else shown[: limit - 3] + "..."


def nearest(word: str, known: Iterable[str]) -> str:
    """One hint for a mistyped `word`: the nearest known name, or the list of them."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else "known: " + ", ".join(names)
