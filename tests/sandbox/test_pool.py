"""What the sandbox promises whoever runs programs in it: outcomes, limits, no traces, no lost jobs."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quatrain.sandbox import Layers, Limits, Outcome, Pool, SandboxError, Task, find_packages, why_not
from quatrain.sandbox import pool as pool_module
from quatrain.sandbox.inside.exchange import WorkerFailed
from tests.sandbox.machine import children, descriptors, isolated

pytestmark = isolated
LIMITS = Limits(timeout_s=20.0, memory_mib=192, output_kib=64)


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    built = Pool(LIMITS, workers=2)
    yield built
    built.close()


def run(pool: Pool, program: str, stdin: bytes = b"", timeout_s: float | None = None) -> Outcome:
    return asyncio.run(pool.run([Task(program.encode(), stdin)], timeout_s))[0]


def test_output_and_input_are_bytes_as_they_are(pool: Pool) -> None:
    outcome = run(pool, "import sys\nsys.stdout.buffer.write(sys.stdin.buffer.read()[::-1])", b"\x00\xff\r\nab")
    assert (outcome.status, outcome.exit_status, outcome.output) == ("exited", 0, b"ba\n\r\xff\x00")


@pytest.mark.parametrize(
    ("program", "status", "exit_status"),
    [
        ("raise SystemExit(3)", "exited", 3),
        ("1 / 0", "exited", 1),
        ("import os; os._exit(7)", "exited", 7),
        ("import ctypes; ctypes.string_at(0)", "killed", -signal.SIGSEGV),
        ("x = bytearray(1 << 30)", "memory", 86),
        ("while True: print('x' * 1000)", "output_limit", -signal.SIGKILL),
    ],
)
def test_how_it_ended(pool: Pool, program: str, status: str, exit_status: int) -> None:
    outcome = run(pool, program)
    assert (outcome.status, outcome.exit_status) == (status, exit_status)
    assert len(outcome.output) <= LIMITS.output_kib << 10


def test_what_exit_handlers_and_threads_write_arrives(pool: Pool) -> None:
    program = (
        "import atexit, threading, time\n"
        "atexit.register(print, 'last')\n"
        "threading.Thread(target=lambda: (time.sleep(0.05), print('second'))).start()\n"
        "print('first', end='\\n')"
    )
    assert run(pool, program).output == b"first\nsecond\nlast\n"


def test_a_program_of_200_kb_d21(pool: Pool) -> None:
    program = "x = 0\n" + "x += 1  # padding\n" * 12_000 + "print(x)"
    assert len(program) > 200_000
    assert run(pool, program).output == b"12000\n"


def test_asyncio_threads_and_files_work(pool: Pool) -> None:
    program = (
        "import asyncio, concurrent.futures, os, tempfile\n"
        "async def one(): await asyncio.sleep(0.01); return 1\n"
        "print(asyncio.run(one()))\n"
        "print(list(concurrent.futures.ThreadPoolExecutor(2).map(abs, [-2])))\n"
        "with tempfile.TemporaryFile() as f: f.write(b'x'); print(f.tell())\n"
        "print(os.listdir('/tmp'), open('/dev/null').read() == '')"
    )
    assert run(pool, program).output == b"1\n[2]\n1\n[] True\n"


def test_half_a_second_is_half_a_second(pool: Pool) -> None:
    run(pool, "")
    started = time.monotonic()
    assert run(pool, "while True: pass", timeout_s=0.5).status == "timeout"
    assert 0.5 <= time.monotonic() - started < 5.0  # the figure itself is the benchmark's; this machine may be busy


def test_the_event_loop_is_not_blocked(pool: Pool) -> None:
    async def both() -> int:
        ticks = 0
        job = asyncio.ensure_future(pool.run([Task(b"import time\ntime.sleep(0.5)")]))
        while not job.done():
            ticks += 1
            await asyncio.sleep(0.01)
        return ticks

    assert asyncio.run(both()) >= 10


def test_two_tasks_talk_over_pipes_and_the_first_decides(pool: Pool) -> None:
    first = b"import os\nos.write(4, b'question')\nprint(os.read(3, 100).decode())"
    second = b"import os\nos.write(4, os.read(3, 100) + b'!')\nwhile True: pass"
    one, other = asyncio.run(pool.run([Task(first), Task(second)]))
    assert (one.status, one.output) == ("exited", b"question!\n")
    assert other.status == "stopped"


def test_the_second_task_ending_is_the_end_of_its_pipe(pool: Pool) -> None:
    one, other = asyncio.run(pool.run([Task(b"import os\nprint(os.read(3, 1))"), Task(b"raise SystemExit(5)")]))
    assert (one.output, other.exit_status) == (b"b''\n", 5)


def test_nothing_of_one_program_is_there_for_the_next() -> None:
    """Not in files, not in modules, and not in the memory that both were forked from."""
    alone = Pool(LIMITS, workers=1)
    marker = "marker_" + "of_the_first"
    try:
        first = f"import math\nmath.pi = 3\nkept = '{marker}' * 100\nopen('/tmp/x', 'w').write(kept)"
        assert run(alone, first, marker.encode()).exit_status == 0
        second = (
            "import ctypes, gc, math, os, sys\n"
            "found = [] if math.pi > 3.1 else ['module']\n"
            "found += os.listdir('/tmp')\n"
            "word = ('marker_' + 'of_') .encode() + b'the_first'\n"
            "for one in gc.get_objects():\n"
            "    text = one.encode() if isinstance(one, str) else one if isinstance(one, bytes) else b''\n"
            "    if len(text) > 100 and word in text: found.append('object')\n"
            "heap = ctypes.CDLL(None).sbrk; heap.restype = ctypes.c_void_p\n"
            "top = heap(0)\n"
            "data = ctypes.string_at(top - (1 << 20), 1 << 20)\n"
            "if data.count(word) > data.count(b'found += os.listdir'): found.append('heap')\n"
            "print(found)"
        )
        assert run(alone, second).output == b"[]\n"
    finally:
        alone.close()


def test_the_same_program_writes_the_same(pool: Pool) -> None:
    program = "import random\nprint(random.random(), list({'a', 'b', 'c', 'd', 'e'}), hash('x'))"
    assert len({run(pool, program).output for _ in range(4)}) == 1


def test_named_packages_can_be_imported_and_no_others() -> None:
    with_numpy = Pool(LIMITS, workers=1, packages=tuple(find_packages(("numpy",)).items()))
    try:
        assert run(with_numpy, "import numpy\nprint(numpy.arange(3).sum())").output == b"3\n"
        assert run(with_numpy, "import pydantic").exit_status == 1
    finally:
        with_numpy.close()
    with pytest.raises(SandboxError, match="no_such_package"):
        find_packages(("no_such_package",))


def kill_all(pool: Pool, number: int) -> None:
    for pid in pool.processes():
        os.kill(pid, number)


def in_the_middle(pool: Pool, action: Any) -> Outcome:
    """A job of half a second, with `action` while it runs."""

    async def both() -> Outcome:
        await pool.run([Task(b"")])
        job = asyncio.ensure_future(pool.run([Task(b"import time\ntime.sleep(0.5)\nprint('done')")], 1.0))
        await asyncio.sleep(0.25)
        action()
        return (await job)[0]

    return asyncio.run(both())


def test_a_worker_that_dies_is_replaced_and_the_job_run_again_d09() -> None:
    one = Pool(LIMITS, workers=1)
    try:
        assert in_the_middle(one, lambda: kill_all(one, signal.SIGKILL)).output == b"done\n"
    finally:
        one.close()


def test_a_worker_that_is_stopped_is_replaced_and_the_job_run_again() -> None:
    one = Pool(LIMITS, workers=1)
    server: list[int] = []

    def stop() -> None:
        server.extend(children(one.processes()[0]))
        os.kill(server[0], signal.SIGSTOP)

    try:
        assert in_the_middle(one, stop).output == b"done\n"
        assert not Path(f"/proc/{server[0]}").exists()
    finally:
        one.close()


def test_a_spare_process_that_dies_while_it_waits_costs_no_job() -> None:
    one = Pool(LIMITS, workers=1)
    try:
        run(one, "")
        server = children(one.processes()[0])[0]
        (spare,) = children(server)
        os.kill(spare, signal.SIGKILL)
        assert run(one, "print('done')").output == b"done\n"
    finally:
        one.close()


def test_each_program_gets_a_process_that_was_there_before_it() -> None:
    """Made beforehand, for one program only."""
    alone = Pool(LIMITS, workers=1)
    try:
        run(alone, "")
        server = children(alone.processes()[0])[0]
        waiting = [children(server)]
        for _ in range(3):
            run(alone, "import sys\nsys.modules['math'] = None")
            waiting.append(children(server))
            assert run(alone, "import math\nprint(math.floor(2.5))").output == b"2\n"
        assert all(len(one) == 1 for one in waiting) and len({one[0] for one in waiting}) == len(waiting)
    finally:
        alone.close()


def test_after_a_second_failure_it_is_an_error_and_not_an_outcome_d09(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    class Broken:
        pid = 0

        def __init__(self, *_: Any) -> None:
            tried.append(self)

        def run(self, *_: Any) -> list[Outcome]:
            raise WorkerFailed("it fell over")

        def kill(self) -> str:
            return ""

        def interrupt(self) -> None:
            pass

    monkeypatch.setattr(pool_module, "Worker", Broken)
    broken = Pool(LIMITS, workers=1)
    with pytest.raises(SandboxError, match="failed twice: it fell over"):
        run(broken, "print(1)")
    broken.close()
    assert len(tried) == 2


def test_from_many_threads_at_once(pool: Pool) -> None:
    outputs: list[bytes] = []
    threads = [threading.Thread(target=lambda n=n: outputs.append(run(pool, f"print({n})").output)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outputs) == [f"{n}\n".encode() for n in range(8)]


def executions(count: int) -> None:
    """`count` jobs of all sorts; afterwards no process, descriptor, mount, control group or file is left."""

    def state() -> tuple[int, list[str], set[int], list[str]]:
        files = sorted(str(one) for one in Path("/dev/shm").glob("quatrain*"))
        return descriptors(), Path("/proc/self/mounts").read_text().splitlines(), set(children(os.getpid())), files

    why_not()
    programs = [
        b"print(1)",
        b"open('/tmp/x', 'w').write('x')",
        b"1 / 0",
        b"import os; os._exit(1)",
        b"print('x' * 9999)",
    ]
    before = state()
    some = Pool(LIMITS, workers=2)
    try:
        asyncio.run(some.run([Task(b"")]))
        warm = descriptors()

        async def all_of_them() -> None:
            for start in range(0, count, 100):
                jobs = [some.run([Task(programs[n % 5])]) for n in range(start, min(count, start + 100))]
                await asyncio.gather(*jobs)

        asyncio.run(all_of_them())
        assert descriptors() <= warm + 6  # the second worker may have started meanwhile
        launchers = some.processes()
        servers = [child for pid in launchers for child in children(pid)]
        assert len(servers) == len(launchers)
        assert [len(children(server)) for server in servers] == [1] * len(servers)  # the one that waits
    finally:
        some.close()
    assert state() == before
    assert [one for pid in launchers for one in Path("/sys/fs/cgroup").glob(f"**/quatrain-{pid}")] == []


def test_nothing_is_left_behind() -> None:
    executions(100)


@pytest.mark.full
def test_nothing_is_left_behind_after_ten_thousand() -> None:
    executions(10_000)


def test_a_trainer_that_is_killed_takes_its_sandbox_along() -> None:
    program = (
        "import asyncio, threading, time\n"
        "from quatrain.sandbox import Limits, Pool, Task\n"
        "pool = Pool(Limits(timeout_s=300), workers=1)\n"
        "job = lambda: asyncio.run(pool.run([Task(b'while True: pass')]))\n"
        "threading.Thread(target=job, daemon=True).start()\n"
        "while not pool.processes(): time.sleep(0.01)\n"
        "print(pool.processes()[0], flush=True)\n"
        "time.sleep(300)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    trainer = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment)
    assert trainer.stdout is not None
    launcher = int(trainer.stdout.readline())
    deadline = time.monotonic() + 30
    while not (server := children(launcher)) or not children(server[0]):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    everyone = [launcher, *server, *children(server[0])]
    trainer.kill()
    trainer.wait()
    trainer.stdout.close()
    while any(Path(f"/proc/{pid}").exists() for pid in everyone):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_closing_ends_a_pool_for_good() -> None:
    other = Pool(LIMITS, workers=1)
    run(other, "print(1)")
    (launcher,) = other.processes()
    other.close()
    assert not Path(f"/proc/{launcher}").exists()
    with pytest.raises(SandboxError, match="closed"):
        run(other, "print(1)")


def test_closing_does_not_wait_for_a_job() -> None:
    other = Pool(LIMITS, workers=1)

    async def closed_in_the_middle() -> None:
        job = asyncio.ensure_future(other.run([Task(b"while True: pass")], 100.0))
        while not other.processes() or not children(other.processes()[0]):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        other.close()
        with pytest.raises(SandboxError, match="was closed"):
            await job

    started = time.monotonic()
    asyncio.run(closed_in_the_middle())
    assert time.monotonic() - started < 60.0


def test_the_canary_sees_what_is_open() -> None:
    assert why_not() == ""
    reason = why_not(Layers(("limits",)))
    for breach in ("reads a file of this machine", "makes a socket", "starts a process", "sees other processes"):
        assert breach in reason
    assert "makes a file in memory" in why_not(Layers(("namespaces", "limits")))
