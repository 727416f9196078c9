"""The `remote` backend: a sandbox service reached by HTTP. The protocol is that of docs/sandbox.md."""

import asyncio
import base64
import http.client
import json
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, get_args
from urllib.parse import urlsplit

from quatrain.sandbox.canary import CANARY, CANARY_S, breaches
from quatrain.sandbox.job import Limits, Outcome, SandboxError, Status, Task

PATH = "/v1/jobs"
VERSION = 1
ANSWER_S = 30.0  # what a job may take beside its limit: the way there and back, and its turn in the service's queue
OVERHEAD_BYTES = 1 << 16


class _Unreachable(Exception):
    """Nothing is known about the job, and another attempt may help."""


class Remote:
    """Jobs as HTTP requests to `address`, at most `workers` at a time. A `Backend`.

    A request that fails on the way, is answered late or with 5xx is sent once more; a second failure is a
    SandboxError. The token in the environment variable `token_env`, if there is one, goes with each.
    """

    def __init__(self, address: str, limits: Limits, *, token_env: str, workers: int) -> None:
        self.limits = limits
        self._url = urlsplit(address if "://" in address else f"http://{address}")
        self._token = os.environ.get(token_env, "")
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="sandbox")
        self._described: dict[str, Any] = {}
        self.closed = False

    @property
    def name(self) -> str:
        """`remote: ADDRESS`."""
        return f"remote: {self._url.netloc}"

    @property
    def isolates(self) -> str:
        """What the service says of itself."""
        said = self._described
        return f"{said.get('name', 'unknown')}: {said.get('isolates', 'unknown')}"

    async def run(self, tasks: Sequence[Task], timeout_s: float | None = None) -> list[Outcome]:
        """See `Backend.run`; the service keeps the program's clock, this side one for the answer."""
        timeout_s = self.limits.timeout_s if timeout_s is None else timeout_s
        try:
            work = asyncio.get_running_loop().run_in_executor(self._threads, self.run_now, tasks, timeout_s)
        except RuntimeError as error:
            raise SandboxError(f"the sandbox has been closed: {error}") from None
        return await work

    def describe(self) -> dict[str, Any]:
        """What the service is: name, isolates, version, packages, limits. Raises SandboxError."""
        self._described = self._twice("GET", None, ANSWER_S, OVERHEAD_BYTES)
        return self._described

    def close(self) -> None:
        """Send no more."""
        self.closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)

    def run_now(self, tasks: Sequence[Task], timeout_s: float) -> list[Outcome]:
        """As `run`, in this thread."""
        job = {
            "timeout_s": timeout_s,
            "tasks": [{"program": _encode(one.program), "stdin": _encode(one.stdin)} for one in tasks],
        }
        cap = OVERHEAD_BYTES + len(tasks) * (self.limits.output_kib << 10) * 4 // 3
        answer = self._twice("POST", json.dumps(job).encode(), timeout_s + ANSWER_S, cap)
        try:
            outcomes = [decode_outcome(one) for one in answer["outcomes"]]
            if len(outcomes) != len(tasks):
                raise ValueError(f"{len(outcomes)} outcomes for {len(tasks)} tasks")
        except (KeyError, TypeError, ValueError) as error:
            raise SandboxError(f"{self.name} does not keep to the protocol: {error}") from None
        return outcomes

    def _twice(self, method: str, body: bytes | None, limit_s: float, cap: int) -> dict[str, Any]:
        failure = ""
        for _ in range(2):
            try:
                return self._ask(method, body, time.monotonic() + limit_s, cap)
            except _Unreachable as error:
                failure = str(error)
        raise SandboxError(f"{self.name} failed twice: {failure}")

    def _ask(self, method: str, body: bytes | None, deadline: float, cap: int) -> dict[str, Any]:
        kind = http.client.HTTPSConnection if self._url.scheme == "https" else http.client.HTTPConnection
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        connection = kind(self._url.hostname or "", self._url.port, timeout=max(0.1, deadline - time.monotonic()))
        try:
            connection.request(method, self._url.path.rstrip("/") + PATH, body, headers)
            response = connection.getresponse()
            data = _read(connection, response, deadline, cap)
        except (OSError, http.client.HTTPException) as error:
            raise _Unreachable(f"{type(error).__name__}: {error}") from None
        finally:
            connection.close()
        if response.status >= 500:
            raise _Unreachable(f"it answered {response.status} ({_error(data)})")
        if response.status != 200:
            raise SandboxError(f"{self.name} refused the job: {response.status} ({_error(data)})")
        try:
            answer = json.loads(data)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise SandboxError(f"{self.name} does not keep to the protocol: the answer is no JSON object")
        return answer


