"""The service and its client: against each other, and each against a partner that misbehaves."""

import asyncio
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from quatrain.errors import SettingError
from quatrain.rewards.code import Code, CodeSettings
from quatrain.rewards.verifier import Limits as VerifierLimits
from quatrain.rewards.verifier import text_rollout
from quatrain.sandbox import CannotIsolate, Choice, Limits, SandboxError, Task, build_backend, in_use
from quatrain.sandbox import remote as remote_module
from quatrain.sandbox.remote import PATH, VERSION, Remote
from quatrain.sandbox.serve import Service, build_service
from tests.sandbox.machine import isolated

TOKEN_ENV = "TEST_SANDBOX_TOKEN"
LIMITS = Limits(timeout_s=20.0, memory_mib=192, output_kib=64)
OPTIONS = ["--port", "0", "--memory-mib", "192", "--output-kib", "64", "--workers", "2", "--token-env", TOKEN_ENV]


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    os.environ[TOKEN_ENV] = "secret"
    built = build_service([*OPTIONS, "--max-body-mib", "1", "--max-timeout-s", "60"])
    thread = threading.Thread(target=built.serve_forever, daemon=True)
    thread.start()
    yield built
    built.shutdown()
    built.server_close()
    built.backend.close()
    del os.environ[TOKEN_ENV]


def address(service: Service) -> str:
    return f"http://127.0.0.1:{service.server_address[1]}"


def choice(where: str, token_env: str = TOKEN_ENV) -> Choice:
    return Choice(isolation="remote", address=where, token_env=token_env)


def ask(service: Service, body: bytes, *, method: str = "POST", path: str = PATH, token: str = "secret",
        headers: dict[str, str] | None = None) -> tuple[int, dict[str, Any]]:  # fmt: skip
    connection = http.client.HTTPConnection("127.0.0.1", service.server_address[1], timeout=30)
    try:
        connection.request(method, path, body, {"Authorization": f"Bearer {token}", **(headers or {})})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


@isolated
def test_programs_run_there_as_they_do_here(service: Service) -> None:
    backend = build_backend(choice(address(service)), LIMITS, workers=2)
    try:
        assert backend.name == f"remote: 127.0.0.1:{service.server_address[1]}"
        assert backend.isolates.startswith("namespace: namespaces")
        assert in_use()[backend.name] == backend.isolates
        reverse = b"import sys\nsys.stdout.buffer.write(sys.stdin.buffer.read()[::-1])"
        (one,) = asyncio.run(backend.run([Task(reverse, b"\x00\xffab")]))
        assert (one.status, one.exit_status, one.output) == ("exited", 0, b"ba\xff\x00")
        (one,) = asyncio.run(backend.run([Task(b"while True: pass")], 0.3))
        assert one.status == "timeout"
        first = b"import os\nos.write(4, b'question')\nprint(os.read(3, 100).decode())"
        second = b"import os\nos.write(4, os.read(3, 100) + b'!')\nwhile True: pass"
        one, other = asyncio.run(backend.run([Task(first), Task(second)]))
        assert (one.output, other.status) == (b"question!\n", "stopped")
    finally:
        backend.close()
    assert backend.name not in in_use()
    with pytest.raises(SandboxError, match="closed"):
        asyncio.run(backend.run([Task(b"")]))


@isolated
def test_the_verifier_judges_through_it(service: Service) -> None:
    settings = CodeSettings(
        isolation="remote", address=address(service), token_env=TOKEN_ENV, memory_mib=192, output_kib=64
    )
    verifier = Code(settings, VerifierLimits(name="code", timeout_s=20.0))
    add = "```python\ndef add(a, b):\n    return a + b\n```"
    rollouts = [
        text_rollout(add, {"test_list": ["assert add(2, 3) == 5"]}),
        text_rollout(add, {"tests": "assert add(2, 3) in {5}"}),
        text_rollout(add, {"test_list": ["assert add(2, 3) == 6"]}),
    ]
    try:
        assert [one.value for one in asyncio.run(verifier.score(rollouts))] == [1.0, 1.0, 0.0]
    finally:
        verifier.close()


