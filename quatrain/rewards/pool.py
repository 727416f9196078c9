"""Worker processes for reward functions: a deadline that holds, and one bad call that harms no other.

A thread of the parent owns each process, so that scoring works from any thread and any event loop. The clock of a call
starts when an idle process is given the call. A process that misses the deadline is killed with all it has started and
replaced; one that dies is replaced and the call tried once more.
"""

import asyncio
import contextlib
import json
import os
import pickle
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from quatrain.errors import QuatrainError, SettingError, VerifierError
from quatrain.rewards.calling import Answer, Signature, failed, timed_out

START_LIMIT_S = 120.0  # imports and warm-up of a worker
GRACE_S = 0.5  # a coroutine is cancelled at its deadline inside the worker, and killed this much later
SIDE_BY_SIDE = 16  # coroutines in flight in one worker


class _Gone(Exception):
    """The worker closed its pipe."""


class _Late(Exception):
    """The worker missed its deadline."""


class _Process:
    """One running worker and the two pipes to it."""

    def __init__(self, target: str, setting: str, timeout_s: float) -> None:
        self._target, self._setting, self._timeout_s = target, setting, timeout_s
        request_read, self._requests = os.pipe()
        self._answers, answer_write = os.pipe()
        os.set_blocking(self._requests, False)
        package_root = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(filter(None, (package_root, os.environ.get("PYTHONPATH"))))
        command = [sys.executable, "-P", "-m", "quatrain.rewards.worker", target, repr(timeout_s)]
        self._process = subprocess.Popen(
            [*command, str(request_read), str(answer_write)],
            stdin=subprocess.DEVNULL,
            stdout=2,  # what a function prints goes to standard error
            pass_fds=(request_read, answer_write),
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )
        os.close(request_read)
        os.close(answer_write)

    def signature(self) -> Signature:
        """Wait until the function is loaded; SettingError says why it is not."""
        try:
            plain = json.loads(self._read(time.monotonic() + START_LIMIT_S))
        except (_Gone, _Late) as error:
            why = "it ended while importing" if isinstance(error, _Gone) else f"not within {START_LIMIT_S:g} s"
            raise SettingError(self._setting, self._target, "a file that can be loaded", why) from None
        if "signature" not in plain:
            raise SettingError(self._setting, plain["got"], plain["need"], plain["do"])
        accepts = plain["signature"]["accepts"]
        return Signature(None if accepts is None else tuple(accepts), tuple(plain["signature"]["required"]),
                         plain["signature"]["is_async"])  # fmt: skip

    def ask(self, calls: Sequence[bytes], limit_s: float, answers: dict[int, Answer]) -> None:
        """Put the calls' answers into `answers`; raises _Late or _Gone when some are missing."""
        deadline = time.monotonic() + limit_s
        frame = pickle.dumps(list(calls))
        self._write(len(frame).to_bytes(8, "big") + frame, deadline)
        while len(answers) < len(calls):
            data = self._read(deadline)
            answers[int.from_bytes(data[:8], "big")] = Answer.from_json(data[8:])

    def interrupt(self) -> None:
        """Kill the worker and everything it started; its owner then finds the pipe closed."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def kill(self) -> int:
        """Interrupt, and release what the parent holds; returns the exit status (negative: the signal)."""
        status = self._process.poll()
        self.interrupt()
        status = self._process.wait() if status is None else status
        for descriptor in (self._requests, self._answers):
            os.close(descriptor)
        return status

    def _write(self, data: bytes, deadline: float) -> None:
        left = memoryview(data)
        while left:
            self._wait(self._requests, select.POLLOUT, deadline)
            try:
                left = left[os.write(self._requests, left[:65536]) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                raise _Gone from None

    def _read(self, deadline: float) -> bytes:
        length = int.from_bytes(self._read_exactly(8, deadline), "big")
        return self._read_exactly(length, deadline)

    def _read_exactly(self, count: int, deadline: float) -> bytes:
        data = bytearray()
        while len(data) < count:
            self._wait(self._answers, select.POLLIN, deadline)
            part = os.read(self._answers, count - len(data))
            if not part:
                raise _Gone
            data += part
        return bytes(data)

    @staticmethod
    def _wait(descriptor: int, event: int, deadline: float) -> None:
        poll = select.poll()
        poll.register(descriptor, event)
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise _Late


Job = tuple[list[bytes], "Future[list[Answer]]"]


class Pool:
    """`workers` processes that run one function: `FILE.py:NAME`, or `package.module:NAME` for the package's own.

    Processes start with the pool, in the background. `close` (or the end of this process) ends them.
    """

    def __init__(self, target: str, *, setting: str = "kind", timeout_s: float, workers: int = 2) -> None:
        self._target, self._setting, self._timeout_s, self._workers = target, setting, timeout_s, workers
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._signature: Future[Signature] = Future()
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._running: set[_Process] = set()
        self._threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(workers)]
        for thread in self._threads:
            thread.start()

    def signature(self) -> Signature:
        """What the function takes; blocks until a worker has loaded it, and raises SettingError if none can."""
        return self._signature.result()

    async def call(self, calls: Sequence[Mapping[str, Any]]) -> list[Answer]:
        """One answer per set of keyword arguments, in order."""
        if self._closed.is_set():
            raise VerifierError(f"{self._target}: the verifier has been closed")
        payloads = [pickle.dumps(dict(given)) for given in calls]
        signature = await asyncio.shield(asyncio.wrap_future(self._signature))
        size = min(SIDE_BY_SIDE, max(1, -(-len(payloads) // self._workers))) if signature.is_async else 1
        futures: list[Future[list[Answer]]] = []
        for start in range(0, len(payloads), size):
            futures.append(Future())
            self._jobs.put((payloads[start : start + size], futures[-1]))
        parts = await asyncio.gather(*(asyncio.wrap_future(future) for future in futures))
        return [answer for part in parts for answer in part]

    def close(self) -> None:
        """End the workers now, also those in the middle of a call."""
        self._closed.set()
        with self._lock:
            for process in self._running:
                process.interrupt()
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join(timeout=5)

    def _serve(self) -> None:
        """The life of one thread: keep one process ready, hand it jobs, replace it when it fails."""
        process: _Process | None = None
        while True:
            failure: Exception | None = None
            try:
                process = process or self._start()
            except (QuatrainError, OSError) as error:
                failure = error
                with self._lock:
                    if not self._signature.done():
                        self._signature.set_exception(error)
            job = self._jobs.get()
            if job is None:
                break
            calls, future = job
            if not future.set_running_or_notify_cancel():
                continue
            try:
                if process is None:
                    raise failure or VerifierError(f"{self._target}: no worker")
                process, answers = self._run(process, calls)
            except Exception as error:  # noqa: BLE001 - the boundary around a verifier's call: nobody waits for ever
                if process is not None and process in self._running:
                    self._end(process)
                process = None
                future.set_exception(error)
            else:
                future.set_result(answers)
        if process is not None:
            self._end(process)

    def _start(self) -> _Process:
        process = _Process(self._target, self._setting, self._timeout_s)
        with self._lock:
            self._running.add(process)
            if self._closed.is_set():
                process.interrupt()
        try:
            signature = process.signature()
        except SettingError:
            self._end(process)
            raise
        with self._lock:
            if not self._signature.done():
                self._signature.set_result(signature)
        return process

    def _end(self, process: _Process) -> int:
        with self._lock:
            self._running.discard(process)
        return process.kill()

    def _run(
        self, process: _Process | None, calls: list[bytes], again: bool = True
    ) -> tuple[_Process | None, list[Answer]]:
        """Answers to all calls, and the process to use next; None: it is gone, and nobody waits for another here."""
        process = process or self._start()
        answers: dict[int, Answer] = {}
        limit_s = self._timeout_s + (GRACE_S if self.signature().is_async else 0.0)
        try:
            process.ask(calls, limit_s, answers)
            return process, [answers[index] for index in range(len(calls))]
        except (_Gone, _Late) as error:
            status = self._end(process)
            if self._closed.is_set():
                raise VerifierError(f"{self._target}: closed while scoring") from None
            late = isinstance(error, _Late)
        process = None
        for index in range(len(calls)):
            if index in answers:
                continue
            if len(calls) > 1 or (again and not late):  # find the culprit, or give a crash a second chance
                process, (answers[index],) = self._run(process, [calls[index]], again=len(calls) > 1)
            else:
                answers[index] = (
                    timed_out(self._timeout_s) if late else failed(f"the worker died (exit status {status})")
                )
        return process, [answers[index] for index in range(len(calls))]
