"""What runs of both methods share: a folder that grows by steps, is evaluated and saved when due, and is resumed."""

import contextlib
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from quatrain.config import AnyRecipe, CheckpointConfig
from quatrain.errors import DataError, Interrupted
from quatrain.methods.run_folder import best_steps, set_files_aside, settle_environment
from quatrain.planner.watch import measured, predicted, save_plan
from quatrain.telemetry import TRACKERS, Tracker
from quatrain.telemetry.console import Console
from quatrain.telemetry.files import disk_errors
from quatrain.telemetry.metrics import Metric
from quatrain.telemetry.run_log import RunLog
from quatrain.train.checkpoint import checkpoints, load_checkpoint, save_checkpoint
from quatrain.train.learner import Learner


class StopRequest:
    """Ctrl-C and SIGTERM as a request that the loop reads where the state is whole; a second Ctrl-C stops at once."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.signal: int | None = None

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Catch the signals while inside (in the main thread; elsewhere signals cannot be caught)."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        old = {number: signal.signal(number, self._ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)

    def _ask(self, number: int, _frame: FrameType | None) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number
        self._console.say("stopping: the state is saved first (Ctrl-C again stops at once)")

    def check(self) -> None:
        """Raise Interrupted when a stop was asked for."""
        if self.signal is not None:
            raise Interrupted("stopped by the user")


class Stateful(Protocol):
    """What a checkpoint keeps besides weights and optimizers, as plain JSON."""

    def state_dict(self) -> dict[str, Any]:
        """All there is to continue from."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken; an empty one begins anew."""
        ...


Evaluate = Callable[[int], Mapping[str, Metric] | None]


@dataclass(kw_only=True)
class Record:
    """A run as it grows. `step` is the last finished one.

    Of `stream`, from which a step takes its prompts or examples, the state after that step is kept (`boundary`), so
    that a step which is broken off is done again; what is in `live` changes only where a step ends.
    """

    folder: Path
    console: Console
    stop: StopRequest
    learner: Learner
    log: RunLog
    checkpoint: CheckpointConfig
    steps: int
    evaluate: Evaluate
    evaluate_every: int
    most_empty_steps: int
    stream: tuple[str, Stateful]
    live: Mapping[str, Stateful]
    forecast: Mapping[str, Any]  # of the planner; plan.json holds what it says against the first step's peaks
    trackers: list[Tracker] = field(default_factory=list)
    step: int = 0
    empty_steps: int = 0
    boundary: dict[str, Any] = field(default_factory=dict)

    def phase(self, name: str) -> Callable[[int, int], None]:
        """Where a phase of the step reports how far it is."""
        return lambda done, total: self.console.phase(name, done, total)

    def finish_step(self, metrics: dict[str, Metric]) -> None:
        """The step is whole: count it, move the reference, record it, evaluate and save when due.

        Raises DataError after `most_empty_steps` steps in a row in which no update was made.
        """
        self.step += 1
        self.boundary = self.stream[1].state_dict()
        self.empty_steps = 0 if "train/updates" in metrics or "critic/updates" in metrics else self.empty_steps + 1
        metrics |= self.learner.move_reference(self.step)
        last = self.step == self.steps
        evaluation = self.evaluate(self.step) if self._due(self.evaluate_every) and not last else None
        metrics |= evaluation or {}
        self.log.metrics(self.step, metrics)
        self.console.step(self.step, metrics)
        if not (self.folder / "plan.json").exists():
            with disk_errors(self.folder / "plan.json"):
                save_plan(self.folder, self.forecast, measured())
        for tracker in self.trackers:
            tracker.log(self.step, {name: metric.value for name, metric in metrics.items()})
        if last or self._due(self.checkpoint.every) or (evaluation and self.step in self._best()):
            self.save()
        if self.empty_steps >= self.most_empty_steps:
            self.save()
            raise DataError(
                f"train.empty_steps: {self.empty_steps} steps in a row made no update, because no group had two "
                "different scores; check the verifier (quatrain score) and how hard the prompts are (quatrain probe)"
            )

    def save(self) -> Path:
        """Checkpoint of the last finished step."""
        state = {self.stream[0]: self.boundary, **{name: part.state_dict() for name, part in self.live.items()},
                 "empty_steps": self.empty_steps}  # fmt: skip
        return save_checkpoint(self.folder, self.step, self.learner, state, self.checkpoint.keep_last, self._best())

    def interrupted(self) -> Interrupted:
        """Save the last finished step; returns what to raise."""
        path = self.save()
        self.log.event("interrupted", "stopped by the user", self.step)
        return Interrupted(f"stopped after step {self.step}, saved in {path}; run the same command to go on")

    def resume(self, notes: list[str]) -> None:
        """Continue from the last checkpoint, if there is one; later rows of the record are set aside."""
        steps = checkpoints(self.folder)
        differing = settle_environment(self.folder)
        if steps:
            trainer = load_checkpoint(self.folder, steps[-1], self.learner)
            self.step, self.empty_steps = trainer["step"], trainer["empty_steps"]
            self.stream[1].load_state_dict(trainer[self.stream[0]])
            for name, part in self.live.items():
                part.load_state_dict(trainer.get(name, {}))
        self.boundary = self.stream[1].state_dict()
        moved = self.log.set_aside(self.step)
        set_files_aside(self.folder, self.step)
        for leftover in (self.folder / "checkpoints").glob(".writing-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        if self.step or moved:
            self.console.say(
                f"continuing {self.folder} after step {self.step}"
                + (f" ({moved} later rows set aside)" if moved else "")
            )
            self.log.event("resume", f"continued after step {self.step}", self.step, set_aside=moved, changed=notes)
            if differing:
                self.console.warn("this environment is not the one the run began in, so bits may differ: "
                                  + "; ".join(differing[:3]))  # fmt: skip
                self.log.event("environment", "environment differs", self.step, changed=differing)

    def open_trackers(self, names: list[str], stack: contextlib.ExitStack) -> None:
        """Trackers by name, from the next step on."""
        for name in names:
            self.trackers.append(TRACKERS.get(name, "log.trackers")(self.folder, self.step + 1))
            stack.callback(self.trackers[-1].close)

    def _due(self, every: int) -> bool:
        return every > 0 and self.step % every == 0

    def _best(self) -> list[int]:
        """Steps whose checkpoints are kept for what their evaluation says, this one included."""
        own = self.checkpoint
        return best_steps(self.folder, own.best_metric, own.keep_best, self.step) if own.keep_best else []


def forecast(recipe: AnyRecipe, console: Console, longest: int | None = None) -> dict[str, Any]:
    """What the planner says of a recipe, whose longest row has `longest` tokens; warns when it will not fit."""
    found = predicted(recipe, longest=longest)
    if found["line"]:
        console.warn(found["line"])
    return found


@contextlib.contextmanager
def loading() -> Iterator[contextlib.ExitStack]:
    """A stack for what a run holds; Ctrl-C inside is a stop before anything was changed."""
    with contextlib.ExitStack() as stack:
        try:
            yield stack
        except KeyboardInterrupt:
            raise Interrupted("stopped while loading: nothing was changed; run the same command again") from None
