"""The seccomp allow-list of a job, written as classic BPF (x86-64), in two filters.

Whatever is not named here fails with EPERM. A call of another architecture's table (`int 0x80`, x32) kills the process:
there the same numbers mean other calls, so no rule of this list could be trusted for them.
"""

import errno

from .kernel import SockFilter

# What CPython, its extension modules and numpy need. No process creation, exec, sockets, mounts, namespaces, keys,
# tracing, shared memory (memfd included), io_uring, bpf, perf, userfaultfd.
ALLOWED = {
    "read": 0, "write": 1, "open": 2, "close": 3, "stat": 4, "fstat": 5, "lstat": 6, "poll": 7, "lseek": 8, "mmap": 9,
    "mprotect": 10, "munmap": 11, "brk": 12, "rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15,
    "pread64": 17, "pwrite64": 18, "readv": 19, "writev": 20, "access": 21, "pipe": 22, "select": 23,
    "sched_yield": 24, "mremap": 25, "madvise": 28, "dup": 32, "dup2": 33, "pause": 34, "nanosleep": 35,
    "getitimer": 36, "alarm": 37, "setitimer": 38, "getpid": 39, "sendto": 44, "recvfrom": 45, "shutdown": 48,
    "getsockname": 51, "getpeername": 52, "getsockopt": 55, "exit": 60, "wait4": 61, "kill": 62, "uname": 63,
    "fsync": 74, "fdatasync": 75, "truncate": 76, "ftruncate": 77, "getdents": 78, "getcwd": 79,
    "chdir": 80, "fchdir": 81, "rename": 82, "mkdir": 83, "rmdir": 84, "creat": 85, "link": 86, "unlink": 87,
    "symlink": 88, "readlink": 89, "chmod": 90, "fchmod": 91, "umask": 95, "gettimeofday": 96, "getrlimit": 97,
    "getrusage": 98, "sysinfo": 99, "times": 100, "getuid": 102, "getgid": 104, "geteuid": 107, "getegid": 108,
    "getppid": 110, "getpgrp": 111, "getgroups": 115, "getresuid": 118, "getresgid": 120, "getpgid": 121,
    "getsid": 124, "rt_sigpending": 127, "rt_sigtimedwait": 128, "rt_sigsuspend": 130, "sigaltstack": 131,
    "statfs": 137, "fstatfs": 138, "getpriority": 140, "sched_getparam": 143, "sched_getscheduler": 145,
    "arch_prctl": 158, "setrlimit": 160, "gettid": 186, "time": 201, "futex": 202, "sched_getaffinity": 204,
    "epoll_create": 213, "getdents64": 217, "set_tid_address": 218, "restart_syscall": 219,
    "timer_create": 222, "timer_settime": 223, "timer_gettime": 224, "timer_getoverrun": 225, "timer_delete": 226,
    "clock_gettime": 228, "clock_getres": 229, "clock_nanosleep": 230, "exit_group": 231, "epoll_wait": 232,
    "epoll_ctl": 233, "tgkill": 234, "openat": 257, "mkdirat": 258, "newfstatat": 262, "unlinkat": 263,
    "renameat": 264, "linkat": 265, "symlinkat": 266, "readlinkat": 267, "fchmodat": 268, "faccessat": 269,
    "pselect6": 270, "ppoll": 271, "set_robust_list": 273, "get_robust_list": 274, "utimensat": 280,
    "epoll_pwait": 281, "eventfd2": 290, "epoll_create1": 291, "dup3": 292, "pipe2": 293, "preadv": 295,
    "pwritev": 296, "renameat2": 316, "getrandom": 318, "membarrier": 324, "statx": 332,
    "rseq": 334, "close_range": 436, "faccessat2": 439,
}  # fmt: skip

# What the fork server needs beyond that, to make a job and to lock it in.
SERVER_ONLY = {
    "sendmsg": 46, "recvmsg": 47, "setsid": 112, "setgroups": 116, "setresuid": 117, "setresgid": 119,
    "capset": 126, "mount": 165, "umount2": 166, "waitid": 247,
}  # fmt: skip
PRCTL_OPTIONS = [15, 16, 21, 23, 39, 0x53564D41]  # names; reading seccomp, bounding set, no_new_privs

