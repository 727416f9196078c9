"""The few Linux calls that Python 3.11 does not offer, each of which raises OSError with the call's name."""

import ctypes
import errno
import os
import signal
from collections.abc import Callable, Iterable
from typing import Any

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
MNT_DETACH = 2
ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV, ATTR_NOEXEC = 1, 2, 4, 8
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_CAPBSET_READ, PR_CAPBSET_DROP, PR_SET_SECUREBITS = 1, 22, 23, 24, 28
PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 38, 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
SECBITS_LOCKED = 0xEF  # NOROOT, NO_SETUID_FIXUP, NO_CAP_AMBIENT_RAISE, each with its lock; and the lock of KEEP_CAPS
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_SYS_MOUNT_SETATTR = 442  # the same number on every architecture
_SYS_CLONE = 56  # x86-64
CAP_KILL, CAP_SETGID, CAP_SETUID, CAP_SETPCAP, CAP_SYS_ADMIN = 5, 6, 7, 8, 21
# What the fork server keeps: to make namespaces, to become another user and to kill its processes. Jobs keep none.
SERVER_CAPABILITIES = frozenset({CAP_KILL, CAP_SETGID, CAP_SETUID, CAP_SETPCAP, CAP_SYS_ADMIN})
_CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)
# Holds the interpreter lock during the call: the child of a raw clone must not have to ask for it.
_libc_locked = ctypes.PyDLL(None, use_errno=True)


class SockFilter(ctypes.Structure):
    """One instruction of classic BPF."""

    _fields_ = [("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8), ("k", ctypes.c_uint32)]


class _SockProgram(ctypes.Structure):
    _fields_ = [("length", ctypes.c_uint16), ("filter", ctypes.POINTER(SockFilter))]


class _MountAttr(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns")]


def _call(function: Callable[..., int], name: str, *arguments: Any) -> int:
    ctypes.set_errno(0)
    result = function(*arguments)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def clone(flags: int) -> int:
    """fork() into new namespaces; 0 in the child.

    A raw call, which costs half of os.fork(): no at-fork handlers run, neither Python's nor libc's, so the caller must
    have one thread. libc keeps the caller's thread id in the child: right where both are process 1 of a namespace.
    """
    zero = ctypes.c_ulong(0)
    return _call(_libc_locked.syscall, "clone", ctypes.c_long(_SYS_CLONE), ctypes.c_ulong(flags | signal.SIGCHLD),
                 zero, zero, zero, zero)  # fmt: skip


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """mount(2)."""
    _call(_libc.mount, f"mount {target}", source.encode(), target.encode(), kind.encode() or None,
          ctypes.c_ulong(flags), options.encode() or None)  # fmt: skip


def unmount(target: str) -> None:
    """Take a mount away; what still uses it keeps it until it is done."""
    _call(_libc.umount2, f"umount {target}", target.encode(), ctypes.c_int(MNT_DETACH))


def set_mount_flags(target: str, attributes: int) -> None:
    """Add attributes to a mount and all below it. Adding never collides with flags that the kernel has locked."""
    wanted = _MountAttr(attributes, 0, 0, 0)
    _call(_libc.syscall, f"mount_setattr {target}", ctypes.c_long(_SYS_MOUNT_SETATTR), ctypes.c_int(_AT_FDCWD),
          target.encode(), ctypes.c_uint(_AT_RECURSIVE), ctypes.byref(wanted), ctypes.c_size_t(32))  # fmt: skip


def enter_root(folder: str) -> None:
    """Make `folder` (a mount) the root and let go of the old one for good."""
    os.chdir(folder)
    _call(_libc.pivot_root, "pivot_root", b".", b".")  # the old root is now mounted on top of the new one
    unmount(".")
    os.chdir("/")


def prctl(option: int, argument: Any = 0, third: Any = 0) -> int:
    """prctl(2)."""
    arguments = [ctypes.c_ulong(one) if isinstance(one, int) else one for one in (argument, third)]
    return _call(_libc.prctl, f"prctl {option}", ctypes.c_int(option), *arguments, ctypes.c_ulong(0), ctypes.c_ulong(0))


def drop_bounding(capabilities: Iterable[int]) -> None:
    """Take these out of the bounding set, in ascending order: no later exec or id change can bring them back."""
    for capability in sorted(capabilities):
        try:
            if prctl(PR_CAPBSET_READ, capability):
                prctl(PR_CAPBSET_DROP, capability)
        except OSError:
            if capability <= CAP_SYS_ADMIN:
                raise
            break  # beyond the last one that this kernel knows


def _if_known(option: int, argument: int) -> None:
    """prctl(2) for something that Linux has, and kernels that stand in for it (gVisor's) need not have."""
    try:
        prctl(option, argument)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise


def lock_securebits() -> None:
    """Take the ways by which user 0 gets capabilities back; a change of user no longer changes them either."""
    _if_known(PR_SET_SECUREBITS, SECBITS_LOCKED)


def hold_capabilities(held: frozenset[int] = frozenset()) -> None:
    """Keep only `held`, effective and permitted."""
    _if_known(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    mask = sum(1 << one for one in held)
    low, high = mask & 0xFFFFFFFF, mask >> 32
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    data = (ctypes.c_uint32 * 6)(low, low, 0, high, high, 0)  # effective, permitted, inheritable; twice 32 bits
    _call(_libc.capset, "capset", ctypes.byref(header), ctypes.byref(data))


def trim() -> None:
    """Give free memory of the heap back: pages that are mapped cost every fork and every exit."""
    _libc.malloc_trim(ctypes.c_size_t(0))


class Filter:
    """A seccomp program, laid out once for all the jobs that put it on."""

    def __init__(self, instructions: list[SockFilter]) -> None:
        self._array = (SockFilter * len(instructions))(*instructions)
        self._program = _SockProgram(len(instructions), self._array)

    def install(self) -> None:
        """Put the filter on this thread for good; needs no_new_privs."""
        prctl(PR_SET_SECCOMP, 2, ctypes.byref(self._program))
