"""The nouns that flow through a step; importable without torch.

Shape suffixes, one legend for the whole package:
    B rows of a batch      T positions of a row     N trained tokens of a batch (flat)
    V vocabulary           G completions of a prompt   P pairs   S samples
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

StopReason = Literal["eos", "stop", "length", "aborted"]
ScoreStatus = Literal["ok", "abstained", "error"]


def _frozen(values: Any, dtype: type, name: str, length: int | None = None) -> NDArray[Any]:
    """`values` as a read-only one-dimensional array of `dtype`, of `length` when one is given."""
    array: NDArray[Any] = np.array(values, dtype=dtype)
    if array.ndim != 1 or (length is not None and len(array) != length):
        raise ValueError(f"{name}: got shape {array.shape}, need ({'T' if length is None else length},)")
    array.flags.writeable = False
    return array


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """A rendered prompt: token ids ready for the model, and the row's own columns for its verifier.

    Example: `Prompt(index=3, token_ids=(1, 42, 7), text="2+2=", columns={"answer": "4"})`
    """

    index: int  # position in the ordered source; identifies the prompt across runs and resumes
    token_ids: tuple[int, ...]
    text: str
    question: str = ""  # what is asked, without the template's fixed words (for showing)
    columns: Mapping[str, Any] = field(default_factory=dict)
    source: str = "prompts"
    verifier: str = ""
    prefill: str = ""  # text the template already opened for the model (e.g. "<think>\n"); part of what is scored
    messages: tuple[Mapping[str, Any], ...] = ()  # what was asked, for a model with another template to read

    def __post_init__(self) -> None:
        if not self.token_ids:
            raise ValueError("Prompt: got no token ids, need at least one")
        object.__setattr__(self, "columns", MappingProxyType(dict(self.columns)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """Half-open range [start, end) of a trajectory with one author: prompt, completion, or a tool's output."""

    kind: Literal["prompt", "completion", "tool"]
    start: int
    end: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Trajectory:
    """What the model read and wrote, token by token; arrays of equal length T, read-only.

    `sampler_logprobs` are log_softmax(logits / temperature) *before* truncation (nats; NaN where not trained),
    `kept_mass` the probability that top-p / top-k / min-p kept at that position (1 when nothing was cut).
    `policy_version` is the weights' version that wrote the token (-1 where not trained).
    """

    token_ids: NDArray[np.int64]
    trained: NDArray[np.bool_]
    sampler_logprobs: NDArray[np.float64]
    kept_mass: NDArray[np.float64]
    policy_version: NDArray[np.int64]
    segments: tuple[Segment, ...]
    model_inputs: Mapping[str, Any] = field(default_factory=dict)  # reserved (images)

    def __post_init__(self) -> None:
        length = len(self.token_ids)
        fields = {"token_ids": np.int64, "trained": np.bool_, "sampler_logprobs": np.float64,
                  "kept_mass": np.float64, "policy_version": np.int64}  # fmt: skip
        for name, dtype in fields.items():
            object.__setattr__(self, name, _frozen(getattr(self, name), dtype, f"Trajectory.{name}", length))
        edges = [segment.end for segment in self.segments]
        if [segment.start for segment in self.segments] != [0, *edges[:-1]] or (edges or [0])[-1] != length:
            raise ValueError(f"Trajectory.segments: got {self.segments}, need ranges that tile [0, {length})")
        if length and self.trained[0]:
            raise ValueError("Trajectory.trained: got a trained first token, need a token before it to predict it from")

    @classmethod
    def single_turn(
        cls,
        prompt_ids: Sequence[int],
        completion_ids: Sequence[int],
        sampler_logprobs: Sequence[float],
        kept_mass: Sequence[float],
        policy_version: int,
    ) -> "Trajectory":
        """The two-segment case: a prompt, then a completion of which every token is trained."""
        before, after = len(prompt_ids), len(completion_ids)
        nan = [float("nan")] * before
        return cls(
            token_ids=np.array([*prompt_ids, *completion_ids], dtype=np.int64),
            trained=np.array([False] * before + [True] * after),
            sampler_logprobs=np.array([*nan, *sampler_logprobs], dtype=np.float64),
            kept_mass=np.array([*nan, *kept_mass], dtype=np.float64),
            policy_version=np.array([-1] * before + [policy_version] * after, dtype=np.int64),
            segments=(
                Segment(kind="prompt", start=0, end=before),
                Segment(kind="completion", start=before, end=before + after),
            ),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Rollout:
    """One completion of a prompt (one or more trajectories), with its place in the batch.

    `text` is what the model wrote, decoded up to and without the end token or stop string.
    """

    prompt: Prompt
    group: int  # which prompt of the step
    index: int  # which completion of the group
    trajectories: tuple[Trajectory, ...]
    text: str
    stop_reason: StopReason

    @property
    def num_tokens(self) -> int:
        """Trained tokens over all trajectories."""
        return sum(int(trajectory.trained.sum()) for trajectory in self.trajectories)


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """A verifier's answer on one rollout. `error` means "could not judge" and is never a zero.

    `parts` are what the parts of a rubric said, before their `weights` (1 where none is named); `answer` is what the
    verifier read out of the completion, written so that equal answers are equal texts (for votes); `right` says
    whether every part that measures correctness is fully paid (None where nobody can tell).

    Example: `Score(value=1.1, parts={"correct": 1.0, "format": 1.0}, weights={"format": 0.1}, right=True)`
    """

    value: float = float("nan")
    parts: Mapping[str, float] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    answer: str | None = None
    right: bool | None = None
    status: ScoreStatus = "ok"
    error: str = ""
    placed: tuple[tuple[int, float], ...] = ()  # (trained-token position, reward): process and turn rewards

    def __post_init__(self) -> None:
        if self.status == "ok" and not np.isfinite(self.value):
            raise ValueError(f"Score.value: got {self.value!r}, need a finite number when the status is ok")

    @property
    def usable(self) -> bool:
        """True when the value counts in a group's statistics."""
        return self.status == "ok"

    @property
    def correct(self) -> bool:
        """`right`; where nobody can tell, whether the value is at least 1."""
        return self.value >= 1 - 1e-9 if self.right is None else self.right

    @property
    def wrong(self) -> bool:
        """Not `right`; where nobody can tell, whether nothing is paid (0 or less)."""
        return self.value <= 0 if self.right is None else not self.right


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """A trajectory ready to train on: token ids, which of them are trained, and one named stream per quantity.

    Every stream has one float64 per *trained* token. `completion` numbers the completion in the batch (several
    trajectories may share it), `group` its prompt. `prompt_length` is the shared prefix that a batch builder may
    compute once for the whole group.
    """

    token_ids: NDArray[np.int64]
    trained: NDArray[np.bool_]
    group: int
    completion: int
    prompt_length: int
    label: str = ""  # shown in errors: "prompt 17, completion 3"
    streams: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        length = len(self.token_ids)
        object.__setattr__(self, "token_ids", _frozen(self.token_ids, np.int64, "Sample.token_ids"))
        object.__setattr__(self, "trained", _frozen(self.trained, np.bool_, "Sample.trained", length))
        if not 0 <= self.prompt_length <= length or self.trained[: self.prompt_length].any():
            raise ValueError(
                f"Sample.prompt_length: got {self.prompt_length}, need an untrained prefix of {length} tokens"
            )
        if length and self.trained[0]:
            raise ValueError("Sample.trained: got a trained first token, need a token before it to predict it from")
        streams = {
            name: _frozen(values, np.float64, f"Sample.streams[{name}]", self.num_tokens)
            for name, values in self.streams.items()
        }
        object.__setattr__(self, "streams", MappingProxyType(streams))

    @property
    def num_tokens(self) -> int:
        """Trained tokens."""
        return int(self.trained.sum())

    def with_streams(self, **streams: Any) -> "Sample":
        """A copy with further (or replaced) streams."""
        return replace(self, streams={**self.streams, **streams})
