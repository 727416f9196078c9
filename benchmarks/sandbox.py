"""Latency and throughput of the sandbox: `python benchmarks/sandbox.py [--suites 400] [--executions 0]`.

Prints one JSON object. Times are wall clock, so run it on a machine that does nothing else; `load` says whether it did.
`--executions 10000` also runs that many jobs and counts what is left behind.
"""

import argparse
import asyncio
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

from quatrain.config import VerifierConfig
from quatrain.rewards import build_verifier, text_rollout
from quatrain.sandbox import Limits, Pool, Task
from quatrain.sandbox.image import python_path
from quatrain.types import Rollout

PROGRAM = "def f(x):\n    return sorted(x)\n"
CALLS = {"entry_point": "f", "inputs": [[[3, 1, 2]]] * 8, "outputs": [[1, 2, 3]] * 8}
ASSERTS = {"tests": "expected = [1, 2, 3]\n" + "assert f([3, 1, 2]) == expected\n" * 8}


def percentiles(seconds: list[float]) -> dict[str, float]:
    """Median and 95th percentile, in milliseconds."""
    ordered = sorted(seconds)
    return {"median_ms": round(statistics.median(ordered) * 1e3, 2),
            "p95_ms": round(ordered[int(0.95 * len(ordered))] * 1e3, 2)}  # fmt: skip


def suites(columns: dict[str, object], count: int, workers: int, **settings: str) -> dict[str, float]:
    """Suites of eight tests through `code`: one after the other (latency), then all at once (throughput)."""
    verifier = build_verifier(
        VerifierConfig.model_validate({"kind": "code", "workers": workers, "timeout_s": 30.0, **settings})
    )
    rollout: Rollout = text_rollout(PROGRAM, columns)

    async def measure() -> dict[str, float]:
        await verifier.score([rollout] * 4 * workers)
        taken = []
        for _ in range(count):
            started = time.perf_counter()
            (score,) = await verifier.score([rollout])
            taken.append(time.perf_counter() - started)
            assert score.value == 1.0, score
        started = time.perf_counter()
        scores = await verifier.score([rollout] * count)
        elapsed = time.perf_counter() - started
        assert all(score.value == 1.0 for score in scores)
        return {**percentiles(taken), "suites_per_s": round(count / elapsed, 1)}

    try:
        return asyncio.run(measure())  # in one event loop, as a trainer does
    finally:
        verifier.close()


def deadlines(count: int, limit_s: float = 0.5) -> dict[str, float]:
    """How long a program that never ends is waited for."""
    pool = Pool(Limits(), workers=1)
    taken = []
    try:
        asyncio.run(pool.run([Task(b"")]))
        for _ in range(count):
            started = time.perf_counter()
            (outcome,) = asyncio.run(pool.run([Task(b"while True: pass")], limit_s))
            taken.append(time.perf_counter() - started)
            assert outcome.status == "timeout"
        return {**percentiles(taken), "max_ms": round(max(taken) * 1e3, 2)}
    finally:
        pool.close()


def longest_block(count: int) -> float:
    """The longest that the event loop was away while suites were scored, in milliseconds.

    Without the pauses of Python's own collector over what the modules hold, which come in any program.
    """
    gc.collect()
    gc.freeze()
    verifier = build_verifier(VerifierConfig(kind="code", timeout_s=30.0))

    async def watch() -> float:
        await verifier.score([text_rollout(PROGRAM, CALLS)])
        work = asyncio.ensure_future(verifier.score([text_rollout(PROGRAM, CALLS)] * count))
        longest, last = 0.0, time.perf_counter()
        while not work.done():
            await asyncio.sleep(0)
            now = time.perf_counter()
            longest, last = max(longest, now - last), now
        return longest

    try:
        return round(asyncio.run(watch()) * 1e3, 2)
    finally:
        verifier.close()


def cold_start(count: int) -> dict[str, float]:
    """From nothing to the first outcome of a new worker; the image has been probed before."""
    taken = []
    for _ in range(count):
        started = time.perf_counter()
        pool = Pool(Limits(), workers=1)
        asyncio.run(pool.run([Task(b"")]))
        taken.append(time.perf_counter() - started)
        pool.close()
    return percentiles(taken)


def bare_python(count: int) -> dict[str, float]:
    """`python -I -S -c pass`, a yardstick of the machine: no isolation, no fork server."""
    taken = []
    for _ in range(count):
        started = time.perf_counter()
        subprocess.run([python_path(), "-I", "-S", "-c", "pass"], check=True)
        taken.append(time.perf_counter() - started)
    return percentiles(taken)


def processor_ms(count: int) -> float:
    """User and system time of the fork server and its jobs per job: what a busy machine does not hide."""
    pool = Pool(Limits(), workers=1)

    def used(pid: int) -> float:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(int(one) for one in fields[11:15]) / os.sysconf("SC_CLK_TCK")

    async def all_of_them() -> None:
        for _ in range(count):
            await pool.run([Task(b"print(1)")])

    try:
        asyncio.run(pool.run([Task(b"")]))
        launcher = pool.processes()[0]
        server = int(Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()[0])
        before = used(server)
        asyncio.run(all_of_them())
        return round((used(server) - before) / count * 1e3, 2)
    finally:
        pool.close()


def left_behind(count: int) -> dict[str, int]:
    """What `count` jobs leave: descriptors, mounts, children, control groups, and growth of the server in KiB."""

    def state() -> dict[str, int]:
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        return {
            "descriptors": len(os.listdir("/proc/self/fd")),
            "mounts": len(Path("/proc/self/mounts").read_text().splitlines()),
            "processes": len(children),
            "control_groups": len(list(Path("/sys/fs/cgroup").glob("**/quatrain-*"))),
        }

    before = state()
    pool = Pool(Limits(), workers=2)

    async def all_of_them() -> None:
        for start in range(0, count, 200):
            await asyncio.gather(*(pool.run([Task(b"open('/tmp/x', 'w').write('x')")])
                                   for _ in range(start, min(start + 200, count))))  # fmt: skip

    asyncio.run(all_of_them())
    pool.close()
    after = state()
    return {name: after[name] - before[name] for name in before}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suites", type=int, default=400, help="suites per figure")
    parser.add_argument("--executions", type=int, default=0, help="jobs after which leftovers are counted")
    parser.add_argument("--runtime", help="only the suites, in containers of this OCI runtime")
    chosen = parser.parse_args()
    few = max(3, chosen.suites // 40)
    if chosen.runtime:
        container = {"isolation": "oci", "runtime": chosen.runtime}
        figures = suites(CALLS, chosen.suites, 1, **container)
        report = {"load": os.getloadavg(), "bare_python": bare_python(few * 4), "calls, one worker": figures}
        json.dump(report, sys.stdout, indent=1)
        print()
        return
    report = {
        "machine": {"cpus": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version(),
                    "user": os.geteuid(), "load": os.getloadavg()},
        "bare_python": bare_python(few * 4),
        "calls, one worker": suites(CALLS, chosen.suites, 1),
        "calls, two workers": suites(CALLS, chosen.suites, 2),
        "asserts in two processes, two workers": suites(ASSERTS, chosen.suites, 2),
        "a limit of 500 ms": deadlines(few),
        "event loop away at most, ms": longest_block(chosen.suites),
        "cold start": cold_start(few),
        "processor ms per job": processor_ms(chosen.suites),
    }  # fmt: skip
    if chosen.executions:
        report[f"left behind by {chosen.executions} executions"] = left_behind(chosen.executions)
    json.dump(report, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
