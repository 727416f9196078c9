"""This side of one worker: starting it, handing it a job, collecting what the job wrote. Blocking; see pool.py."""

import contextlib
import json
import math
import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from quatrain.sandbox.image import INSIDE, Image, library_path, python_path
from quatrain.sandbox.inside.exchange import WorkerFailed, receive, run_job
from quatrain.sandbox.inside.program import MEMORY_EXIT
from quatrain.sandbox.job import Limits, Outcome, Status, Task

START_LIMIT_S = 30.0
GRACE_S = 5.0  # how long after its limit a job may still be unanswered before its worker counts as stopped
JOB_UID = 1000  # the user inside, when there are two to choose from
SPARES = 2  # processes that wait for the next job, which count as its user's
SERVER_MIB = 256  # what the fork server itself may take, beside its jobs


@dataclass(frozen=True)
class Layers:
    """What holds a job. Only tests leave one out, to see their attacks succeed without it."""

    names: tuple[str, ...] = ("namespaces", "limits", "seccomp")


class Worker:
    """A launcher, its fork server, and the socket to it. Raises WorkerFailed when it cannot be started."""

    def __init__(self, image: Image, limits: Limits, layers: Layers) -> None:
        self._limits, self._job = limits, 0
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            config = _config(image, limits, layers, theirs.fileno())
            code = f"import sys; sys.path.append({str(INSIDE.parent)!r}); from inside.launch import main; main()"
            self._process = subprocess.Popen(
                [python_path(), "-I", "-S", "-B", "-X", "utf8", "-c", code, json.dumps(config)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=(theirs.fileno(),),
                env=library_path(),
                start_new_session=True,
            )
        try:
            receive(self._control, time.monotonic() + START_LIMIT_S)
        except WorkerFailed as failure:
            said = self.kill().strip().splitlines()
            raise WorkerFailed(f"{failure}{': ' + said[-1] if said else ''}") from None

    @property
    def pid(self) -> int:
        """The launcher's process id."""
        return self._process.pid

    def interrupt(self) -> None:
        """End what the worker runs, from any thread; its owner then finds it gone."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()  # the launcher kills process 1 of the namespaces and waits until they are empty

    def kill(self) -> str:
        """End the worker and all it runs; returns what the launcher wrote to standard error."""
        process = self._process
        assert process.stderr is not None
        self.interrupt()
        self._control.close()
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)  # it was stopped; the kernel kills process 1 with it
            process.wait()
        os.set_blocking(process.stderr.fileno(), False)
        with process.stderr:
            said = process.stderr.read() or b""
        return said.decode(errors="replace")

    def run(self, tasks: Sequence[Task], timeout_s: float) -> list[Outcome]:
        """Run one job; see `Backend.run`. After a WorkerFailed the worker is of no further use."""
        self._job += 1
        request = job_request(self._job, timeout_s)
        given = [(task.program, task.stdin) for task in tasks]
        reply, outputs = run_job(self._control, given, request, self._limits.output_kib << 10, GRACE_S)
        return outcomes(reply, [bytes(one.data) for one in outputs], [one.over for one in outputs])


def job_request(job: int, timeout_s: float) -> dict[str, float]:
    """What the fork server is told about a job, beside its descriptors."""
    # threads may use more than one processor, so less than wall time allows
    return {"id": job, "timeout_s": timeout_s, "cpu_s": math.ceil(timeout_s) + 1}


def outcomes(reply: dict[str, Any], outputs: Sequence[bytes], over: Sequence[bool]) -> list[Outcome]:
    """What the fork server says about each task, with what it wrote and whether that was too much."""
    result = []
    for index, (status, cpu_s, peak_kib) in enumerate(reply["tasks"]):
        code = os.waitstatus_to_exitcode(int(status))
        kind: Status = "killed" if code < 0 else "exited"
        if over[index]:
            kind = "output_limit"
        elif reply["timed_out"] and index == 0:
            kind = "timeout"
        elif code == -signal.SIGKILL and (index > 0 or any(over)):
            kind = "stopped"
        elif code == MEMORY_EXIT:
            kind = "memory"
        result.append(Outcome(kind, code, outputs[index], cpu_s, peak_kib / 1024))
    return result


def _limits(limits: Limits) -> dict[str, int]:
    return {
        "memory_bytes": limits.memory_mib << 20,
        "tmp_bytes": limits.tmp_mib << 20,
        "tmp_files": limits.tmp_files,
        "open_files": limits.open_files,
        "threads": limits.threads + SPARES,
    }


def server_config(image: Image, limits: Limits, layers: Layers) -> dict[str, Any]:
    """What a fork server is told when it starts, wherever it does."""
    isolated = "namespaces" in layers.names
    return {
        "layers": layers.names,
        "limits": _limits(limits),
        "preload": image.preload,
        "paths": ["/packages"] if isolated else image.outside,
        "job_uid": JOB_UID if isolated and os.geteuid() == 0 else 0,
    }


def _config(image: Image, limits: Limits, layers: Layers, control: int) -> dict[str, Any]:
    return {
        **server_config(image, limits, layers),
        "control": control,
        "binds": image.binds,
        "links": image.links,
        "hidden": image.hidden,
        "python": image.python,
        "cgroup": {"memory": (SERVER_MIB + 2 * limits.memory_mib) << 20, "pids": 2 * limits.threads + 16},
    }
