"""The embedded backend: a few warm workers, each owned by a thread, behind an async call."""

import asyncio
import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future

from quatrain.sandbox.image import Image, build_image
from quatrain.sandbox.job import Limits, Outcome, SandboxError, Task
from quatrain.sandbox.worker import Layers, Worker, WorkerFailed

_Job = tuple[Sequence[Task], float, "Future[list[Outcome]]"]


class Pool:
    """`workers` workers that start with the first job. A `Backend`; usable from any thread and any event loop.

    A worker that dies or stops answering is replaced and its job tried once more; a second failure is a SandboxError,
    never an outcome.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        workers: int = 2,
        packages: tuple[tuple[str, str], ...] = (),
        layers: Layers | None = None,
    ) -> None:
        self.limits, self.layers = limits or Limits(), layers or Layers()
        self._packages, self._workers = packages, workers
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._running: set[Worker] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()

    @property
    def name(self) -> str:
        """`namespace`, or `none` for a pool without."""
        return "namespace" if "namespaces" in self.layers.names else "none"

    async def run(self, tasks: Sequence[Task], timeout_s: float | None = None) -> list[Outcome]:
        """See `Backend.run`; the clock starts when a worker starts the job, not in the queue."""
        future: Future[list[Outcome]] = Future()
        with self._lock:
            if self._closed.is_set():
                raise SandboxError("the sandbox has been closed")
            while len(self._threads) < self._workers:
                self._threads.append(threading.Thread(target=self._serve, name="sandbox", daemon=True))
                self._threads[-1].start()
            self._jobs.put((tasks, self.limits.timeout_s if timeout_s is None else timeout_s, future))
        return await asyncio.wrap_future(future)

    def processes(self) -> list[int]:
        """Process ids of the launchers that run now."""
        with self._lock:
            return [worker.pid for worker in self._running]

    def close(self) -> None:
        """End the workers now; a job that runs becomes a SandboxError."""
        with self._lock:
            self._closed.set()
            for worker in self._running:
                worker.interrupt()
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join(self.limits.timeout_s + 10)

    def _serve(self) -> None:
        """The life of one thread and its worker."""
        worker: Worker | None = None
        try:
            while (job := self._jobs.get()) is not None:
                tasks, timeout_s, future = job
                if self._closed.is_set():
                    future.cancel()
                if future.set_running_or_notify_cancel():
                    worker = self._run(worker, tasks, timeout_s, future)
        finally:
            if worker is not None:
                self._end(worker)

    def _run(
        self, worker: Worker | None, tasks: Sequence[Task], timeout_s: float, future: "Future[list[Outcome]]"
    ) -> Worker | None:
        """Answer `future`, if need be by a second worker; returns the worker for the next job."""
        failure = "a fault in the sandbox's own code"
        try:
            for _ in range(2):
                try:
                    worker = worker or self._start()
                    future.set_result(worker.run(tasks, timeout_s))
                    return worker
                except (WorkerFailed, SandboxError, OSError) as error:
                    failure = str(error)
                    if worker is not None:
                        self._end(worker)
                    worker = None
                if self._closed.is_set():
                    break
            return None
        finally:
            if not future.done():
                said = "was closed" if self._closed.is_set() else f"failed twice: {failure}"
                future.set_exception(SandboxError(f"the sandbox {said}"))

    def _start(self) -> Worker:
        image: Image = build_image(self._packages)
        worker = Worker(image, self.limits, self.layers)
        with self._lock:
            self._running.add(worker)
            if self._closed.is_set():
                worker.interrupt()
        return worker

    def _end(self, worker: Worker) -> None:
        worker.kill()
        with self._lock:
            self._running.discard(worker)