def _read(
    connection: http.client.HTTPConnection, response: http.client.HTTPResponse, deadline: float, cap: int
) -> bytes:
    """The whole body; a TimeoutError at the deadline, however slowly it trickles in."""
    data = bytearray()
    while part := response.read1(1 << 16):
        data += part
        if len(data) > cap:
            raise http.client.HTTPException(f"the answer is longer than {cap} bytes")
        if (left := deadline - time.monotonic()) <= 0:
            raise TimeoutError("the answer is late")
        if connection.sock is not None:
            connection.sock.settimeout(left)
    if response.length:
        raise http.client.HTTPException("the answer was cut off")
    return bytes(data)


def why_not_remote(remote: Remote, packages: Sequence[str]) -> str:
    """Empty when the service answers, suits, and the canary could do nothing there; else one line with a remedy."""
    try:
        said = remote.describe()
        if reason := _unsuited(remote, said, packages):
            return reason
        (outcome,) = remote.run_now([CANARY], CANARY_S)
    except SandboxError as error:
        return f"{error}; start it with `python -m quatrain.sandbox.serve`, or check address and token"
    reason = breaches(outcome)
    return f"{remote.name}: {reason}" if reason else ""


def _unsuited(remote: Remote, said: dict[str, Any], packages: Sequence[str]) -> str:
    if said.get("version") != VERSION:
        return f"{remote.name} speaks version {said.get('version')}, need {VERSION}; install the same quatrain there"
    offered = said.get("packages")
    missing = sorted(set(packages) - set(offered if isinstance(offered, list) else []))
    if missing:
        return f"{remote.name} has no {', '.join(missing)}; start it with --packages {' '.join(missing)}"
    for name in ("memory_mib", "output_kib"):
        if said.get(name) != getattr(remote.limits, name):
            option = f"--{name.replace('_', '-')} {getattr(remote.limits, name)}"
            return f"{remote.name} runs programs with {name} {said.get(name)}; start it with {option}, or set {name}"
    return ""


def encode_outcome(outcome: Outcome) -> dict[str, Any]:
    """An outcome in the protocol's JSON."""
    return {
        "status": outcome.status,
        "exit_status": outcome.exit_status,
        "output": _encode(outcome.output),
        "cpu_s": outcome.cpu_s,
        "peak_mib": outcome.peak_mib,
    }


def decode_outcome(said: dict[str, Any]) -> Outcome:
    """The inverse; raises KeyError, TypeError or ValueError for anything else."""
    if said["status"] not in get_args(Status):
        raise ValueError(f"status {said['status']!r}")
    if type(said["exit_status"]) is not int:
        raise ValueError(f"exit_status {said['exit_status']!r}")
    return Outcome(
        said["status"], said["exit_status"], decode(said["output"]), float(said["cpu_s"]), float(said["peak_mib"])
    )


def decode(text: Any) -> bytes:
    """Base 64, strictly; raises TypeError or ValueError."""
    if not isinstance(text, str):
        raise TypeError("not text")
    return base64.b64decode(text, validate=True)


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _error(data: bytes) -> str:
    try:
        return str(json.loads(data)["error"])[:300]
    except (ValueError, KeyError, TypeError):
        return "no reason given"
