"""The `oci` backend: a worker in a container of any OCI runtime (runc, gVisor's runsc, Kata), by its command line."""

import contextlib
import json
import os
import secrets
import select
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from quatrain.sandbox.image import Image
from quatrain.sandbox.inside import kernel
from quatrain.sandbox.inside.exchange import WorkerFailed
from quatrain.sandbox.inside.gate import LENGTH, MAX_HEAD, message
from quatrain.sandbox.job import Limits, Outcome, Task
from quatrain.sandbox.worker import GRACE_S, JOB_UID, SERVER_MIB, Layers, job_request, outcomes, server_config

START_LIMIT_S = 60.0
END_LIMIT_S = 20.0
SENTRY_MIB = 512  # what a runtime's own kernel or virtual machine may take, where it counts as the container's
_CAPABILITIES = {
    kernel.CAP_KILL: "CAP_KILL", kernel.CAP_SETGID: "CAP_SETGID", kernel.CAP_SETUID: "CAP_SETUID",
    kernel.CAP_SETPCAP: "CAP_SETPCAP", kernel.CAP_SYS_ADMIN: "CAP_SYS_ADMIN",
}  # fmt: skip


class OciWorker:
    """A container with the fork server in it. Raises WorkerFailed when it cannot be started.

    `runtime`: name or path of the runtime, with options of its own if need be (`runsc --platform=kvm`); `kata` is
    containerd's `ctr` with Kata's shim, which has no command of its own any more.
    """

    def __init__(self, image: Image, limits: Limits, layers: Layers, runtime: str) -> None:
        self._limits, self._job = limits, 0
        self._folder = Path(tempfile.mkdtemp(prefix="quatrain-oci-"))
        self._id = f"quatrain-{os.getpid()}-{secrets.token_hex(4)}"
        self._command = _command(runtime, self._folder)
        try:
            _write_bundle(self._folder, image, limits, layers, own_kernel(runtime))
            with (self._folder / "said").open("wb") as said:
                self._process = subprocess.Popen(
                    [*self._command, *_run(runtime, self._folder), self._id],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=said,
                    start_new_session=True,
                )
        except OSError as error:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise WorkerFailed(f"{runtime}: {error}") from None
        try:
            self._receive(time.monotonic() + START_LIMIT_S)
        except WorkerFailed as failure:
            said_lines = self.kill().strip().splitlines()
            raise WorkerFailed(f"{runtime}: {failure}{': ' + said_lines[-1] if said_lines else ''}") from None

    @property
    def pid(self) -> int:
        """The process id of the runtime's command."""
        return self._process.pid

    def interrupt(self) -> None:
        """End what the worker runs, from any thread; its owner then finds it gone."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()  # the gate ends, so the fork server, process 1 of the container, does

    def kill(self) -> str:
        """End the container and all it runs; returns what the runtime wrote to standard error."""
        self.interrupt()
        try:
            clean = self._process.wait(END_LIMIT_S) == 0
        except subprocess.TimeoutExpired:
            clean = False
        if not clean:  # its command was killed or hangs: the container may live, or its control group be left
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run([*self._command, "delete", "--force", self._id], capture_output=True, check=False,
                               timeout=END_LIMIT_S)  # fmt: skip
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        said = (self._folder / "said").read_text(encoding="utf-8", errors="replace")
        shutil.rmtree(self._folder, ignore_errors=True)
        return said

    def run(self, tasks: Sequence[Task], timeout_s: float) -> list[Outcome]:
        """Run one job; see `Backend.run`. After a WorkerFailed the worker is of no further use."""
        self._job += 1
        head = {
            **job_request(self._job, timeout_s),
            "cap": self._limits.output_kib << 10,
            "grace_s": GRACE_S,
            "sizes": [[len(task.program), len(task.stdin)] for task in tasks],
        }
        deadline = time.monotonic() + timeout_s + 2 * GRACE_S
        self._send(
            b"".join([message(head), *(part for task in tasks for part in (task.program, task.stdin))]), deadline
        )
        answer = self._receive(deadline)
        outputs = [self._read(size, deadline) for size in answer["sizes"]]
        return outcomes(answer["reply"], outputs, answer["over"])

    def _send(self, data: bytes, deadline: float) -> None:
        assert self._process.stdin is not None
        try:
            pipe = self._process.stdin.fileno()
            os.set_blocking(pipe, False)
            left = memoryview(data)
            while left:
                self._wait(pipe, select.POLLOUT, deadline)
                left = left[os.write(pipe, left) :]
        except (OSError, ValueError) as error:
            raise WorkerFailed(f"the worker is gone: {error}") from None

    def _receive(self, deadline: float) -> dict[str, Any]:
        (length,) = LENGTH.unpack(self._read(LENGTH.size, deadline))
        if length > MAX_HEAD:
            raise WorkerFailed("the worker does not keep to the protocol")
        head = json.loads(self._read(length, deadline))
        if "failed" in head:
            raise WorkerFailed(head["failed"])
        return head

    def _read(self, count: int, deadline: float) -> bytes:
        assert self._process.stdout is not None
        pipe, data = self._process.stdout.fileno(), bytearray()
        while len(data) < count:
            self._wait(pipe, select.POLLIN, deadline)
            part = os.read(pipe, count - len(data))
            if not part:
                raise WorkerFailed("the worker ended")
            data += part
        return bytes(data)

    def _wait(self, descriptor: int, event: int, deadline: float) -> None:
        poll = select.poll()
        poll.register(descriptor, event)
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise WorkerFailed("the worker does not answer")


def _name(runtime: str) -> str:
    return os.path.basename(shlex.split(runtime)[0])


def own_kernel(runtime: str) -> bool:
    """Runtimes whose containers do not run on this machine's kernel: users in there are not users here."""
    return _name(runtime).startswith(("runsc", "kata"))