@isolated
def test_what_does_not_suit_is_said_before_the_run(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    where = address(service)
    for limits, packages, token_env, reason in (
        (LIMITS, (), "NO_SUCH_TOKEN", "refused the job: 401"),
        (LIMITS, ("numpy",), TOKEN_ENV, "has no numpy; start it with --packages numpy"),
        (Limits(memory_mib=512, output_kib=64), (), TOKEN_ENV, "start it with --memory-mib 512, or set memory_mib"),
    ):
        with pytest.raises(CannotIsolate, match=reason):
            build_backend(choice(where, token_env), limits, workers=1, packages=packages)
    monkeypatch.setattr(remote_module, "VERSION", 2)
    with pytest.raises(CannotIsolate, match="speaks version 1, need 2"):
        build_backend(choice(where), LIMITS, workers=1)
    with pytest.raises(CannotIsolate, match="no address"):
        build_backend(Choice(isolation="remote"), LIMITS, workers=1)


@isolated
@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"[" * 10_000, 400),
        (b'{"tasks": [], "timeout_s": 1}', 400),
        (b'{"tasks": [{"program": "!", "stdin": ""}], "timeout_s": 1}', 400),
        (b'{"tasks": [{"program": 1, "stdin": ""}], "timeout_s": 1}', 400),
        (b'{"tasks": [{"program": "", "stdin": ""}], "timeout_s": 61}', 400),
        (b'{"tasks": [{"program": "", "stdin": ""}], "timeout_s": NaN}', 400),
        (b'{"tasks": [{"program": "", "stdin": ""}], "timeout_s": "soon"}', 400),
        (b'{"tasks": [{"program": "", "stdin": ""}], "timeout_s": 1}', 200),
    ],
)
def test_the_service_answers_wrong_jobs_with_a_reason(service: Service, body: bytes, status: int) -> None:
    answered, said = ask(service, body)
    assert answered == status
    assert ("error" in said) == (status != 200)


@isolated
def test_the_service_admits_nobody_without_the_token_and_nothing_too_long(service: Service) -> None:
    assert ask(service, b"{}", token="wrong")[0] == 401
    assert ask(service, b"{}", token="sécret")[0] == 401
    assert ask(service, b"", method="GET", token="")[0] == 401
    assert ask(service, b"{}", path="/other")[0] == 404
    assert ask(service, b" " * ((1 << 20) + 1))[0] == 413
    assert ask(service, b"{}", headers={"Content-Length": str(1 << 30)})[0] == 413
    assert ask(service, b"{}", headers={"Content-Length": "9" * 5000})[0] == 413
    assert ask(service, b"", headers={"Content-Length": "-1"})[0] == 411
    assert ask(service, b"", method="GET")[1]["version"] == VERSION


def test_only_this_machine_is_served_without_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_ENV, raising=False)
    with pytest.raises(SettingError, match=f"host: got 0.0.0.0, need a token in {TOKEN_ENV}"):
        build_service([*OPTIONS, "--host", "0.0.0.0"])


@contextlib.contextmanager
def stand_in(answer: Callable[[socket.socket], object]) -> Iterator[tuple[str, list[int]]]:
    """A server that reads a request's head and then does as `answer` says; its address, and how often it was asked."""
    asked: list[int] = []

    def one(connection: socket.socket) -> None:
        with connection:
            connection.recv(1 << 16)
            answer(connection)
            with contextlib.suppress(OSError):  # closed already, or reset
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(1 << 16):  # or what was not read would take the answer back
                    pass

    def serve(listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            asked.append(1)
            threading.Thread(target=one, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}", asked
        listener.shutdown(socket.SHUT_RDWR)


def silent(_: socket.socket) -> None:
    time.sleep(1.0)


def reply(status: str, body: bytes, length: int | None = None) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body) if length is None else length}\r\n\r\n".encode() + body


