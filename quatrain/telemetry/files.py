"""Writing a run's files so that a kill or a full disk at any instant leaves what was there before."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from quatrain.errors import QuatrainError


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """A full disk (or quota) while writing `path` as one line that says how to go on."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise QuatrainError(f"disk full: cannot write {path}; free space and run the same command again") from error


def replace_text(path: Path, text: str) -> None:
    """Write `text` under a temporary name, flush it to disk, and rename it to `path`."""
    temporary = path.with_name(f".{path.name}.tmp")
    with disk_errors(path):
        try:
            with temporary.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make a rename in `folder` outlast a power cut (where the system lets a folder be flushed)."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def append_line(path: Path, line: str) -> None:
    """Add one line and flush it to disk; on a full disk the file ends where it ended before."""
    with disk_errors(path), path.open("ab", buffering=0) as file:
        before = file.tell()
        data = line.encode() + b"\n"
        try:
            while data:
                data = data[file.write(data) :]
            os.fsync(file.fileno())
        except OSError:
            file.truncate(before)
            raise