CLONE, CLONE3, IOCTL, FCNTL, SOCKETPAIR, PRCTL, PRLIMIT64 = 56, 435, 16, 72, 53, 157, 302
_THREAD = 0x10000 | 0x800 | 0x100  # CLONE_THREAD | CLONE_SIGHAND | CLONE_VM: a thread, not a process
_NEW_NAMESPACES = 0x7E020080  # every CLONE_NEW*, CLONE_NEWTIME included

# Calls that are allowed for some values of one argument: (number, argument's index, values). Only the low 32 bits are
# looked at, as the kernel does with these arguments.
BY_ARGUMENT: list[tuple[int, int, list[int]]] = [
    (IOCTL, 1, [0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451]),  # is it a terminal, its size, FION*, FIO*CLEX
    (SOCKETPAIR, 0, [1]),  # AF_UNIX: asyncio wakes itself through one; it cannot be bound to a name or connected
    (PRLIMIT64, 0, [0]),  # of itself: it can lower its limits
    # Duplicates and flags. Not owners of signals, leases or larger pipes (kernel memory); no locks, here or by flock():
    # on a library file, which all jobs see, a lock would be a channel between them.
    (FCNTL, 1, [*range(5), 1030, 1032]),
]

_LOAD, _EQUAL, _AT_LEAST, _AND, _RETURN = 0x20, 0x15, 0x35, 0x54, 0x06
_ALLOW, _KILL, _FAIL = 0x7FFF0000, 0x80000000, 0x00050000
_X86_64, _X32_BIT = 0xC000003E, 0x40000000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data


def _step(code: int, k: int, jt: int = 0, jf: int = 0) -> SockFilter:
    return SockFilter(code, jt, jf, k)


def _fail(number: int) -> SockFilter:
    return _step(_RETURN, _FAIL | number)


def _guarded(number: int, rule: list[SockFilter]) -> list[SockFilter]:
    """`rule`, which ends in a return, for one system call only."""
    return [_step(_EQUAL, number, 0, len(rule)), *rule]


def _argument_is(index: int, values: list[int]) -> list[SockFilter]:
    rule = [_step(_LOAD, _ARGUMENTS + 8 * index)]
    for value in values:
        rule += [_step(_EQUAL, value, 0, 1), _step(_RETURN, _ALLOW)]
    return [*rule, _fail(errno.EPERM)]


def _threads_only() -> list[SockFilter]:
    """clone() for a thread of this process, in the same namespaces: what pthread_create does."""
    return [
        _step(_LOAD, _ARGUMENTS),
        _step(_AND, _THREAD | _NEW_NAMESPACES),
        _step(_EQUAL, _THREAD, 0, 1),
        _step(_RETURN, _ALLOW),
        _fail(errno.EPERM),
    ]


def server_filter() -> list[SockFilter]:
    """For the fork server, and inherited by jobs: the list above, and what it takes to make a job.

    A long filter costs a millisecond to put on, so jobs put on a short one that takes the difference away.
    """
    program = [
        _step(_LOAD, _ARCHITECTURE),
        _step(_EQUAL, _X86_64, 1, 0),
        _step(_RETURN, _KILL),
        _step(_LOAD, _NUMBER),
        _step(_AT_LEAST, _X32_BIT, 0, 1),
        _step(_RETURN, _KILL),
    ]
    for number in ALLOWED.values():
        program += _guarded(number, [_step(_RETURN, _ALLOW)])
    for number in (*SERVER_ONLY.values(), CLONE, PRCTL):
        program += _guarded(number, [_step(_RETURN, _ALLOW)])
    # its flags are out of a filter's sight; libc falls back to clone
    program += _guarded(CLONE3, [_fail(errno.ENOSYS)])
    for number, index, values in BY_ARGUMENT:
        program += _guarded(number, _argument_is(index, values))
    return [*program, _fail(errno.EPERM)]


def job_filter() -> list[SockFilter]:
    """What a job puts on top of the server's: the kernel runs both, and the stricter answer counts."""
    program = [_step(_LOAD, _NUMBER)]
    for number in SERVER_ONLY.values():
        program += _guarded(number, [_fail(errno.EPERM)])
    program += _guarded(CLONE, _threads_only())
    program += _guarded(PRCTL, _argument_is(0, PRCTL_OPTIONS))
    return [*program, _step(_RETURN, _ALLOW)]
