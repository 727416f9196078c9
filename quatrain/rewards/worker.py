"""The child process in which a reward function runs: `python -m quatrain.rewards.worker`; see pool.py for the parent.

Requests come and answers go on two pipes of their own, so that what a function prints or reads cannot disturb them.
A frame is eight bytes of length (big-endian) and the payload: down a pickled list of pickled keyword arguments, up the
JSON of an answer with its position in the list. The first frame up is the function's signature or why it has none.
"""

import asyncio
import importlib
import json
import os
import pickle
import queue
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from quatrain.errors import SettingError
from quatrain.registry import is_file_reference, load_attribute
from quatrain.rewards.calling import Answer, Signature, call_async, call_now, describe, raised


def load(target: str) -> tuple[Callable[..., Any], Signature]:
    """The function `FILE.py:NAME` (with its folder importable) or `package.module:NAME`, warmed up."""
    module_name, _, name = target.rpartition(":")
    if is_file_reference(target):
        sys.path.insert(0, str(Path(module_name).expanduser().resolve().parent))
        function = load_attribute(target, "kind")
    else:
        module = importlib.import_module(module_name)
        getattr(module, "warm_up", lambda: None)()
        function = getattr(module, name)
    return function, describe(function, "kind", target)


def send(pipe: BinaryIO, payload: bytes) -> None:
    """Write one frame."""
    pipe.write(len(payload).to_bytes(8, "big") + payload)
    pipe.flush()


def receive(pipe: BinaryIO, inbox: "queue.SimpleQueue[bytes]") -> None:
    """Read frames into `inbox`; when the parent is gone, end this process and whatever it has started."""
    while len(header := pipe.read(8)) == 8:
        inbox.put(pipe.read(int.from_bytes(header, "big")))
    os.killpg(os.getpid(), signal.SIGKILL)


def _arguments(payload: bytes) -> dict[str, Any] | Answer:
    try:
        return pickle.loads(payload)
    except Exception as error:  # noqa: BLE001 - a column's own class may raise anything here
        return raised(error)


def serve(function: Callable[..., Any], calls: list[bytes], pipe: BinaryIO) -> None:
    """Call a plain function on each item, in order."""
    for index, payload in enumerate(calls):
        given = _arguments(payload)
        answer = given if isinstance(given, Answer) else call_now(function, given)
        send(pipe, index.to_bytes(8, "big") + answer.to_json())


async def serve_async(function: Callable[..., Any], calls: list[bytes], pipe: BinaryIO, timeout_s: float) -> None:
    """Await a coroutine function on all items at once; each answer goes up when it is there."""

    async def one(index: int, payload: bytes) -> None:
        given = _arguments(payload)
        answer = given if isinstance(given, Answer) else await call_async(function, given, timeout_s)
        send(pipe, index.to_bytes(8, "big") + answer.to_json())

    await asyncio.gather(*(one(index, payload) for index, payload in enumerate(calls)))


def main() -> None:
    """Load the function, tell the parent, then answer until the parent is gone."""
    target, timeout_s = sys.argv[1], float(sys.argv[2])
    for descriptor in (int(sys.argv[3]), int(sys.argv[4])):
        os.set_inheritable(descriptor, False)
    requests, answers = os.fdopen(int(sys.argv[3]), "rb"), os.fdopen(int(sys.argv[4]), "wb")
    inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=receive, args=(requests, inbox), daemon=True).start()
    try:
        function, signature = load(target)
    except SettingError as error:
        send(answers, json.dumps({"got": error.got, "need": error.need, "do": error.do}).encode("ascii"))
        return
    send(answers, json.dumps({"signature": asdict(signature)}).encode("ascii"))
    with asyncio.Runner() as runner:
        while True:
            calls = pickle.loads(inbox.get())
            if signature.is_async:
                runner.run(serve_async(function, calls, answers, timeout_s))
            else:
                serve(function, calls, answers)


if __name__ == "__main__":
    main()
