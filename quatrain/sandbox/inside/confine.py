"""What a job gives up between its fork and the first byte of the candidate's program. The order matters."""

import os
import random
import resource
from typing import Any

from . import kernel


def confine(config: dict[str, Any], limits: dict[str, int], filter_: kernel.Filter) -> None:
    """Lock this process in; any failure raises, and the caller must then end without reading the program."""
    layers = config["layers"]
    if "namespaces" in layers:
        _own_folder(limits)
    if "limits" in layers:
        _set_limits(limits, "namespaces" in layers)
    if "namespaces" in layers:
        _lose_identity(config["job_uid"])
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    if "seccomp" in layers:
        filter_.install()  # last: the calls above are not on its list
    random.seed(0)  # the same program gets the same verdict


def _own_folder(limits: dict[str, int]) -> None:
    """A mount table of this job alone, with an empty /tmp in it that goes when the job goes.

    Network and hostname namespaces are the worker's: nothing can be done in them without sockets, and no interface is
    up. A new IPC namespace guards against a hole in the filter, which refuses System V objects and message queues.
    """
    kernel.unshare(kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC)
    size = f"size={limits['tmp_bytes']},nr_inodes={limits['tmp_files']},mode=1777"
    kernel.mount("tmpfs", "/tmp", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC, size)
    os.chdir("/tmp")


def _set_limits(limits: dict[str, int], own_users: bool) -> None:
    """Soft and hard limits alike: without CAP_SYS_RESOURCE a hard limit cannot be raised again."""
    for which, value in (
        (resource.RLIMIT_AS, limits["memory_bytes"]),
        (resource.RLIMIT_CPU, limits["cpu_s"]),
        (resource.RLIMIT_FSIZE, limits["tmp_bytes"]),
        (resource.RLIMIT_NOFILE, limits["open_files"]),
        (resource.RLIMIT_NPROC, limits["threads"]),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_SIGPENDING, 64),
    ):
        if which == resource.RLIMIT_NPROC and not own_users:
            continue  # outside a user namespace this one counts everything that the user runs
        hard = resource.getrlimit(which)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (value, value))


def _lose_identity(uid: int) -> None:
    """From the worker's root (of its own namespace, not of the machine) to a user without any capability."""
    if uid:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        # The change of user would clear the capabilities needed for the steps below.
        kernel.prctl(kernel.PR_SET_SECUREBITS, kernel.SECBIT_NO_SETUID_FIXUP)
        os.setresuid(uid, uid, uid)
    kernel.drop_bounding(kernel.SERVER_CAPABILITIES)  # the others went when the server started
    kernel.hold_capabilities(locked=True)
