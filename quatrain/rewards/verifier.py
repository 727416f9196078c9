"""What a verifier is: rollouts in, one score each out. Built-ins register here, one file each."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from quatrain.errors import VerifierError
from quatrain.registry import Registry
from quatrain.types import Prompt, Rollout, Score, Trajectory

Scope = Literal["completion", "group"]
Kind = Literal["correctness", "format", "shaping"]
OnError = Literal["skip", "zero", "stop"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """Evidence that a verifier ships with itself: this completion of a row with these columns earns `value`.

    Example: `Example(completion="#### 72", columns={"answer": "72"}, value=1.0)`
    """

    completion: str
    value: float
    columns: Mapping[str, Any] = field(default_factory=dict)
    prompt: str = ""
    tokens: tuple[int, ...] = ()  # only for verifiers that read token ids


class Verifier(Protocol):
    """Scores rollouts: `scope` says whether it must see whole groups, `kind` which contract it is held to."""

    @property
    def scope(self) -> Scope:
        """`completion`: each rollout by itself; `group`: all completions of a prompt together."""
        ...

    @property
    def kind(self) -> Kind:
        """`correctness` pays only right answers, `format` only form, `shaping` anything else."""
        ...

    @property
    def examples(self) -> tuple[Example, ...]:
        """Completions and what they earn with the default settings."""
        ...

    async def score(self, rollouts: Sequence[Rollout]) -> Sequence[Score]:
        """One score per rollout, in order; never blocks the event loop."""
        ...

    def close(self) -> None:
        """End what was started for scoring; the verifier is not used again."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What the recipe says about every verifier: the name in errors, seconds per call, what a failure becomes."""

    name: str
    setting: str = "verifier"
    timeout_s: float = 5.0
    on_error: OnError = "skip"


# A registered piece is a class called with (settings, limits), where `Settings`, its attribute, is the pydantic Section
# of the first and the second is a `Limits`; `default_timeout_s` is optional. Its instances are `Verifier`s.
VERIFIERS: Registry[Any] = Registry("verifier")


def text_rollout(
    completion: str,
    columns: Mapping[str, Any] | None = None,
    *,
    prompt: str = "",
    messages: Sequence[Mapping[str, Any]] = (),
    tokens: Sequence[int] | None = None,
    index: int = 0,
    group: int = 0,
) -> Rollout:
    """A rollout from text alone, to try a verifier on: `text_rollout("#### 72", {"answer": "72"})`.

    `messages` are the prompt as a conversation, `tokens` the completion's ids, for verifiers that read them.
    """
    zeros, ones = [0.0] * len(tokens or ()), [1.0] * len(tokens or ())
    trajectory = Trajectory.single_turn((0,), tokens or (), zeros, ones, 0)
    return Rollout(
        prompt=Prompt(index=index, token_ids=(0,), text=prompt, columns=columns or {}, messages=tuple(messages)),
        group=group,
        index=0,
        trajectories=() if tokens is None else (trajectory,),
        text=completion,
        stop_reason="eos",
    )


def label(rollout: Rollout) -> str:
    """How errors name a rollout: `prompt 17, completion 3`."""
    return f"prompt {rollout.prompt.index}, completion {rollout.index}"


def scored_text(rollout: Rollout) -> str:
    """What is scored: the text the template opened for the model, then what the model wrote; never the prompt."""
    return rollout.prompt.prefill + rollout.text


def each(rollouts: Sequence[Rollout], judge: Callable[[Rollout], Score | float | None]) -> list[Score]:
    """Scores of a verifier that judges one rollout at a time in this process; None abstains."""
    return [_as_score(judge(rollout)) for rollout in rollouts]


def _as_score(judged: Score | float | None) -> Score:
    if isinstance(judged, Score):
        return judged
    return Score(status="abstained") if judged is None else Score(value=judged)


def missing_column(name: str, rollout: Rollout, column: str, do: str) -> VerifierError:
    """The error for a row without a column that a verifier needs; lists the columns the row has."""
    columns = ", ".join(sorted(rollout.prompt.columns)) or "none"
    return VerifierError(f"{name}: {label(rollout)} has no column {column!r}; its columns: {columns}; {do}")
