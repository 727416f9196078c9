"""The two filters, run on paper: what the kernel would answer for every call, the server's and a job's together."""

import errno

import pytest

from quatrain.sandbox.inside import syscalls
from quatrain.sandbox.inside.kernel import SockFilter

ALLOW, KILL = 0x7FFF0000, 0x80000000
EPERM, ENOSYS = 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS
X86_64 = 0xC000003E
FORK, THREAD = 0x1200011, 0x3D0F00  # flags of glibc's fork() and pthread_create()


def answer(program: list[SockFilter], number: int, arguments: tuple[int, ...] = (), machine: int = X86_64) -> int:
    """What one filter returns."""
    words = {0: number, 4: machine, **{16 + 8 * index: value & 0xFFFFFFFF for index, value in enumerate(arguments)}}
    accumulator, at = 0, 0
    while True:
        step = program[at]
        at += 1
        if step.code == 0x20:
            accumulator = words.get(step.k, 0)
        elif step.code == 0x54:
            accumulator &= step.k
        elif step.code == 0x06:
            return step.k
        else:
            truth = accumulator == step.k if step.code == 0x15 else accumulator >= step.k
            at += step.jt if truth else step.jf


def both(number: int, arguments: tuple[int, ...] = (), machine: int = X86_64) -> int:
    """What a job gets: of two answers the kernel takes the stricter, killing first, then an error."""
    answers = [answer(one, number, arguments, machine) for one in (syscalls.server_filter(), syscalls.job_filter())]
    return KILL if KILL in answers else min(answers)


def test_a_job_may_make_the_calls_of_the_list_and_no_others() -> None:
    special = {syscalls.CLONE, syscalls.CLONE3, syscalls.PRCTL, *(number for number, _, _ in syscalls.BY_ARGUMENT)}
    for number in set(range(600)) - special:
        assert both(number) == (ALLOW if number in syscalls.ALLOWED.values() else EPERM), number


def test_what_makes_jobs_is_for_the_server_alone() -> None:
    assert not set(syscalls.SERVER_ONLY.values()) & set(syscalls.ALLOWED.values())
    for number in syscalls.SERVER_ONLY.values():
        assert answer(syscalls.server_filter(), number) == ALLOW
        assert both(number) == EPERM


def test_the_server_itself_has_no_more_than_it_needs() -> None:
    for name, number in {"execve": 59, "ptrace": 101, "socket": 41, "bpf": 321, "memfd_create": 319}.items():
        assert answer(syscalls.server_filter(), number) == EPERM, name


@pytest.mark.parametrize(
    ("number", "arguments", "wanted"),
    [
        (syscalls.CLONE, (THREAD,), ALLOW),
        (syscalls.CLONE, (FORK,), EPERM),
        (syscalls.CLONE, (THREAD | 0x10000000,), EPERM),
        (syscalls.CLONE, (0x100 | 0x4000 | 17,), EPERM),  # vfork
        (syscalls.CLONE3, (), ENOSYS),
        (syscalls.PRCTL, (15,), ALLOW),
        (syscalls.PRCTL, (22,), EPERM),  # a further filter
        (syscalls.PRCTL, (4,), EPERM),  # to be dumpable
        (syscalls.SOCKETPAIR, (1,), ALLOW),
        (syscalls.SOCKETPAIR, (2,), EPERM),
        (syscalls.IOCTL, (0, 0x5401), ALLOW),
        (syscalls.IOCTL, (0, 0x5412), EPERM),  # to type into a terminal
        (syscalls.FCNTL, (0, 1 << 32 | 3), ALLOW),
        (syscalls.FCNTL, (0, 6), EPERM),  # a lock
        (syscalls.PRLIMIT64, (0,), ALLOW),
        (syscalls.PRLIMIT64, (1,), EPERM),
    ],
)  # fmt: skip
def test_calls_that_depend_on_an_argument(number: int, arguments: tuple[int, ...], wanted: int) -> None:
    assert both(number, arguments) == wanted


def test_another_architecture_is_the_end() -> None:
    assert both(1, machine=0x40000003) == KILL  # int 0x80
    assert both(0x40000000 | 1) == KILL  # x32
    assert both(0xFFFFFFFF) == KILL


def test_the_bounds_of_the_answers_would_be_noticed() -> None:
    assert (
        answer(
            [SockFilter(0x20, 0, 0, 0), SockFilter(0x15, 0, 1, 5), SockFilter(6, 0, 0, 1), SockFilter(6, 0, 0, 2)], 5
        )
        == 1
    )
    assert (
        answer(
            [SockFilter(0x20, 0, 0, 0), SockFilter(0x35, 0, 1, 5), SockFilter(6, 0, 0, 1), SockFilter(6, 0, 0, 2)], 4
        )
        == 2
    )
