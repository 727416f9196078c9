"""Running a script as a user without any privilege, from tests that run as root."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
NOBODY = "65534"

# In a mount table of its own: put an empty folder that everybody may enter in place of each closed one (such as /root),
# with only the wanted folder bound into it. Arguments: pairs of closed folder and wanted folder, then --, the command.
_SCRIPT = """
set -e
mount --make-rprivate /
mount -t tmpfs none /mnt
count=0
pairs=""
while [ "$1" != "--" ]; do
    mkdir /mnt/$count; mount --bind "$2" /mnt/$count
    case " $pairs " in *" $1 "*) ;; *) pairs="$pairs $1"; mount -t tmpfs -o mode=755 none "$1";; esac
    mkdir -p "$2"; mount --bind /mnt/$count "$2"
    count=$((count + 1)); shift 2
done
shift
umount -l /mnt
exec setpriv --reuid $0 --regid $0 --clear-groups --inh-caps=-all --bounding-set=-all --no-new-privs -- "$@"
"""


def why_not() -> str:
    """Why no command can be run as an ordinary user; empty when one can."""
    if os.geteuid() != 0:
        return "the tests run as an ordinary user already"
    missing = [name for name in ("unshare", "setpriv", "mount") if shutil.which(name) is None]
    if missing:
        return f"needs {', '.join(missing)} (util-linux)"
    done = subprocess.run(["unshare", "-m", "true"], capture_output=True, text=True, check=False)
    return f"no private mounts: {done.stderr.strip()}" if done.returncode else ""


def as_nobody(arguments: list[str], timeout_s: float, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """`python ARGUMENTS` as user 65534, in the folder of the repository."""
    pairs: list[str] = []
    for needed in {str(ROOT), sys.base_prefix, sys.prefix}:
        closed = _closed_above(Path(needed).resolve())
        if closed is not None:
            pairs += [str(closed), str(Path(needed).resolve())]
    command = ["unshare", "-m", "sh", "-c", _SCRIPT, NOBODY, *pairs, "--", sys.executable, *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, timeout=timeout_s, check=False,
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PYTHONPATH": str(ROOT), **environment},
    )  # fmt: skip


def _closed_above(path: Path) -> Path | None:
    """The topmost folder on the way to `path`, itself included, that others may not enter."""
    for folder in [*reversed(path.parents), path]:
        if not folder.stat().st_mode & stat.S_IXOTH:
            return folder
    return None
