"""What a person sees during a run: one line per step, a live bar in a terminal, plain lines anywhere else."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import IO, Any

from rich.console import Console as RichConsole
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from quatrain.telemetry.metrics import Metric

# heading, names of which the first one that a step has is shown, format, width
Column = tuple[str, tuple[str, ...], str, int]
COLUMNS: tuple[Column, ...] = (
    ("reward", ("reward/mean",), ".3f", 7),
    ("KL", ("kl/reference_k3", "kl/reference_full", "kl/old_k3"), ".4f", 8),
    ("entropy", ("policy/entropy",), ".3f", 8),
    ("length", ("rollout/length", "completion/length_mean"), ".1f", 7),
    ("zero-var", ("groups/zero_variance",), ".0%", 9),
    ("tokens/s", ("speed/tokens_per_s",), ".0f", 9),
)


class Console:
    """Progress of a run, as a context manager or between `start` and `stop`.

    Example:
        with Console() as console:
            console.start(total_steps=100, first_step=1)
            console.phase("sampling", 64, 128)
            console.step(1, metrics)

    In a terminal a bar beneath the lines shows the phase within the step. Elsewhere nothing but plain text is written:
    one line per step, and one whenever `heartbeat_s` seconds went by without a line.
    """

    def __init__(
        self,
        stream: IO[str] | None = None,
        terminal: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
        heartbeat_s: float = 30.0,
    ) -> None:
        stream = stream if stream is not None else sys.stdout
        self.terminal = stream.isatty() if terminal is None else terminal
        self._rich = RichConsole(
            file=stream,
            force_terminal=self.terminal,
            no_color=None if self.terminal else True,
            width=None if self.terminal else 120,
            markup=False,
            highlight=False,
            emoji=False,
        )
        self._clock, self._heartbeat_s = clock, heartbeat_s
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._total_steps = self._first_step = self._step = 0
        self._started = self._last_line = clock()
        self._phase = ""
        self._columns: Sequence[Column] = COLUMNS
        self._warned: set[str] = set()

    def __enter__(self) -> "Console":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self, total_steps: int, first_step: int = 1, columns: Sequence[Column] = COLUMNS) -> None:
        """Print the heading; steps are counted from `first_step` to `total_steps`."""
        self._columns = columns
        self._total_steps, self._first_step, self._step = total_steps, first_step, first_step
        self._started = self._clock()
        headings = "".join(f"{heading:>{width}}" for heading, _, _, width in columns)
        self._print(f"{'step':>{self._step_width}}{headings}{'time left':>14}")

    def phase(self, name: str, done: int, total: int) -> None:
        """Say how far a phase of the step is ("sampling", 64 of 128)."""
        if self.terminal:
            self._show(name, done, total)
        elif self._clock() - self._last_line >= self._heartbeat_s:
            self._print(f"{self._where()}{name} {done}/{total}")

    def step(self, step: int, metrics: Mapping[str, Metric]) -> None:
        """Print the line of a finished step."""
        cells = "".join(f"{_cell(metrics, names, form):>{width}}" for _, names, form, width in self._columns)
        done = step - self._first_step + 1
        left = (self._clock() - self._started) / max(done, 1) * max(self._total_steps - step, 0)
        self._print(f"{f'{step}/{self._total_steps}':>{self._step_width}}{cells}{duration(left):>14}")
        self._step = step + 1

    def stop(self) -> None:
        """Take the bar away; what was printed stays."""
        if self._progress is not None:
            self._progress.stop()
        self._progress = self._task = None
        self._phase = ""

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        self._print(text)

    def warn(self, text: str) -> None:
        """Print a warning, once per text."""
        if text not in self._warned:
            self._warned.add(text)
            self._print(f"warning: {text}", style="yellow")

    def table(self, title: str, rows: Sequence[Sequence[object]]) -> None:
        """Print rows under a title; the first row is the heading."""
        self._print(title, style="bold")
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        heading, *body = rows
        for index, cell in enumerate(heading):
            numeric = bool(body) and all(isinstance(row[index], (int, float)) for row in body)
            table.add_column(_text(cell), justify="right" if numeric else "left", overflow="fold")
        for row in body:
            table.add_row(*map(_text, row))
        self._print(table)

    @property
    def _step_width(self) -> int:
        return max(2 * len(str(self._total_steps)) + 1, 4)

    def _where(self) -> str:
        return f"step {min(self._step, self._total_steps)}/{self._total_steps}: " if self._total_steps else ""

    def _print(self, content: Any, style: str | None = None) -> None:
        self._rich.print(content, style=style, soft_wrap=isinstance(content, str))
        self._rich.file.flush()
        self._last_line = self._clock()

    def _show(self, name: str, done: int, total: int) -> None:
        if self._progress is None:
            columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=30), MofNCompleteColumn())
            self._progress = Progress(*columns, TimeRemainingColumn(), console=self._rich, transient=True)
            self._progress.start()
        description = self._where() + name
        if self._task is None or description != self._phase:
            if self._task is not None:
                self._progress.remove_task(self._task)
            self._task = self._progress.add_task(description, total=total, completed=done)
            self._phase = description
        self._progress.update(self._task, completed=done, total=total)


def duration(seconds: float) -> str:
    """`42 s`, `7 min 05 s` or `3 h 20 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _cell(metrics: Mapping[str, Metric], names: Sequence[str], form: str) -> str:
    found = next((metrics[name].value for name in names if name in metrics), None)
    return "-" if found is None else format(found, form)


def _text(cell: object) -> str:
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)
