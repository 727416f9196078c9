"""Messages on descriptors: frames among whatever else a program prints, and the pipe between two tasks."""

import os
import struct
from builtins import len
from typing import Any

from .values import NotPlain, from_bytes, to_bytes

MARK = b"\n\x00\x01frame"
MAX_MESSAGE = 16 << 20
_write, _read = os.write, os.read


def write_all(descriptor: int, data: bytes) -> None:
    """Write everything."""
    left = memoryview(data)
    while left:
        left = left[_write(descriptor, left) :]


def send_frame(message: Any) -> None:
    """A message on standard output."""
    data = to_bytes(message)
    write_all(1, MARK + struct.pack(">I", len(data)) + data)


def frames(output: bytes) -> tuple[list[Any], bool]:
    """The messages in a program's output, in order, up to one that is malformed or cut off; True when none is.

    A program may write the mark itself. It then says nothing that it could not have said by returning it.
    """
    found, position = [], 0
    while (start := output.find(MARK, position)) >= 0:
        head = start + len(MARK)
        length = int.from_bytes(output[head : head + 4], "big")
        position = head + 4 + length
        try:
            if len(output) < position:
                raise NotPlain("cut off")
            found.append(from_bytes(output[head + 4 : position]))
        except NotPlain:
            return found, False
    return found, True


def send(descriptor: int, message: Any) -> None:
    """A message into a pipe."""
    data = to_bytes(message)
    write_all(descriptor, struct.pack(">I", len(data)) + data)


def receive(descriptor: int) -> Any:
    """The next message of a pipe; EOFError when the other end is gone or the message is longer than any honest one."""
    length = int.from_bytes(_exactly(descriptor, 4), "big")
    if length > MAX_MESSAGE:
        raise EOFError("the message is too long")
    return from_bytes(_exactly(descriptor, length))


def _exactly(descriptor: int, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = _read(descriptor, count - len(data))
        if not part:
            raise EOFError("the other process is gone")
        data += part
    return bytes(data)
