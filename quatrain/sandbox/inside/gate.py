"""The fork server in a container that passes no descriptors: jobs come by standard input, replies leave by output.

Three kinds of process. The fork server, process 1, as everywhere. The gate, which reads the length of each job and
nothing of it. A porter per job, forked from the gate: it reads the job, hands it to the server, writes the reply and
ends, so that no process that is left when the next job comes has seen this one.

    in:  8 bytes, length of the head; head (JSON: id, timeout_s, cpu_s, cap, grace_s, sizes); the tasks' bytes
    out: 8 bytes, length of the head; head (JSON: the server's reply, sizes, over; or failed); what the tasks wrote
"""

import contextlib
import json
import os
import socket
import struct
import sys
from typing import Any, NoReturn

from . import kernel
from .confine import mounts_are_shared
from .exchange import WorkerFailed, run_job
from .server import prepare

LENGTH = struct.Struct(">Q")
MAX_HEAD = 1 << 16


def read_exactly(descriptor: int, count: int) -> bytes:
    """`count` bytes; EOFError when there are no more."""
    data = bytearray()
    while len(data) < count:
        part = os.read(descriptor, min(count - len(data), 1 << 20))
        if not part:
            raise EOFError("the other end is gone")
        data += part
    return bytes(data)


def write_all(descriptor: int, *parts: bytes | bytearray) -> None:
    """Write everything."""
    for part in parts:
        left = memoryview(part)
        while left:
            left = left[os.write(descriptor, left) :]


def read_head(descriptor: int) -> Any:
    """The head of a message; what follows it is left unread."""
    (length,) = LENGTH.unpack(read_exactly(descriptor, LENGTH.size))
    if length > MAX_HEAD:
        raise EOFError("no head is so long")
    return json.loads(read_exactly(descriptor, length))


def message(head: Any) -> bytes:
    """A head with its length."""
    data = json.dumps(head).encode()
    return LENGTH.pack(len(data)) + data


def main() -> None:
    """Become the fork server, with the gate as a child."""
    config = json.loads(sys.argv[1])
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        _gate(theirs)
    theirs.close()
    for number in (0, 1):
        os.dup2(os.open("/dev/null", os.O_RDWR), number)
    with contextlib.suppress(OSError):
        kernel.unmount("/proc")  # which some runtimes insist on; jobs have none
    try:
        config["shared_mounts"] = mounts_are_shared()
        server = prepare(ours, config)
    except Exception as error:  # noqa: BLE001 - the way to be heard
        ours.send(json.dumps({"failed": f"{type(error).__name__}: {error}"}).encode())
        return
    ours.send(b'{"ready": true}')
    server.serve()


def _gate(control: socket.socket) -> NoReturn:
    """Say what the server says first; then a porter per job, until there are no more."""
    try:
        write_all(1, message(json.loads(control.recv(MAX_HEAD) or b'{"failed": "the fork server ended"}')))
        while True:
            head = read_head(0)
            pid = os.fork()
            if pid == 0:
                _porter(control, head)
            if os.waitpid(pid, 0)[1]:
                break
    except EOFError:
        pass
    finally:
        os._exit(0)


def _porter(control: socket.socket, head: dict[str, Any]) -> NoReturn:
    status = 1
    try:
        tasks = [(read_exactly(0, program), read_exactly(0, stdin)) for program, stdin in head["sizes"]]
        request = {name: head[name] for name in ("id", "timeout_s", "cpu_s")}
        try:
            reply, outputs = run_job(control, tasks, request, head["cap"], head["grace_s"])
        except WorkerFailed as failure:
            write_all(1, message({"failed": str(failure)}))
        else:
            sizes = [len(one.data) for one in outputs]
            answer = {"reply": reply, "sizes": sizes, "over": [one.over for one in outputs]}
            write_all(1, message(answer), *(one.data for one in outputs))
            status = 0
    finally:
        os._exit(status)
