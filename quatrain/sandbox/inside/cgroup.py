"""A control group around a worker, where this user may make one: a second bound on memory and processes.

Limits per process (rlimits) hold everywhere and come first; a group also counts kernel memory and shared pages.
"""

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

FILES = {
    "v1": {"memory": "memory.limit_in_bytes", "pids": "pids.max"},
    "v2": {"memory": "memory.max", "pids": "pids.max"},
}


PREFIX = "quatrain-"


@dataclass(frozen=True)
class Cgroup:
    """The folders of one group: one in version 2, one per controller in version 1."""

    folders: tuple[Path, ...]

    @classmethod
    def create(cls, wanted: dict[str, int] | None) -> "Cgroup | None":
        """A group below this process's own with the limits of `wanted`; None where that is not allowed."""
        made: list[Path] = []
        for version, controllers, parent in _parents() if wanted else []:
            _sweep(parent)
            folder = parent / f"{PREFIX}{os.getpid()}"
            try:
                folder.mkdir()
                made.append(folder)
                for controller in controllers:
                    (folder / FILES[version][controller]).write_text(str((wanted or {})[controller]))
            except OSError:
                with contextlib.suppress(OSError):
                    folder.rmdir()
                made = [one for one in made if one != folder]
        return cls(tuple(made)) if made else None

    def add(self, pid: int) -> None:
        """Move a process in; its later children are born there."""
        for folder in self.folders:
            (folder / "cgroup.procs").write_text(str(pid))

    def remove(self) -> None:
        """Delete the empty group. The kernel may need a moment after the last process."""
        for folder in self.folders:
            for _ in range(100):
                try:
                    folder.rmdir()
                    break
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(0.01)


def _sweep(parent: Path) -> None:
    """Delete the empty groups of launchers that were killed before they could."""
    for folder in parent.glob(f"{PREFIX}*"):
        pid = folder.name.removeprefix(PREFIX)
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            with contextlib.suppress(OSError):
                folder.rmdir()


def _parents() -> list[tuple[str, list[str], Path]]:
    """(version, controllers, folder) of this process's own groups that know memory or pids."""
    mounts = {}
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            left, _, right = line.partition(" - ")
            kind, _, options = right.split()[:3]
            if kind == "cgroup2":
                mounts["v2"] = left.split()[4]
            elif kind == "cgroup":
                mounts.update((name, left.split()[4]) for name in options.split(",") if name in FILES["v1"])
    found = []
    with open("/proc/self/cgroup", encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            number, names, path = line.rstrip("\n").split(":", 2)
            if number == "0" and "v2" in mounts:
                folder = Path(mounts["v2"] + path)
                enabled = folder / "cgroup.subtree_control"
                known = enabled.read_text().split() if enabled.exists() else []
                if controllers := [name for name in FILES["v2"] if name in known]:
                    found.append(("v2", controllers, folder))
            found += [("v1", [name], Path(mounts[name] + path)) for name in names.split(",") if name in mounts]
    return found
