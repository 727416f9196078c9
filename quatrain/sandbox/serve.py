"""A sandbox service: `python -m quatrain.sandbox.serve --port 8421 [--isolation oci --runtime runsc]`.

It serves the protocol of docs/sandbox.md from any local backend, to whoever has the token.
"""

import argparse
import asyncio
import hmac
import ipaddress
import json
import os
import signal
import sys
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from quatrain.errors import QuatrainError, SettingError
from quatrain.sandbox.choose import CannotIsolate, Choice, build_backend
from quatrain.sandbox.job import Backend, Limits, SandboxError, Task
from quatrain.sandbox.remote import PATH, VERSION, decode, encode_outcome

CODE_INSIDE = ("code_inside", str(Path(__file__).parents[1] / "rewards" / "code_inside"))  # what `code` runs inside
SLOW_S = 30.0  # a client that is silent for so long is given up


class Service(ThreadingHTTPServer):
    """An HTTP server in front of a backend; one thread per connection, the backend's workers bound the work."""

    daemon_threads = True

    def __init__(
        self, address: tuple[str, int], backend: Backend, limits: Limits, packages: Sequence[str], *, token: str,
        max_body: int, max_timeout_s: float,
    ) -> None:  # fmt: skip
        self.backend, self.token, self.max_body, self.max_timeout_s = backend, token, max_body, max_timeout_s
        self.described = {
            "version": VERSION, "name": backend.name, "isolates": backend.isolates, "packages": list(packages),
            "memory_mib": limits.memory_mib, "output_kib": limits.output_kib,
        }  # fmt: skip
        super().__init__(address, _Handler)


class _Refused(Exception):
    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    server: Service
    timeout = SLOW_S

    def do_GET(self) -> None:
        """What this service is."""
        self._answer(lambda: self.server.described)

    def do_POST(self) -> None:
        """Run a job."""
        self._answer(self._job)

    def _answer(self, action: Any) -> None:
        length = self.headers.get("Content-Length", "")
        known = length.isascii() and length.isdigit()
        self._unread = (int(length) if len(length) < 16 else 1 << 60) if known else -1
        try:
            self._admit()
            status, said = 200, action()
        except _Refused as refused:
            self._pass_over()
            status, said = refused.status, {"error": str(refused)}
        except SandboxError as error:
            status, said = 503, {"error": str(error)}
        data = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _admit(self) -> None:
        given = self.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        if self.server.token and not hmac.compare_digest(given, f"Bearer {self.server.token}".encode()):
            raise _Refused(401, "wrong or missing token")
        if self.path != PATH:
            raise _Refused(404, f"there is only {PATH}")

    def _pass_over(self) -> None:
        """Read a body that nobody wants, within reason: closing on what is unread could take the answer back."""
        if 0 < self._unread <= 2 * self.server.max_body:
            self.rfile.read(self._unread)

    def _job(self) -> dict[str, Any]:
        tasks, timeout_s = self._read_job()
        outcomes = asyncio.run(self.server.backend.run(tasks, timeout_s))
        return {"outcomes": [encode_outcome(one) for one in outcomes]}

    def _read_job(self) -> tuple[list[Task], float]:
        if self._unread < 0:
            raise _Refused(411, "need a Content-Length")
        if self._unread > self.server.max_body:
            raise _Refused(413, f"a job may have {self.server.max_body} bytes")
        data, self._unread = self.rfile.read(self._unread), 0
        try:
            job = json.loads(data)
            tasks = [Task(decode(one["program"]), decode(one["stdin"])) for one in job["tasks"]]
            timeout_s = float(job["timeout_s"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise _Refused(400, f"not a job ({type(error).__name__}: {error})") from None
        if len(tasks) not in (1, 2):
            raise _Refused(400, f"{len(tasks)} tasks, need 1 or 2")
        if not 0 < timeout_s <= self.server.max_timeout_s:
            raise _Refused(400, f"timeout_s {timeout_s}, need a number above 0 and up to {self.server.max_timeout_s}")
        return tasks, timeout_s

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: what candidates do is not for the log."""


def build_service(arguments: Sequence[str]) -> Service:
    """The service that the command line describes. Raises SettingError."""
    chosen = _parser().parse_args(arguments)
    token = os.environ.get(chosen.token_env, "")
    if not token and not _is_loopback(chosen.host):
        raise SettingError("host", chosen.host, f"a token in {chosen.token_env} for all but 127.0.0.1",
                           f"export {chosen.token_env}=...")  # fmt: skip
    limits = Limits(memory_mib=chosen.memory_mib, output_kib=chosen.output_kib)
    try:
        choice = Choice(isolation=chosen.isolation, runtime=chosen.runtime)
        backend = build_backend(
            choice, limits, workers=chosen.workers, packages=tuple(chosen.packages), own=(CODE_INSIDE,)
        )
    except CannotIsolate as error:
        raise SettingError("isolation", chosen.isolation, "a machine that can isolate", str(error)) from None
    except SandboxError as error:
        raise SettingError("packages", chosen.packages, "installed packages", str(error)) from None
    try:
        return Service(
            (chosen.host, chosen.port), backend, limits, [CODE_INSIDE[0], *chosen.packages], token=token,
            max_body=chosen.max_body_mib << 20, max_timeout_s=chosen.max_timeout_s,
        )  # fmt: skip
    except OSError as error:
        backend.close()
        raise SettingError("port", chosen.port, "a free port", error.strerror or str(error)) from None


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m quatrain.sandbox.serve", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8421, help="0: any free one, which is then printed")
    parser.add_argument("--isolation", choices=("namespace", "oci"), default="namespace")
    parser.add_argument("--runtime", help="of oci: runsc, kata, runc, or a path")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 2, help="programs at the same time")
    parser.add_argument("--memory-mib", type=int, default=512)
    parser.add_argument("--output-kib", type=int, default=1024)
    parser.add_argument("--packages", nargs="*", default=[], help="installed packages that programs may import")
    parser.add_argument("--token-env", default="QUATRAIN_SANDBOX_TOKEN", help="the variable that holds the token")
    parser.add_argument("--max-body-mib", type=int, default=64, help="a longer job is refused")
    parser.add_argument("--max-timeout-s", type=float, default=300.0, help="a job that asks for more is refused")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until interrupted or told to end."""
    try:
        service = build_service(sys.argv[1:] if arguments is None else arguments)
    except QuatrainError as error:
        print(error, file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=service.shutdown, daemon=True).start())
    host, port = service.server_address[:2]
    print(f"serving {service.described['name']} at http://{host!s}:{port}", flush=True)
    try:
        service.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        service.server_close()
        service.backend.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