def _command(runtime: str, folder: Path) -> list[str]:
    name, words = _name(runtime), shlex.split(runtime)
    if name == "kata":
        return ["ctr", "--namespace", "quatrain"]
    words += ["--root", str(folder / "state")]
    if name.startswith("runsc"):
        words += ["--network=none", *(["--rootless", "--ignore-cgroups"] if os.geteuid() else [])]
    return words


def _run(runtime: str, folder: Path) -> list[str]:
    if _name(runtime) == "kata":
        return ["run", "--rm", "--runtime", "io.containerd.kata.v2", "--config", str(folder / "config.json")]
    return ["run", "--bundle", str(folder)]


def _write_bundle(folder: Path, image: Image, limits: Limits, layers: Layers, own_kernel: bool) -> None:
    """A root of empty places for the mounts, and config.json."""
    root = folder / "rootfs"
    for name in ("tmp", "proc", "dev"):
        (root / name).mkdir(parents=True)
    for source, place in binds(image):
        target = root / place.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.mkdir() if os.path.isdir(source) else target.touch()
    for name, target_name in image.links:
        (root / name.lstrip("/")).symlink_to(target_name)
    config = container_config(str(root), image, limits, layers, own_kernel)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    folder.chmod(0o755)


def container_config(root: str, image: Image, limits: Limits, layers: Layers, own_kernel: bool) -> dict[str, Any]:
    """The container, in the terms of the OCI runtime specification 1.0."""
    is_root = os.geteuid() == 0
    server = {**server_config(image, limits, layers), "control": -1, "job_uid": JOB_UID if own_kernel or is_root else 0}
    code = "import sys; sys.path.append('/packages'); from inside.gate import main; main()"
    capabilities = list(_CAPABILITIES.values())
    linux: dict[str, Any] = {
        "namespaces": [{"type": kind} for kind in ("pid", "mount", "ipc", "uts", "network")],
        "maskedPaths": ["/proc/kcore", "/proc/keys", "/proc/timer_list"],
    }
    if not own_kernel:
        nobody = [{"containerID": JOB_UID, "hostID": 65534, "size": 1}] if is_root else []
        linux["namespaces"].append({"type": "user"})
        for name, own in (("uidMappings", os.geteuid()), ("gidMappings", os.getegid())):
            linux[name] = [{"containerID": 0, "hostID": own, "size": 1}, *nobody]
    if is_root:
        memory = SERVER_MIB + 2 * limits.memory_mib + (SENTRY_MIB if own_kernel else 0)
        linux["resources"] = {"memory": {"limit": memory << 20}, "pids": {"limit": 2 * limits.threads + 256}}
    return {
        "ociVersion": "1.0.2",
        "root": {"path": root, "readonly": True},
        "hostname": "sandbox",
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "cwd": "/",
            "args": [*image.python, "-s", "-S", "-P", "-B", "-X", "utf8", "-c", code, json.dumps(server)],
            "env": ["PYTHONHASHSEED=0", "OMP_NUM_THREADS=1", "OPENBLAS_NUM_THREADS=1"],
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), capabilities),
            "noNewPrivileges": True,
        },
        "mounts": [*_mounts(image)],
        "linux": linux,
    }


def binds(image: Image) -> list[tuple[str, str]]:
    """What is mounted from this machine: no devices, which every runtime brings along."""
    return [(source, place) for source, place in image.binds if not place.startswith("/dev/")]


def _mounts(image: Image) -> list[dict[str, Any]]:
    fixed = ["nosuid", "nodev"]
    return [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": [*fixed, "noexec", "mode=711"]},
        *(
            {
                "destination": place,
                "type": "bind",
                "source": source,
                "options": ["rbind", "ro", *fixed],
            }
            for source, place in binds(image)
        ),
        *(
            {"destination": folder, "type": "tmpfs", "source": "tmpfs", "options": [*fixed, "ro", "size=4k"]}
            for folder in image.hidden
        ),
    ]
