"""The fork server: process 1 of a worker's namespaces. It never sees what a candidate wrote.

Jobs come as sealed memory files and leave through pipes, both passed on by descriptor, so nothing of one job stays in
this process for the next to find. It keeps the wall clock of its jobs, since only a process outside a job can.
"""

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass
from typing import Any, NoReturn

from . import kernel
from .confine import confine
from .program import run
from .syscalls import job_filter

MESSAGE_BYTES, MAX_DESCRIPTORS = 1 << 16, 32
_SAFE_DESCRIPTOR = 200  # above every number that a job's descriptors are moved to


@dataclass(frozen=True)
class Child:
    """A running task: its process, and the descriptor that becomes readable when it ends."""

    pid: int
    pidfd: int


class Server:
    """Forks a process per task on request, until the other end of the control socket is closed."""

    def __init__(self, control: socket.socket, config: dict[str, Any]) -> None:
        self._control, self._config = control, config
        self._namespaces = "namespaces" in config["layers"]
        self._filter = kernel.Filter(job_filter())
        self._self_pidfd = os.pidfd_open(os.getpid()) if self._namespaces else -1
        if self._namespaces:
            kernel.drop_bounding(set(range(64)) - kernel.SERVER_CAPABILITIES)
            kernel.hold_capabilities(kernel.SERVER_CAPABILITIES, locked=False)

    def serve(self) -> None:
        """Answer requests in turn; {"stop": id} of a job that is over is passed by."""
        while True:
            data, descriptors, _, _ = socket.recv_fds(self._control, MESSAGE_BYTES, MAX_DESCRIPTORS)
            if not data:
                return
            request = json.loads(data)
            if "tasks" in request:
                self._control.send(json.dumps(self._job(request, descriptors)).encode())

    def _job(self, request: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        children: list[Child] = []
        timed_out = False
        try:
            for count in request["tasks"]:
                own, descriptors = descriptors[:count], descriptors[count:]
                children.append(self._start(own, request["limits"]))
            timed_out = self._wait(children[0], request["id"], time.monotonic() + request["timeout_s"])
        except OSError as error:
            return {"id": request["id"], "failed": str(error)}
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
            ended = [self._end(child) for child in reversed(children)][::-1]
        return {"id": request["id"], "tasks": ended, "timed_out": timed_out}

    def _wait(self, first: Child, job: int, deadline: float) -> bool:
        """Until the first task has ended or someone says stop: False. At the deadline: True."""
        poll = select.poll()
        poll.register(first.pidfd, select.POLLIN)
        poll.register(self._control, select.POLLIN)
        while (left := deadline - time.monotonic()) > 0:
            # poll counts whole milliseconds and rounds up
            ready = [descriptor for descriptor, _ in poll.poll(left * 1000)]
            if first.pidfd in ready:
                return False
            if ready:
                data = self._control.recv(MESSAGE_BYTES)
                if not data:
                    raise OSError("the other end is gone")
                if json.loads(data).get("stop") == job:
                    return False
        return True

    def _start(self, own: list[int], limits: dict[str, int]) -> Child:
        """Fork a task; returns when it is locked in, just before it reads its program."""
        locked, report = os.pipe()
        if self._namespaces:
            kernel.unshare(kernel.CLONE_NEWPID)  # for children only: the next one is process 1 of a new namespace
        pid = os.fork()
        if pid == 0:
            self._become_job(own, limits, report)
        if self._namespaces:
            kernel.setns(self._self_pidfd, kernel.CLONE_NEWPID)  # undo, or the next unshare would be refused
        child = Child(pid, os.pidfd_open(pid))
        for descriptor in (report, *own):
            os.close(descriptor)
        said = os.read(locked, 4096)
        os.close(locked)
        if said != b"locked":
            self._end(child)
            raise OSError(f"a job could not be locked in: {said.decode() or 'it died'}")
        return child

    def _become_job(self, own: list[int], limits: dict[str, int], report: int) -> NoReturn:
        status = 1
        try:
            program = _arrange(own, report)
            report = program + 1
            # A group of its own: kill(0, ...) reaches a process group across namespaces, up to the launcher.
            os.setsid()
            confine(self._config, limits, self._filter)
            os.write(report, b"locked")
            os.close(report)
            with open(program, "rb") as file:
                source = file.read()
            status = run(source)
        except BaseException as error:  # noqa: BLE001 - nothing may return into the server's loop
            _report(report, error)
        finally:
            os._exit(status)

    def _end(self, child: Child) -> list[float]:
        """Kill process 1 of the job's namespace and wait: that returns only when the namespace is empty.

        Returns the wait status, the processor seconds and the peak of resident memory in KiB.
        """
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(child.pidfd, signal.SIGKILL)
            if not self._namespaces:
                os.killpg(child.pid, signal.SIGKILL)
        _, status, usage = os.wait4(child.pid, 0)
        os.close(child.pidfd)
        return [status, usage.ru_utime + usage.ru_stime, usage.ru_maxrss]


def _arrange(own: list[int], report: int) -> int:
    """Descriptors 0, 1: standard input and output; 2: /dev/null; 3 and on: the task's further ones, then the program.

    Returns the number of the program's; the one of `report` comes right after it. Every other descriptor is closed.
    """
    program, *rest = own
    moved = [os.dup2(one, _SAFE_DESCRIPTOR + index) for index, one in enumerate([*rest, program, report])]
    targets = [0, 1, *range(3, len(moved) + 1)]
    os.dup2(os.open("/dev/null", os.O_WRONLY), 2)
    for source, target in zip(moved, targets, strict=True):
        os.dup2(source, target, inheritable=False)
    os.closerange(targets[-1] + 1, 1 << 20)
    return targets[-2]


def _report(report: int, error: BaseException) -> None:
    with contextlib.suppress(OSError):  # closed when it was locked in already: then the failure is the candidate's
        os.write(report, f"{type(error).__name__}: {error}".encode()[:4000])


def main() -> None:
    """Read the settings, load what candidates will import, then serve."""
    config = json.loads(sys.argv[1])
    control = socket.socket(fileno=config["control"])
    try:
        server = _prepare(control, config)
    except Exception as error:  # noqa: BLE001 - standard error is closed: this is the way to be heard
        control.send(json.dumps({"failed": f"{type(error).__name__}: {error}"}).encode())
        return
    control.send(b'{"ready": true}')
    server.serve()


def _prepare(control: socket.socket, config: dict[str, Any]) -> Server:
    os.environ.clear()
    sys.path += config["paths"]
    sys.argv = ["program.py"]
    for name in config["preload"]:
        importlib.import_module(name)
    server = Server(control, config)
    gc.collect()
    gc.freeze()  # what exists now is shared with every job; a collection there would copy its pages
    return server
