"""The same fork server in a container: of runc and of gVisor's runsc, each where it is installed."""

import asyncio
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from quatrain.errors import SettingError
from quatrain.rewards.code import Code, CodeSettings
from quatrain.rewards.verifier import Limits as VerifierLimits
from quatrain.sandbox import CannotIsolate, Choice, Layers, Limits, Outcome, Pool, Task, build_backend
from quatrain.sandbox.image import build_image
from quatrain.sandbox.oci import container_config
from tests.sandbox import ordinary
from tests.sandbox.attack_run import main
from tests.sandbox.machine import isolated
from tests.sandbox.test_attacks import SAMPLE, SCRIPT

RUNTIMES = [
    pytest.param(name, marks=pytest.mark.skipif(shutil.which(name) is None, reason=f"{name} is not installed"))
    for name in ("runc", "runsc")
]
LIMITS = Limits(timeout_s=30.0, memory_mib=192, output_kib=64)
FEW = [
    "honest", "honest_wrong", "kill_everyone", "read_host_files", "abstract_socket", "mount_tmpfs", "memfd",
    "set_ids", "thread_bomb", "memory_bomb", "inherited_descriptors", "write_the_library",
]  # fmt: skip
# Where a container differs from the embedded sandbox, and why that is no breach.
DIFFERENT = {
    ("runc", "devices"): "fail",  # looks for names: /dev/tty, and the empty place where /proc was
    ("runsc", "devices"): "fail",  # the same
    ("runsc", "raw_int80"): "pass",  # gVisor has no second table of system calls: the instruction does nothing
    ("runsc", "drop_file_for_neighbour"): "error",  # /tmp itself is nobody's: a program writes where it starts
}


@pytest.fixture(scope="module", params=RUNTIMES)
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    built = Pool(LIMITS, workers=1, runtime=request.param)
    yield built
    built.close()


def run(pool: Pool, program: str, stdin: bytes = b"", timeout_s: float | None = None) -> Outcome:
    return asyncio.run(pool.run([Task(program.encode(), stdin)], timeout_s))[0]


@isolated
def test_programs_end_as_they_do_in_the_embedded_sandbox(pool: Pool) -> None:
    reverse = "import sys\nsys.stdout.buffer.write(sys.stdin.buffer.read()[::-1])"
    assert run(pool, reverse, b"\x00\xffab" * 50_000).status == "output_limit"
    outcome = run(pool, reverse, b"\x00\xffab")
    assert (outcome.status, outcome.exit_status, outcome.output) == ("exited", 0, b"ba\xff\x00")
    assert run(pool, "raise SystemExit(3)").exit_status == 3
    assert run(pool, "import ctypes; ctypes.string_at(0)").exit_status == -signal.SIGSEGV
    assert run(pool, "x = bytearray(1 << 30)").status == "memory"
    assert run(pool, "open('x', 'w').write('1')\nprint(open('x').read())").output == b"1\n"
    assert run(pool, "import os\nprint(os.path.exists('x'), os.listdir('.'))").output == b"False []\n"
    started = time.monotonic()
    assert run(pool, "while True: pass", timeout_s=0.5).status == "timeout"
    assert time.monotonic() - started < 10.0


@isolated
def test_two_tasks_talk_over_pipes(pool: Pool) -> None:
    first = b"import os\nos.write(4, b'question')\nprint(os.read(3, 100).decode())"
    second = b"import os\nos.write(4, os.read(3, 100) + b'!')\nwhile True: pass"
    one, other = asyncio.run(pool.run([Task(first), Task(second)]))
    assert (one.status, one.output, other.status) == ("exited", b"question!\n", "stopped")


@isolated
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_container_that_is_killed_is_replaced_and_leaves_no_control_group(runtime: str) -> None:
    one = Pool(LIMITS, workers=1, runtime=runtime)

    async def killed_in_the_middle() -> Outcome:
        await one.run([Task(b"")])
        job = asyncio.ensure_future(one.run([Task(b"import time\ntime.sleep(1)\nprint('done')")]))
        await asyncio.sleep(0.5)
        for pid in one.processes():
            os.kill(pid, signal.SIGKILL)
        return (await job)[0]

    before = groups()
    try:
        assert asyncio.run(killed_in_the_middle()).output == b"done\n"
    finally:
        one.close()
    assert groups() <= before


