"""One job with a fork server: its program and input go in as sealed memory files, its output comes out of a pipe."""

import contextlib
import fcntl
import itertools
import json
import os
import select
import socket
import time
from collections.abc import Sequence
from typing import Any

READ_BYTES = 1 << 16


class WorkerFailed(Exception):
    """The worker died, stopped answering or could not do its part; the job is not to blame."""


class Output:
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


def run_job(
    control: socket.socket, tasks: Sequence[tuple[bytes, bytes]], request: dict[str, Any], cap: int, grace_s: float
) -> tuple[dict[str, Any], list[Output]]:
    """Run tasks (program, standard input) by the fork server at `control`; its reply, and what each task wrote.

    `request` has the job's id, `timeout_s` and `cpu_s`. Raises WorkerFailed, after which the server is of no use.
    """
    with contextlib.ExitStack() as kept:
        with contextlib.ExitStack() as given:
            passed, outputs = _channels(tasks, given, kept)
            request = {**request, "tasks": [len(own) for own in passed]}
            try:
                socket.send_fds(control, [json.dumps(request).encode()], [*itertools.chain(*passed)])
            except OSError as error:
                raise WorkerFailed(f"the worker is gone: {error}") from None
        collected = [Output(descriptor, cap) for descriptor in outputs]
        reply = _collect(control, request["id"], collected, time.monotonic() + request["timeout_s"] + grace_s)
        return reply, collected


def receive(control: socket.socket, deadline: float) -> dict[str, Any]:
    """The next message, which must not be of a failure."""
    poll = select.poll()
    poll.register(control, select.POLLIN)
    if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        raise WorkerFailed("the worker does not answer")
    try:
        data = control.recv(READ_BYTES)
    except OSError as error:
        raise WorkerFailed(f"the worker is gone: {error}") from None
    if not data:
        raise WorkerFailed("the worker ended")
    message = json.loads(data)
    if "failed" in message:
        raise WorkerFailed(message["failed"])
    return message


def _collect(control: socket.socket, job: int, outputs: list[Output], deadline: float) -> dict[str, Any]:
    """Read what the tasks write until the fork server says that they are gone."""
    poll = select.poll()
    poll.register(control, select.POLLIN)
    by_descriptor = {output.descriptor: output for output in outputs}
    for descriptor in by_descriptor:
        poll.register(descriptor, select.POLLIN)
    while True:
        events = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
        if not events or control.fileno() in (descriptor for descriptor, _ in events):
            reply = receive(control, deadline)
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
                        control.send(json.dumps({"stop": job}).encode())


def _channels(
    tasks: Sequence[tuple[bytes, bytes]], given: contextlib.ExitStack, kept: contextlib.ExitStack
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
        files = [_sealed_file(data) for data in task]
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
