"""This side of one worker: starting it, handing it a job, collecting what the job wrote. Blocking; see pool.py."""

import contextlib
import fcntl
import itertools
import json
import math
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from quatrain.sandbox.image import INSIDE, Image, library_path, python_path
from quatrain.sandbox.inside.program import MEMORY_EXIT
from quatrain.sandbox.job import Limits, Outcome, Status, Task

START_LIMIT_S = 30.0
GRACE_S = 5.0  # how long after its limit a job may still be unanswered before its worker counts as stopped
READ_BYTES = 1 << 16
JOB_UID = 1000  # the user inside, when there are two to choose from
SERVER_MIB = 256  # what the fork server itself may take, beside its jobs


class WorkerFailed(Exception):
    """The worker died, stopped answering or could not do its part; the job is not to blame."""


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
            self._receive(time.monotonic() + START_LIMIT_S)
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
        with contextlib.ExitStack() as kept:
            with contextlib.ExitStack() as given:
                passed, outputs = _channels(tasks, given, kept)
                request = {"id": self._job, "timeout_s": timeout_s, "tasks": [len(own) for own in passed],
                           "limits": _limits(self._limits, timeout_s)}  # fmt: skip
                try:
                    socket.send_fds(self._control, [json.dumps(request).encode()], [*itertools.chain(*passed)])
                except OSError as error:
                    raise WorkerFailed(f"the worker is gone: {error}") from None
            collected = [_Output(descriptor, self._limits.output_kib << 10) for descriptor in outputs]
            reply = self._collect(collected, time.monotonic() + timeout_s + GRACE_S)
            return _outcomes(reply, collected)

    def _collect(self, outputs: "list[_Output]", deadline: float) -> dict[str, Any]:
        """Read what the tasks write until the fork server says that they are gone."""
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        by_descriptor = {output.descriptor: output for output in outputs}
        for descriptor in by_descriptor:
            poll.register(descriptor, select.POLLIN)
        while True:
            events = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
            if not events or self._control.fileno() in (descriptor for descriptor, _ in events):
                reply = self._receive(deadline)
                for output in outputs:
                    while output.read():
                        pass
                return reply
            for descriptor, _ in events:
                output = by_descriptor[descriptor]
                if not output.read():
                    poll.unregister(descriptor)
                    if output.over:
                        with contextlib.suppress(OSError):  # a worker that is gone shows at the next receive
                            self._control.send(json.dumps({"stop": self._job}).encode())

    def _receive(self, deadline: float) -> dict[str, Any]:
        """The next message, which must not be of a failure."""
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise WorkerFailed("the worker does not answer")
        try:
            data = self._control.recv(READ_BYTES)
        except OSError as error:
            raise WorkerFailed(f"the worker is gone: {error}") from None
        if not data:
            raise WorkerFailed("the worker ended")
        message = json.loads(data)
        if "failed" in message:
            raise WorkerFailed(message["failed"])
        return message


class _Output:
    """What came out of one task, up to a cap; a task that writes more is stopped."""

    def __init__(self, descriptor: int, cap: int) -> None:
        self.descriptor, self._cap = descriptor, cap
        self.data, self.over = bytearray(), False

    def read(self) -> bool:
        """Take what is there; False at its end, at the cap, and when nothing is there."""
        try:
            part = os.read(self.descriptor, READ_BYTES)
        except BlockingIOError:
            return False
        self.data += part[: self._cap - len(self.data)]
        self.over = self.over or (len(part) > 0 and len(self.data) >= self._cap)
        return bool(part) and not self.over


def _channels(
    tasks: Sequence[Task], given: contextlib.ExitStack, kept: contextlib.ExitStack
) -> tuple[list[list[int]], list[int]]:
    """Descriptors for each task (program, standard input, standard output, further ones), and where to read outputs.

    `given` closes here what the tasks now hold, so that a pipe ends when its last task does.
    """
    passed, outputs = [], []
    for task in tasks:
        read, write = os.pipe()
        kept.callback(os.close, read)
        given.callback(os.close, write)
        os.set_blocking(read, False)
        outputs.append(read)
        files = [_sealed_file(task.program), _sealed_file(task.stdin)]
        for descriptor in files:
            given.callback(os.close, descriptor)
        passed.append([*files, write])
    if len(tasks) == 2:
        there, back = os.pipe(), os.pipe()
        for descriptor in (*there, *back):
            given.callback(os.close, descriptor)
        passed[0] += [back[0], there[1]]
        passed[1] += [there[0], back[1]]
    return passed, outputs


def _sealed_file(data: bytes) -> int:
    """A file in memory that nobody can change any more: a job that writes to it fails, and cannot grow it."""
    descriptor = os.memfd_create("job", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def _outcomes(reply: dict[str, Any], outputs: Sequence[_Output]) -> list[Outcome]:
    result = []
    flooded = any(output.over for output in outputs)
    for index, ((status, cpu_s, peak_kib), output) in enumerate(zip(reply["tasks"], outputs, strict=True)):
        code = os.waitstatus_to_exitcode(int(status))
        kind: Status = "killed" if code < 0 else "exited"
        if output.over:
            kind = "output_limit"
        elif reply["timed_out"] and index == 0:
            kind = "timeout"
        elif code == -signal.SIGKILL and (index > 0 or flooded):
            kind = "stopped"
        elif code == MEMORY_EXIT:
            kind = "memory"
        result.append(Outcome(kind, code, bytes(output.data), cpu_s, peak_kib / 1024))
    return result


def _limits(limits: Limits, timeout_s: float) -> dict[str, int]:
    return {
        "memory_bytes": limits.memory_mib << 20,
        "cpu_s": math.ceil(timeout_s) + 1,  # threads may use more than one processor, so less than wall time allows
        "tmp_bytes": limits.tmp_mib << 20,
        "tmp_files": limits.tmp_files,
        "open_files": limits.open_files,
        "threads": limits.threads,
    }


def _config(image: Image, limits: Limits, layers: Layers, control: int) -> dict[str, Any]:
    isolated = "namespaces" in layers.names
    return {
        "control": control,
        "layers": layers.names,
        "binds": image.binds,
        "links": image.links,
        "hidden": image.hidden,
        "python": image.python,
        "preload": image.preload,
        "paths": ["/packages"] if isolated else image.outside,
        "job_uid": JOB_UID if isolated and os.geteuid() == 0 else 0,
        "cgroup": {"memory": (SERVER_MIB + 2 * limits.memory_mib) << 20, "pids": 2 * limits.threads + 16},
    }
