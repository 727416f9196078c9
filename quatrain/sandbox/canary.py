"""Whether this machine can isolate: found out by trying to break out, not by looking for programs or settings."""

import functools
import json
import platform
from pathlib import Path

from quatrain.sandbox.image import build_image
from quatrain.sandbox.inside.exchange import WorkerFailed
from quatrain.sandbox.job import Limits, Outcome, SandboxError, Task
from quatrain.sandbox.pool import start_worker
from quatrain.sandbox.worker import Layers

_ATTEMPTS = """
import ctypes, json, os, socket
secret = input()
breaches = []
def attempt(name, action):
    try:
        if action() is not False:
            breaches.append(name)
    except (OSError, MemoryError):
        pass
libc = ctypes.CDLL(None, use_errno=True)
def succeeds(number, *arguments):
    return libc.syscall(number, *arguments) >= 0
attempt("reads a file of this machine", lambda: open(secret).close())
attempt("reads /proc", lambda: bool(os.listdir("/proc")))
attempt("writes outside its own folder", lambda: open("/x", "w").close())
attempt("writes into the interpreter", lambda: open(os.path.dirname(os.__file__) + "/x.py", "w").close())
attempt("makes a socket", lambda: socket.socket(socket.AF_INET))
attempt("makes a local socket", lambda: socket.socket(socket.AF_UNIX))
attempt("starts a process", lambda: os.fork() or os._exit(0))
attempt("starts a program", lambda: os.execv("/python/bin/python3", ["python3"]))
attempt("sees other processes", lambda: (os.getpid(), os.getppid()) != (1, 0))
attempt("has a capability", lambda: any(libc.prctl(23, one, 0, 0, 0) == 1 for one in range(64)))
attempt("makes a namespace", lambda: succeeds(272, 0x10000000))
attempt("makes a file in memory", lambda: succeeds(319, b"x", 0))
attempt("makes shared memory", lambda: succeeds(29, 0, 4096, 0o1600))
attempt("takes more memory than its limit", lambda: bytearray(1 << 30))
attempt("has an environment", lambda: bool(os.environ))
print(json.dumps(breaches))
"""


CANARY = Task(_ATTEMPTS.encode(), f"{__file__}\n".encode())
CANARY_S = 10.0


@functools.cache
def why_not(layers: Layers | None = None, runtime: str | None = None) -> str:
    """Empty when a canary in a real worker could do nothing; else one line: what failed and what to do about it."""
    remedy = _remedy() if runtime is None else f"install or repair the runtime {runtime}; docs/sandbox.md says how"
    try:
        worker = start_worker(build_image(), Limits(), layers or Layers(), runtime)
    except (WorkerFailed, SandboxError, OSError) as error:
        return f"{error}; {remedy}"
    try:
        (outcome,) = worker.run([CANARY], CANARY_S)
    except WorkerFailed as error:
        return f"{error}; {remedy}"
    finally:
        worker.kill()
    reason = breaches(outcome)
    return f"{reason}; {remedy}" if reason else ""


def breaches(outcome: Outcome) -> str:
    """What the canary could do, from what came of it; empty when that was nothing."""
    try:
        said = json.loads(outcome.output)
    except ValueError:
        return f"a test program did not answer ({outcome.status}, exit status {outcome.exit_status})"
    return f"a test program {', '.join(said)}" if said else ""


def _remedy() -> str:
    """The first thing on this machine that is known to stand in the way."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return "the embedded sandbox needs Linux 5.14 or newer on x86_64"
    for path, bad, setting in (
        ("/proc/sys/user/max_user_namespaces", "0", "user.max_user_namespaces=10000"),
        ("/proc/sys/kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1"),
        ("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1",
         "kernel.apparmor_restrict_unprivileged_userns=0"),
    ):  # fmt: skip
        try:
            if Path(path).read_text(encoding="ascii").strip() == bad:
                return f"as root: sysctl -w {setting}"
        except OSError:
            continue
    return (
        "in a container allow user namespaces and mounts: docker run --security-opt seccomp=unconfined "
        "--security-opt apparmor=unconfined --security-opt systempaths=unconfined (Kubernetes: seccompProfile "
        "Unconfined)"
    )
