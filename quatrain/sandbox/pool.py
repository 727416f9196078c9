"""The local backends: a few warm workers, each owned by a thread, behind an async call."""

import asyncio
import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future

from quatrain.sandbox.image import Image, build_image
from quatrain.sandbox.inside.exchange import WorkerFailed
from quatrain.sandbox.job import Limits, Outcome, SandboxError, Task
from quatrain.sandbox.oci import OciWorker, own_kernel
from quatrain.sandbox.worker import Layers, Worker

_AnyWorker = Worker | OciWorker
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
        runtime: str | None = None,
    ) -> None:
        self._runtime = runtime
        self.limits, self.layers = limits or Limits(), layers or Layers()
        self._packages, self._workers = packages, workers
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._running: set[_AnyWorker] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()

    @property
    def name(self) -> str:
        """`namespace`, `oci: RUNTIME`, or `none` for a pool without."""
        if self._runtime is not None:
            return f"oci: {self._runtime}"
        return "namespace" if "namespaces" in self.layers.names else "none"

    @property
    def isolates(self) -> str:
        """Which wall stands around a program."""
        if "namespaces" not in self.layers.names:
            return "nothing: a plain process with limits"
        inner = "namespaces, no capability, a list of system calls, limits"
        if self._runtime is None:
            return f"{inner}; this machine's kernel"
        outer = "a kernel of its own" if own_kernel(self._runtime) else "a container on this machine's kernel"
        return f"{inner}; {outer}"

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed.is_set()

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
        worker: _AnyWorker | None = None
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
        self, worker: _AnyWorker | None, tasks: Sequence[Task], timeout_s: float, future: "Future[list[Outcome]]"
    ) -> _AnyWorker | None:
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

    def _start(self) -> _AnyWorker:
        image: Image = build_image(self._packages)
        worker = start_worker(image, self.limits, self.layers, self._runtime)
        with self._lock:
            self._running.add(worker)
            if self._closed.is_set():
                worker.interrupt()
        return worker

    def _end(self, worker: _AnyWorker) -> None:
        worker.kill()
        with self._lock:
            self._running.discard(worker)


def start_worker(image: Image, limits: Limits, layers: Layers, runtime: str | None) -> _AnyWorker:
    """A worker in namespaces of its own, or in a container of `runtime`. Raises WorkerFailed."""
    return Worker(image, limits, layers) if runtime is None else OciWorker(image, limits, layers, runtime)
