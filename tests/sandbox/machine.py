"""Marks for tests that need a machine on which programs can be isolated."""

import os
from pathlib import Path

import pytest

from quatrain.sandbox import why_not

isolated = pytest.mark.skipif(bool(why_not()), reason=f"no isolation here: {why_not()}")


def children(pid: int) -> list[int]:
    """Process ids of a process's children."""
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def descriptors() -> int:
    """Open file descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))
