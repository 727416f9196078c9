"""The fork server: process 1 of a worker's namespaces. It never sees what a candidate wrote.

Jobs come as sealed memory files and leave through pipes, both passed on by descriptor, so nothing of one job stays in
this process for the next to find. It keeps the wall clock of its jobs, since only a process outside a job can.
"""

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
from typing import Any

from . import kernel
from .program import warm_up
from .spare import Spare, make_spare
from .syscalls import job_filter, server_filter

MESSAGE_BYTES, MAX_DESCRIPTORS = 1 << 16, 32
WARM_UPS = 20  # the interpreter specialises code that has run a few times; better here than in each job


class Server:
    """Hands tasks to processes made beforehand, until the other end of the control socket is closed."""

    def __init__(self, control: socket.socket, config: dict[str, Any]) -> None:
        self._control, self._config = control, config
        self._isolated = "namespaces" in config["layers"]
        self._filter = kernel.Filter(job_filter())
        self._spares: list[Spare] = []
        self._made = 0
        self._ended, ending = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)  # readable when a child has ended
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(ending)
        if self._isolated:
            kernel.drop_bounding(set(range(64)) - kernel.SERVER_CAPABILITIES)
            kernel.hold_capabilities(kernel.SERVER_CAPABILITIES)
        if "seccomp" in config["layers"]:
            kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
            kernel.Filter(server_filter()).install()  # jobs inherit it, and add what is theirs

    def serve(self) -> None:
        """Answer requests in turn; {"stop": id} of a job that is over is passed by."""
        self._make(1)
        while True:
            data, descriptors, _, _ = socket.recv_fds(self._control, MESSAGE_BYTES, MAX_DESCRIPTORS)
            if not data:
                return
            request = json.loads(data)
            if "tasks" in request:
                self._control.send(json.dumps(self._job(request, descriptors)).encode())

    def _make(self, count: int) -> None:
        """See to it that so many spare processes wait."""
        while len(self._spares) < count:
            self._made += 1
            self._spares.append(make_spare(self._config, self._filter, self._made))

    def _job(self, request: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        running: list[Spare] = []
        timed_out = False
        try:
            self._make(len(request["tasks"]))
            rest = descriptors
            for count in request["tasks"]:
                own, rest = rest[:count], rest[count:]
                running.append(self._spares.pop(0))
                running[-1].hand_over(own, request["cpu_s"])
            deadline = time.monotonic() + request["timeout_s"]
            while descriptors:  # a pipe ends when its last holder lets go of it
                os.close(descriptors.pop())
            self._make(len(running))  # while these run
            timed_out = self._wait(running[0], request["id"], deadline)
        except OSError as error:
            return {"id": request["id"], "failed": str(error)}
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
            ended = [one.end(group=not self._isolated) for one in reversed(running)][::-1]
        return {"id": request["id"], "tasks": ended, "timed_out": timed_out}

    def _wait(self, first: Spare, job: int, deadline: float) -> bool:
        """Until the first task has ended or someone says stop: False. At the deadline: True."""
        poll = select.poll()
        poll.register(self._ended, select.POLLIN)
        poll.register(self._control, select.POLLIN)
        while (left := deadline - time.monotonic()) > 0:
            if first.has_ended():
                return False
            # poll counts whole milliseconds and rounds up
            ready = [descriptor for descriptor, _ in poll.poll(left * 1000)]
            if self._ended in ready:
                os.read(self._ended, 512)
            if self._control.fileno() in ready:
                data = self._control.recv(MESSAGE_BYTES)
                if not data:
                    raise OSError("the other end is gone")
                if json.loads(data).get("stop") == job:
                    return False
        return True


def main() -> None:
    """Read the settings, load what candidates will import, then serve."""
    config = json.loads(sys.argv[1])
    control = socket.socket(fileno=config["control"])
    try:
        server = prepare(control, config)
    except Exception as error:  # noqa: BLE001 - standard error is closed: this is the way to be heard
        control.send(json.dumps({"failed": f"{type(error).__name__}: {error}"}).encode())
        return
    control.send(b'{"ready": true}')
    server.serve()


def prepare(control: socket.socket, config: dict[str, Any]) -> Server:
    """A server with everything loaded that jobs share with it."""
    os.environ.clear()
    sys.path += config["paths"]
    sys.argv = ["program.py"]
    for name in config["preload"]:
        importlib.import_module(name)
    server = Server(control, config)
    for _ in range(WARM_UPS):
        warm_up()
    gc.collect()
    kernel.trim()
    gc.freeze()  # what exists now is shared with every job; a collection there would copy its pages
    return server
