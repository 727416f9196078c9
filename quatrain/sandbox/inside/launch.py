"""The launcher: puts the fork server into its namespaces and its small root, and ends it with the process it serves.

It stays outside, in the namespaces of whoever started it, and does nothing but wait: for the fork server to end, or for
the end of its standard input, which means that the trainer is gone.
"""

import contextlib
import json
import os
import platform
import select
import signal
import socket
import sys
from pathlib import Path
from typing import Any, NoReturn

from . import kernel
from .cgroup import Cgroup

ISOLATED = (
    kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC
    | kernel.CLONE_NEWUTS | kernel.CLONE_NEWCGROUP
)  # fmt: skip
MOUNT_POINTS = ("/tmp", "/mnt", "/media", "/srv", "/opt", "/run", "/var/tmp")


def main() -> None:
    """Start the fork server of sys.argv[1] (JSON), wait, clean up."""
    config = json.loads(sys.argv[1])
    control = config["control"]
    cgroup = None
    try:
        if "namespaces" not in config["layers"]:
            _serve_here(config)
        if platform.machine() != "x86_64":
            raise OSError(f"the system call filter is written for x86_64, not for {platform.machine()}")
        cgroup = Cgroup.create(config["cgroup"])
        pid = _start(config, cgroup)
    except OSError as error:
        _fail(control, error)
        return
    finally:
        os.close(control)
    try:
        _wait(pid)
    finally:
        if cgroup is not None:
            cgroup.remove()


def _serve_here(config: dict[str, Any]) -> NoReturn:
    """No isolation: the fork server as a plain process of this user."""
    os.set_inheritable(config["control"], True)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    os.execv(sys.executable, _command(config, [sys.executable], str(Path(__file__).parents[1])))


def _command(config: dict[str, Any], python: list[str], folder: str) -> list[str]:
    passed = {key: config[key] for key in ("control", "layers", "limits", "paths", "preload", "job_uid")}
    code = f"import sys; sys.path.append({folder!r}); from inside.server import main; main()"
    return [*python, "-s", "-S", "-P", "-B", "-X", "utf8", "-c", code, json.dumps(passed)]


def _start(config: dict[str, Any], cgroup: Cgroup | None) -> int:
    """Clone the fork server; it goes on when its user ids are mapped and its cgroup is set. Both need this side."""
    go_read, go_write = os.pipe()
    pid = kernel.clone(ISOLATED)
    if pid == 0:
        os.close(go_write)
        _become_server(config, go_read)
    os.close(go_read)
    try:
        _map_users(pid, config["job_uid"])
        if cgroup is not None:
            cgroup.add(pid)
        os.write(go_write, b"g")
    except OSError:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    finally:
        os.close(go_write)
    return pid


def _map_users(pid: int, job_uid: int) -> None:
    """Inside, 0 is whoever runs this. Root also lends the id 65534 (nobody), which jobs run under: they then own
    nothing on the machine, and the kernel enforces the limit of processes, which it does not for root itself."""
    folder = Path(f"/proc/{pid}")
    if not job_uid:
        (folder / "setgroups").write_text("deny")  # without this an ordinary user may not map groups
    for name, own in (("uid_map", os.geteuid()), ("gid_map", os.getegid())):
        nobody = f"\n{job_uid} 65534 1" if job_uid else ""
        (folder / name).write_text(f"0 {own} 1{nobody}")


def _become_server(config: dict[str, Any], go: int) -> NoReturn:
    control = config["control"]
    try:
        if os.read(go, 1) != b"g":
            os._exit(1)
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)  # process 1 dies with the launcher, and all with it
        socket.sethostname("sandbox")
        _build_root(config)
        os.dup2(control, 3)
        for number in (0, 1, 2):
            os.dup2(os.open("/dev/null", os.O_RDWR), number)
        os.closerange(4, 1 << 20)
        command = _command({**config, "control": 3}, config["python"], "/packages")
        os.execve(command[0], command, {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"})
    except BaseException as error:  # noqa: BLE001 - nothing may go on with half of a sandbox
        _fail(control, error)
    finally:
        os._exit(1)


def _build_root(config: dict[str, Any]) -> None:
    """A read-only root of bind mounts: interpreter, standard library, the shared objects they load, two devices."""
    base = _mount_point([source for source, _ in config["binds"]])
    kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("tmpfs", base, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=1m,mode=755")
    root = Path(base)
    for source, target in config["binds"]:
        place = root / target.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        if os.path.isdir(source):
            place.mkdir(exist_ok=True)
        else:
            place.touch()
        kernel.mount(source, str(place), flags=kernel.MS_BIND | kernel.MS_REC)
        device = 0 if target.startswith("/dev/") else kernel.ATTR_NODEV
        kernel.set_mount_flags(str(place), kernel.ATTR_RDONLY | kernel.ATTR_NOSUID | device)
    for name, target in config["links"]:
        (root / name.lstrip("/")).symlink_to(target)
    for folder in config["hidden"]:  # packages of the host's interpreter that lie inside its standard library
        kernel.mount("tmpfs", str(root / folder.lstrip("/")), "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=4k")
    (root / "tmp").mkdir()
    kernel.enter_root(base)
    kernel.set_mount_flags("/", kernel.ATTR_RDONLY)


def _mount_point(sources: list[str]) -> str:
    """An existing folder to mount the new root on, seen by this process only, that hides none of the sources."""
    for folder in MOUNT_POINTS:
        if os.path.isdir(folder) and not any(source.startswith(folder + "/") for source in sources):
            return os.path.realpath(folder)
    raise OSError(f"no folder among {', '.join(MOUNT_POINTS)} that is free to mount on")


def _wait(pid: int) -> None:
    """Until the fork server ends or standard input does; then see that nothing of its namespaces is left."""
    pidfd = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    poll.register(0, select.POLLIN)
    poll.poll()
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    os.waitpid(pid, 0)


def _fail(control: int, error: BaseException) -> None:
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(control)) as channel:
        channel.send(json.dumps({"failed": f"{error}" or type(error).__name__}).encode())
