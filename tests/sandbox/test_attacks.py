"""Hostile programs: none is paid for what it did not earn, none gets out, none hangs, none hurts a neighbour."""

import asyncio
import json
from pathlib import Path

import pytest

from quatrain.sandbox import Layers
from tests.sandbox import ordinary
from tests.sandbox.attack_run import Bench, catalogue, faults, main, run, temptations
from tests.sandbox.machine import isolated

SCRIPT = str(Path(__file__).with_name("attack_run.py"))

# Attacks that ended well for an ordinary user's launcher only by luck, or that look for something on this machine.
SAMPLE = [
    "kill_group", "stop_group", "kill_everyone", "read_host_files", "write_outside", "symlink_escape",
    "fchdir_escape", "net_loopback_tcp", "abstract_socket", "sockets_of_all_kinds", "mount_tmpfs", "new_mount_api",
    "unshare_all", "clone_namespace", "vfork", "ptrace", "memfd", "set_ids", "raise_capabilities", "loosen_seccomp",
    "write_the_library", "inherited_descriptors", "other_processes", "thread_bomb", "fork_bomb", "memory_bomb",
    "raise_rlimits", "honest", "honest_wrong", "frames_of_the_driver",
]  # fmt: skip

# Harmless where they succeed, and successful where nothing holds them.
BREACHES = {
    "read_host_files", "net_loopback_tcp", "net_udp", "abstract_socket", "memfd", "vfork", "host_name", "devices",
    "other_processes", "sockets_of_all_kinds", "syscall_by_machine_code", "paths_of_the_host", "exec_shell",
    "ptrace", "fanotify_inotify", "lock_a_shared_file", "signals_of_input", "personality",
}  # fmt: skip


def test_the_catalogue_is_large_and_has_honest_programs() -> None:
    _, attacks = catalogue()
    names = [attack.name for attack in attacks]
    assert len(names) == len(set(names)) >= 102
    assert {"honest", "honest_wrong", "honest_raises"} <= set(names)


@isolated
def test_none_succeeds() -> None:
    report = main([])
    assert len(report["results"]) >= 102
    assert report["faults"] == []


def attack_as_nobody(names: list[str], timeout_s: float) -> None:
    if reason := ordinary.why_not():
        pytest.skip(reason)
    done = ordinary.as_nobody([SCRIPT, *names], timeout_s, {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout)
    assert report["user"] == int(ordinary.NOBODY)
    assert len(report["results"]) >= len(names)
    assert report["faults"] == []


@isolated
def test_none_of_a_sample_succeeds_for_an_ordinary_user() -> None:
    attack_as_nobody(SAMPLE, 300)


@pytest.mark.full
@isolated
def test_none_succeeds_for_an_ordinary_user() -> None:
    attack_as_nobody([], 900)


@isolated
def test_without_isolation_they_do_succeed() -> None:
    """The programs have teeth: with every layer left out, the same programs break out, and a correct one is judged."""
    suite, attacks = catalogue()
    chosen = [attack for attack in attacks if attack.name in BREACHES]
    bench = Bench.build(Layers(()))
    try:
        with temptations():
            results = asyncio.run(run(bench, suite, chosen))
    finally:
        bench.close()
    assert {result.name for result in results if result.verdict == "fail"} == BREACHES
    assert len(faults(results, chosen)) == len(BREACHES)
    assert all(result.neighbour == "pass" for result in results)


@isolated
@pytest.mark.parametrize(
    ("missing", "breached"),
    [("seccomp", {"memfd", "vfork"}), ("namespaces", {"read_host_files", "host_name", "other_processes"})],
)
def test_each_layer_holds_something_that_the_others_do_not(missing: str, breached: set[str]) -> None:
    suite, attacks = catalogue()
    chosen = [attack for attack in attacks if attack.name in breached]
    bench = Bench.build(Layers(tuple(name for name in Layers().names if name != missing)))
    try:
        results = asyncio.run(run(bench, suite, chosen))
    finally:
        bench.close()
    assert {result.name for result in results if result.verdict == "fail"} == breached