def groups() -> set[str]:
    return {str(one) for one in Path("/sys/fs/cgroup").glob(f"**/quatrain-{os.getpid()}-*")}


@isolated
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_nothing_is_left_of_a_container(runtime: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    other = Pool(LIMITS, workers=1, runtime=runtime)
    run(other, "print(1)")
    (folder,) = tmp_path.iterdir()
    processes = [pid for pid in os.listdir("/proc") if pid.isdigit() and mentions(pid, folder.name)]
    assert processes
    other.close()
    assert not list(tmp_path.iterdir())
    deadline = time.monotonic() + 10.0
    while any(mentions(pid, folder.name) for pid in processes):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def mentions(pid: str, word: str) -> bool:
    try:
        return word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def unexpected(runtime: str, names: list[str]) -> list[str]:
    report = main(names, isolation="oci", runtime=runtime)
    assert len(report["results"]) >= max(1, len(names))
    allowed = [f"{name}: {verdict}," for (which, name), verdict in DIFFERENT.items() if which == runtime]
    return [fault for fault in report["faults"] if not fault.startswith(tuple(allowed))]


@isolated
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_none_of_a_sample_of_hostile_programs_succeeds(runtime: str) -> None:
    assert unexpected(runtime, FEW) == []


@pytest.mark.full
@isolated
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_no_hostile_program_succeeds(runtime: str) -> None:
    assert unexpected(runtime, []) == []


@pytest.mark.full
@isolated
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_none_of_a_sample_succeeds_for_an_ordinary_user(runtime: str) -> None:
    if reason := ordinary.why_not():
        pytest.skip(reason)
    done = ordinary.as_nobody([SCRIPT, *SAMPLE, "--runtime", runtime], 600, {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout)["faults"] == []


def test_a_runtime_that_is_not_there_is_an_error_and_nothing_weaker_is_taken() -> None:
    with pytest.raises(CannotIsolate, match=r"no-such-runtime: .*No such file.*docs/sandbox.md"):
        build_backend(Choice(isolation="oci", runtime="no-such-runtime"), LIMITS, workers=1)
    with pytest.raises(CannotIsolate, match="no runtime; set runtime: runsc"):
        build_backend(Choice(isolation="oci"), LIMITS, workers=1)
    with pytest.raises(SettingError, match=r"isolation: got oci, need .*no-such-runtime"):
        Code(CodeSettings(isolation="oci", runtime="no-such-runtime"), VerifierLimits(name="code", timeout_s=5.0))


def test_a_runtime_that_only_says_yes_is_not_believed(tmp_path: Path) -> None:
    fake = tmp_path / "runc"
    fake.write_text("#!/bin/sh\nexit 0\n")
    fake.chmod(0o755)
    with pytest.raises(CannotIsolate, match="the worker ended"):
        build_backend(Choice(isolation="oci", runtime=str(fake)), LIMITS, workers=1)


def test_the_container_has_no_network_no_writable_root_and_five_capabilities() -> None:
    config = container_config("/bundle/rootfs", build_image(), LIMITS, Layers(), own_kernel=False)
    assert config["root"] == {"path": "/bundle/rootfs", "readonly": True}
    kinds = {one["type"] for one in config["linux"]["namespaces"]}
    assert kinds == {"pid", "mount", "ipc", "uts", "network", "user"}
    assert all(len(held) == 5 for held in config["process"]["capabilities"].values())
    binds = [one for one in config["mounts"] if one["type"] == "bind"]
    assert binds and all({"ro", "nosuid", "nodev"} <= set(one["options"]) for one in binds)
    assert not any(one["destination"].startswith("/dev") for one in config["mounts"])