def trickle(connection: socket.socket) -> None:
    connection.sendall(reply("200 OK", b"", 1000))
    for _ in range(100):
        try:
            connection.sendall(b" ")
        except OSError:
            return
        time.sleep(0.05)


OUTCOME = {"status": "exited", "exit_status": 0, "output": "MQ==", "cpu_s": 0.0, "peak_mib": 1.0}


def outcomes(*said: object) -> bytes:
    return json.dumps({"outcomes": said}).encode()


@pytest.mark.parametrize(
    ("answer", "times", "reason"),
    [
        (socket.socket.close, 2, "failed twice"),
        (silent, 2, "failed twice: TimeoutError"),
        (trickle, 2, "failed twice: TimeoutError"),
        (lambda c: c.sendall(reply("503 No", b'{"error": "gone"}')), 2, r"failed twice: it answered 503 \(gone\)"),
        (lambda c: c.sendall(reply("200 OK", b'{"out', 1000)), 2, "failed twice: IncompleteRead|cut off"),
        (lambda c: c.sendall(reply("200 OK", b"x" * (1 << 20))), 2, "failed twice: .*the answer is longer"),
        (lambda c: c.sendall(reply("400 No", b"<html>")), 1, r"refused the job: 400 \(no reason given\)"),
        (lambda c: c.sendall(reply("200 OK", b"[]")), 1, "the answer is no JSON object"),
        (lambda c: c.sendall(reply("200 OK", b"{}")), 1, "does not keep to the protocol"),
        (lambda c: c.sendall(reply("200 OK", outcomes(OUTCOME, OUTCOME))), 1, "2 outcomes for 1 tasks"),
        (lambda c: c.sendall(reply("200 OK", outcomes({**OUTCOME, "status": "fine"}))), 1, "status 'fine'"),
        (lambda c: c.sendall(reply("200 OK", outcomes({**OUTCOME, "exit_status": True}))), 1, "exit_status True"),
        (lambda c: c.sendall(reply("200 OK", outcomes({**OUTCOME, "output": "!"}))), 1, "does not keep to the"),
    ],
)  # fmt: skip
def test_a_bad_service_is_an_error_and_never_an_outcome(
    answer: Callable[[socket.socket], object], times: int, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_module, "ANSWER_S", 0.2)
    with stand_in(answer) as (where, asked):
        backend = Remote(where, LIMITS, token_env=TOKEN_ENV, workers=1)
        started = time.monotonic()
        with pytest.raises(SandboxError, match=reason):
            asyncio.run(backend.run([Task(b"print(1)")], 0.1))
        assert time.monotonic() - started < 10.0
        backend.close()
    assert len(asked) == times


def test_a_service_that_recovers_is_asked_again() -> None:
    answers = iter([reply("503 No", b"{}"), reply("200 OK", outcomes(OUTCOME))])
    with stand_in(lambda c: c.sendall(next(answers))) as (where, asked):
        backend = Remote(where, LIMITS, token_env=TOKEN_ENV, workers=1)
        (outcome,) = asyncio.run(backend.run([Task(b"print(1)")]))
        backend.close()
    assert outcome.output == b"1" and len(asked) == 2


def test_a_service_that_is_not_there_is_said_with_the_remedy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(CannotIsolate, match=r"failed twice: ConnectionRefusedError.*quatrain.sandbox.serve"):
        build_backend(choice(f"http://127.0.0.1:{port}"), LIMITS, workers=1)


@isolated
def test_the_command_serves_and_ends_when_told() -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), TOKEN_ENV: "secret"}
    command = [sys.executable, "-m", "quatrain.sandbox.serve", *OPTIONS]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("serving namespace at http://127.0.0.1:")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.stdout.close()
