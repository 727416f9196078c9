"""Runs the hostile programs of tests/cases/attacks through the verifier, with an honest program beside each.

As a script it prints one JSON object: `python tests/sandbox/attack_run.py [NAME ...] [--runtime RUNTIME]`.
"""

import argparse
import asyncio
import json
import os
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from quatrain.rewards.code import Code, CodeSettings
from quatrain.rewards.code_rows import Suite, read_suite
from quatrain.rewards.verifier import Limits
from quatrain.sandbox import Layers, Pool, SandboxError

FOLDER = Path(__file__).parents[1] / "cases" / "attacks"
PORT = 47999
QUICK_S, PATIENT_S = 0.5, 30.0  # for programs that can only run out of time, and for all others, on a busy machine too
# The shared list speaks of another wire format, in which this program's frame is one of wrong values; here it is noise.
OTHER_VERDICTS = {"fake_result_frame": ("error",)}
HONEST = "def solve(x):\n    return x*x+1\n"


@dataclass(frozen=True)
class Attack:
    name: str
    program: str
    allowed: tuple[str, ...]


@dataclass(frozen=True)
class Result:
    name: str
    verdict: str
    paid: float
    neighbour: str


def catalogue() -> tuple[Suite, list[Attack]]:
    """The task's tests and every attack."""
    shared, own = (json.loads((FOLDER / name).read_text()) for name in ("attacks.json", "own.json"))
    suite = read_suite(
        {"entry_point": shared["entry"], "inputs": shared["inputs"], "outputs": shared["expected"]}, prompt=""
    )
    attacks = [
        Attack(
            one["name"],
            (FOLDER / one["file"]).read_bytes().decode("utf-8"),
            (*one["expected_verdict"], *OTHER_VERDICTS.get(one["name"], ())),
        )
        for one in [*shared["attacks"], *own["attacks"]]
    ]
    return suite, attacks


@contextmanager
def temptations() -> Iterator[None]:
    """What the attacks look for on this machine: listeners that say a secret, and one in the environment."""
    os.environ["CANARY_SECRET"] = "leaked"
    with ExitStack() as stack:
        for family, kind, address in (
            (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", PORT)),
            (socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", PORT)),
            (socket.AF_UNIX, socket.SOCK_STREAM, "\0quatrain-attack"),
        ):
            listener = stack.enter_context(socket.socket(family, kind))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            if kind == socket.SOCK_STREAM:
                listener.listen()
                stack.callback(listener.shutdown, socket.SHUT_RDWR)  # wakes the thread
                threading.Thread(target=_tell, args=(listener,), daemon=True).start()
        yield
    del os.environ["CANARY_SECRET"]


def _tell(listener: socket.socket) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            connection.sendall(b"leaked")


@dataclass(frozen=True)
class Bench:
    """The verifier `code` twice: with a limit that is soon over, and with one that is not."""

    quick: Code
    patient: Code

    @classmethod
    def build(cls, layers: Layers | None = None, **settings: Any) -> "Bench":
        """As a recipe builds it, with `settings` of `code`; with `layers`, a weaker one that no setting gives."""
        return cls(_verifier(QUICK_S, 1, layers, settings), _verifier(PATIENT_S, 3, layers, settings))

    def close(self) -> None:
        self.quick.close()
        self.patient.close()


def _verifier(limit_s: float, workers: int, layers: Layers | None, settings: dict[str, Any]) -> Code:
    chosen = CodeSettings.model_validate({"workers": workers, "memory_mib": 192, **settings})
    code = Code(chosen, Limits(name="code", timeout_s=limit_s))
    if layers is not None:
        pool = code._sandbox
        assert isinstance(pool, Pool)
        code._sandbox = Pool(pool.limits, workers=workers, packages=pool._packages, layers=layers)
    return code


async def judged(code: Code, suite: Suite, program: str) -> tuple[str, float]:
    """The verdict in the words of attacks.json, and what was paid."""
    try:
        verdict = await code.judge(suite, program)
    except SandboxError as error:
        return f"infrastructure ({error})", float("nan")
    return "error" if verdict.reason == "memory" else verdict.reason, float(all(verdict.passed))


async def run(bench: Bench, suite: Suite, attacks: Sequence[Attack]) -> list[Result]:
    """Two attacks at a time, each with an honest program that is judged while it runs."""
    lanes = asyncio.Semaphore(2)

    async def one(attack: Attack) -> Result:
        code = bench.quick if "timeout" in attack.allowed else bench.patient
        async with lanes:
            (verdict, paid), (neighbour, _) = await asyncio.gather(
                judged(code, suite, attack.program), judged(bench.patient, suite, HONEST)
            )
        return Result(attack.name, verdict, paid, neighbour)

    return list(await asyncio.gather(*(one(attack) for attack in attacks)))


def faults(results: Sequence[Result], attacks: Sequence[Attack]) -> list[str]:
    """What went wrong, in words; empty when every attack was contained."""
    found = []
    for result, attack in zip(results, attacks, strict=True):
        if result.verdict not in attack.allowed or (result.paid == 1.0) != (result.verdict == "pass"):
            found.append(f"{result.name}: {result.verdict}, paid {result.paid}; allowed: {', '.join(attack.allowed)}")
        if result.neighbour != "pass":
            found.append(f"{result.name}: its honest neighbour got {result.neighbour}")
    return found


def main(names: Sequence[str], **settings: Any) -> dict[str, Any]:
    """Run the named attacks, or all, in the sandbox of `settings`."""
    suite, attacks = catalogue()
    chosen = [attack for attack in attacks if attack.name in names or not names]
    bench = Bench.build(**settings)
    try:
        with temptations():
            results = asyncio.run(run(bench, suite, chosen))
    finally:
        bench.close()
    return {"user": os.geteuid(), "results": [asdict(one) for one in results], "faults": faults(results, chosen)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--runtime")
    given = parser.parse_args()
    chosen_settings = {"isolation": "oci", "runtime": given.runtime} if given.runtime else {}
    print(json.dumps(main(given.names, **chosen_settings)))
