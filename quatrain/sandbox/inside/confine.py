"""What a job gives up between its fork and the first byte of the candidate's program. The order matters."""

import os
import random
import resource
from dataclasses import dataclass
from typing import Any

from . import kernel

MAX_SHARED = 50_000  # jobs of one worker whose users must all differ


@dataclass(frozen=True)
class Place:
    """Where a job may write, and as whom it runs.

    `shared`: the kernel ignores new mount tables (gVisor's did for long). Then each job is a user of its own, and its
    folder is closed to all others.
    """

    folder: str
    uid: int
    shared: bool

    @classmethod
    def of(cls, config: dict[str, Any], number: int) -> "Place":
        """The place of the `number`-th job."""
        if not config.get("shared_mounts"):
            return cls("/tmp", config["job_uid"], False)
        if number > MAX_SHARED:
            raise OSError(f"a worker whose mounts are shared ends after {MAX_SHARED} jobs")
        folder = f"/tmp/{number}"
        os.mkdir(folder, 0o755)
        return cls(folder, config["job_uid"] + number, True)


def mounts_are_shared() -> bool:
    """Whether a process in a mount table of its own mounts for all others too."""
    before = os.stat("/tmp").st_dev
    pid = kernel.clone(kernel.CLONE_NEWNS)
    if pid == 0:
        try:
            kernel.mount("tmpfs", "/tmp", "tmpfs", 0, "size=4096")
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    if os.stat("/tmp").st_dev == before:
        return False
    kernel.unmount("/tmp")
    return True


def confine(config: dict[str, Any], place: Place) -> None:
    """Lock this process in, up to `seal`. Any failure raises; the caller must then end without reading a program."""
    layers, limits = config["layers"], config["limits"]
    if "namespaces" in layers:
        _own_folder(limits, place)
    if "limits" in layers:
        _set_limits(limits, "namespaces" in layers, stand_in=place.shared)
    if "namespaces" in layers:
        _lose_identity(place.uid)
        os.chdir(place.folder)
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    random.seed(0)  # the same program gets the same verdict


def seal(config: dict[str, Any], cpu_s: int, filter_: kernel.Filter) -> None:
    """The last of it, once the task has arrived: its processor time, and the filter, which forbids what came before."""
    if "limits" in config["layers"]:
        _limit(resource.RLIMIT_CPU, cpu_s)
    if "seccomp" in config["layers"]:
        filter_.install()


def _own_folder(limits: dict[str, int], place: Place) -> None:
    """An empty folder: /tmp in a mount table that is this job's alone, which goes when the job goes."""
    options = f"size={limits['tmp_bytes']},"
    if place.shared:
        options += f"mode=0700,uid={place.uid},gid={place.uid}"
    else:
        options += f"nr_inodes={limits['tmp_files']},mode=1777"
    flags = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
    kernel.mount("tmpfs", place.folder, "tmpfs", flags, options)


def _set_limits(limits: dict[str, int], own_users: bool, *, stand_in: bool) -> None:
    """Soft and hard limits alike: without CAP_SYS_RESOURCE a hard limit cannot be raised again."""
    wanted = [
        (resource.RLIMIT_AS, limits["memory_bytes"]),
        (resource.RLIMIT_FSIZE, limits["tmp_bytes"]),
        (resource.RLIMIT_NOFILE, limits["open_files"]),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
    ]
    if own_users:  # outside a user namespace this one counts everything that the user runs
        wanted.append((resource.RLIMIT_NPROC, limits["threads"]))
    if not stand_in:  # gVisor's kernel has neither
        wanted += [(resource.RLIMIT_MSGQUEUE, 0), (resource.RLIMIT_SIGPENDING, 64)]
    for which, value in wanted:
        _limit(which, value)


def _limit(which: int, value: int) -> None:
    hard = resource.getrlimit(which)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(which, (value, value))


def _lose_identity(uid: int) -> None:
    """From the worker's root (of its own namespace, not of the machine) to a user without any capability."""
    kernel.drop_bounding(kernel.SERVER_CAPABILITIES)  # the others went when the server started
    kernel.lock_securebits()
    if uid:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    kernel.hold_capabilities()
