"""The nouns of the sandbox: what is run, within which limits, and what came of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from quatrain.errors import QuatrainError

Status = Literal["exited", "killed", "timeout", "output_limit", "memory", "stopped"]


class SandboxError(QuatrainError):
    """The sandbox itself failed: nothing is known about the program, so this is never a zero."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What one job may use. Memory is address space per process; files lie in a folder in memory of their own."""

    timeout_s: float = 5.0  # wall clock, from the moment the program may start
    memory_mib: int = 512
    output_kib: int = 1024
    tmp_mib: int = 8
    tmp_files: int = 256
    open_files: int = 64
    threads: int = 32


@dataclass(frozen=True, slots=True)
class Task:
    """A Python program (source text as bytes) and what it reads from standard input."""

    program: bytes
    stdin: bytes = b""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is known about a task from outside: how it ended and what it wrote to standard output.

    `stopped`: it was still running when the job's first task had ended. The exit status is the program's own word, and
    so is `memory`, which says that it could not have more.
    """

    status: Status
    exit_status: int  # negative: the signal
    output: bytes
    cpu_s: float
    peak_mib: float


class Backend(Protocol):
    """Runs programs that nobody has read, one job after the other, each in a process that is made for it."""

    @property
    def name(self) -> str:
        """Which backend this is, for the record of a run: `namespace`, `oci: RUNTIME`, `remote: ADDRESS` or `none`."""
        ...

    @property
    def isolates(self) -> str:
        """In words, what stands between a program and the machine."""
        ...

    async def run(self, tasks: Sequence[Task], timeout_s: float | None = None) -> list[Outcome]:
        """One outcome per task.

        Two tasks run side by side, joined by two pipes: each writes to descriptor 4 what the other reads from 3. The
        job is over when the first task is. Raises SandboxError when the sandbox failed twice.
        """
        ...

    def close(self) -> None:
        """End all processes now."""
        ...
