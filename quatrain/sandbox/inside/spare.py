"""A process made before its task arrives: namespaced, limited, without capabilities, and waiting for descriptors.

Making one costs more than most programs run, so it is done while another task runs. Each serves one task and ends.
"""

import array
import contextlib
import os
import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from . import kernel
from .confine import Place, confine, seal
from .program import run, warm_up

# A mount table of the job's own, for an empty /tmp. Network and host name are the worker's: nothing can be done there
# without sockets, and no interface is up. IPC guards against a hole in the filter, which refuses System V objects.
JOB = kernel.CLONE_NEWPID | kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC
LOCKED = b"locked"
_CHANNEL = 9  # where a spare's end of its channel lies: above the descriptors that arrive


@dataclass(frozen=True)
class Spare:
    """A waiting process, this side's end of the channel to it, and its folder where mounts are not its own."""

    pid: int
    channel: socket.socket
    folder: str

    def has_ended(self) -> bool:
        """Whether its process 1 has, without taking note of it: its number stays its own until `end`."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def hand_over(self, own: Sequence[int], cpu_s: int) -> None:
        """Give it a task: program, standard input, standard output, further descriptors.

        Returns when it is locked in, just before it reads its program. Raises OSError with what it said.
        """
        program, *streams = own
        rights = array.array("i", [*streams[2:], *streams[:2], program])
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # then it has said why
            self.channel.sendmsg([b"%d" % cpu_s], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        said = self.channel.recv(4096)
        if said != LOCKED:
            raise OSError(f"a job could not be locked in: {said.decode() or 'it died'}")
        self.channel.close()

    def end(self, *, group: bool) -> list[float]:
        """Kill process 1 of the job's namespace and wait: that returns only when the namespace is empty.

        `group`: there is no such namespace, so kill its process group too. Returns the wait status, the processor
        seconds and the peak of resident memory in KiB.
        """
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
            if group:
                os.killpg(self.pid, signal.SIGKILL)
        _, status, usage = os.wait4(self.pid, 0)
        self.channel.close()
        if self.folder:
            kernel.unmount(self.folder)
            os.rmdir(self.folder)
        return [status, usage.ru_utime + usage.ru_stime, usage.ru_maxrss]


def make_spare(config: dict[str, Any], filter_: kernel.Filter, number: int) -> Spare:
    """Fork one, with `namespaces` as process 1 of a new pid namespace. It reports when it is given a task."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    place = Place.of(config, number)
    with theirs:
        pid = kernel.clone(JOB) if "namespaces" in config["layers"] else os.fork()
        if pid == 0:
            _become_spare(theirs.fileno(), config, filter_, place)
    return Spare(pid, ours, place.folder if place.shared else "")


def _become_spare(channel: int, config: dict[str, Any], filter_: kernel.Filter, place: Place) -> NoReturn:
    status = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        _keep_only(channel)
        # A group of its own: kill(0, ...) reaches a process group across namespaces, up to the launcher.
        os.setsid()
        confine(config, place)
        warm_up()
        program = _receive(config, filter_)
        with open(program, "rb") as file:
            source = file.read()
        status = run(source)
    except BaseException as error:  # noqa: BLE001 - nothing may return into the server's loop
        _report(error)
    finally:
        os._exit(status)


def _keep_only(channel: int) -> None:
    """Nothing is open but the channel, as _CHANNEL, and /dev/null as 0, 1 and 2."""
    if channel != _CHANNEL:  # which the kernel would take for a mistake
        os.dup2(channel, _CHANNEL, inheritable=False)
    null = os.open("/dev/null", os.O_RDWR)
    for number in range(3):
        os.dup2(null, number, inheritable=False)
    os.closerange(3, _CHANNEL)
    os.closerange(_CHANNEL + 1, 1 << 20)


def _receive(config: dict[str, Any], filter_: kernel.Filter) -> int:
    """Wait for the task, put its descriptors in place, shut the last door. Returns the program's descriptor.

    They arrive in the lowest free numbers: from 3 on the task's further ones, as it expects them, then standard input
    and output, then the program.
    """
    with socket.socket(fileno=_CHANNEL) as wire:
        data, received, _, _ = socket.recv_fds(wire, 64, _CHANNEL - 3)
        *_further, stdin, stdout, program = received
        if received != [*range(3, 3 + len(received))]:
            raise OSError(f"descriptors arrived as {received}")
        os.dup2(stdin, 0, inheritable=False)
        os.dup2(stdout, 1, inheritable=False)
        os.close(stdin)
        os.close(stdout)
        seal(config, int(data), filter_)
        wire.send(LOCKED)
    return program


def _report(error: BaseException) -> None:
    with contextlib.suppress(OSError):  # closed when it was locked in already: then the failure is the candidate's
        os.write(_CHANNEL, f"{type(error).__name__}: {error}".encode()[:4000])
