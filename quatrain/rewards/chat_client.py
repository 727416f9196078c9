"""One question to an OpenAI-compatible address: deadline, retries, a cache on disk. Standard library only."""

import asyncio
import hashlib
import http.client
import json
import os
import random
import socket
import ssl
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

T = TypeVar("T")

RETRIED = (408, 409, 425, 429, 500, 502, 503, 504)  # statuses that another try may cure
FIRST_PAUSE_S = 0.5  # doubled at each further try
MOST_BYTES = 4 << 20  # of a reply


class Unreachable(Exception):
    """No usable reply: the connection, a status that another try may cure, or a reply that cannot be read."""


class Refused(Exception):
    """The address refuses the request itself (wrong key, model or path): no further try will help."""


@dataclass(frozen=True)
class ChatClient:
    """`ask(body, read)` posts `body` to `{address}/chat/completions` and returns `read(the reply's text)`.

    Each question has `deadline_s`, all its `tries` together. `read` raises ValueError for a reply that it cannot use,
    which is then asked for again. Replies that could be read are kept in the folder `cache`, by the SHA-256 of address
    and body. The key is read from the environment, and is in neither cache nor errors.
    """

    address: str
    key_env: str
    deadline_s: float
    tries: int
    cache: Path | None
    threads: ThreadPoolExecutor
    asked: dict[bytes, "Future[Any]"] = field(default_factory=dict)

    async def ask(self, body: dict[str, Any], read: Callable[[str], T]) -> T:
        """Raises Unreachable or Refused. A question that was asked before in this process is not asked again."""
        payload = json.dumps(body, sort_keys=True).encode("utf-8")
        key = hashlib.sha256(payload).digest()
        work = self.asked.get(key)
        if work is None or (work.done() and (work.cancelled() or work.exception() is not None)):
            work = self.asked[key] = self.threads.submit(self._ask, body, payload, read)
        found: T = await asyncio.shield(asyncio.wrap_future(work))
        return found

    def _ask(self, body: dict[str, Any], payload: bytes, read: Callable[[str], T]) -> T:
        deadline = time.monotonic() + self.deadline_s  # the clock starts when a thread is free
        place = self._place(payload)
        if place is not None and place.is_file():
            return read(json.loads(place.read_text(encoding="utf-8"))["reply"])
        said, pause = "", FIRST_PAUSE_S
        for number in range(self.tries):
            if number:
                time.sleep(min(pause * random.uniform(0.5, 1.5), max(0.0, deadline - time.monotonic())))
                pause *= 2
            if time.monotonic() >= deadline:
                break
            try:
                reply = post(self.address, payload, self._headers(), deadline)
                found = read(reply)
            except (Unreachable, ValueError) as error:
                said = str(error)
                continue
            if place is not None:
                _keep(place, {"body": body, "reply": reply})
            return found
        raise Unreachable(said or f"no usable reply within {self.deadline_s:g} s")

    def _place(self, payload: bytes) -> Path | None:
        if self.cache is None:
            return None
        name = hashlib.sha256(self.address.encode() + b"\0" + payload).hexdigest()
        return self.cache / name[:2] / f"{name}.json"

    def _headers(self) -> dict[str, str]:
        key = os.environ.get(self.key_env, "") if self.key_env else ""
        return {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}


def post(address: str, payload: bytes, headers: dict[str, str], deadline: float) -> str:
    """The text of the first choice of a chat completion, before `deadline` (time.monotonic).

    Raises Unreachable for what another try may cure and Refused for what none will.
    """
    parts = urlsplit(address)
    left = max(0.001, deadline - time.monotonic())
    connection = (
        http.client.HTTPSConnection(parts.netloc, timeout=left, context=ssl.create_default_context())
        if parts.scheme == "https"
        else http.client.HTTPConnection(parts.netloc, timeout=left)
    )
    try:
        connection.connect()
        sock = connection.sock
        connection.request("POST", parts.path.rstrip("/") + "/chat/completions", payload, headers)
        response = connection.getresponse()
        data = _read(response, sock, deadline)
    except (OSError, http.client.HTTPException) as error:
        raise Unreachable(f"{type(error).__name__}: {error}") from None
    finally:
        connection.close()
    if response.status != 200:
        said = f"status {response.status}: {' '.join(data[:200].decode('utf-8', 'replace').split())}"
        raise (Unreachable if response.status in RETRIED else Refused)(said)
    try:
        text = json.loads(data)["choices"][0]["message"]["content"]
    except (ValueError, LookupError, TypeError):
        raise Unreachable("the reply is no chat completion") from None
    if not isinstance(text, str):
        raise Unreachable("the reply has no text")
    return text


def _read(response: http.client.HTTPResponse, sock: socket.socket, deadline: float) -> bytes:
    """The body, in pieces, so that a reply that trickles in cannot outlast the deadline."""
    data = bytearray()
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or len(data) > MOST_BYTES:
            raise Unreachable("the reply is too slow" if left <= 0 else "the reply is too long")
        sock.settimeout(left)
        part = response.read1(65536)
        if not part:
            return bytes(data)
        data += part


def _keep(place: Path, record: dict[str, Any]) -> None:
    """Write under a temporary name and rename, so that a reader never sees half a file."""
    place.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=place.parent, suffix=".part")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump(record, file)
    os.replace(temporary, place)
