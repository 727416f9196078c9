"""Errors a user can cause or must act on; everything else is a bug and keeps its traceback."""

import difflib
from collections.abc import Iterable


class QuatrainError(Exception):
    """Base of every error that the command line prints as one clear line."""


class SettingError(QuatrainError, ValueError):
    """A setting, file or row that cannot be used: `<setting>: got <value>, need <condition>; <what to do>`."""

    def __init__(self, setting: str, got: object, need: str, do: str = "") -> None:
        self.setting, self.got, self.need, self.do = setting, got, need, do
        shown = got if isinstance(got, str) else repr(got)
        shown = " ".join(shown.split())
        shown = shown if len(shown) <= 120 else shown[:117] + "..."
        message = f"{setting}: got {shown}, need {need}" + (f"; {do}" if do else "")
        super().__init__(" ".join(message.split()))


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


def nearest(word: str, known: Iterable[str]) -> str:
    """One hint for a mistyped `word`: the nearest known name, or the list of them."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else "known: " + ", ".join(names)
