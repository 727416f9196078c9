"""Runs that are killed while they write, and go on."""

import os
import shutil
import signal
from collections.abc import Callable

import pytest

from quatrain.config import AnyRecipe
from tests.runs import in_child, quiet, train


def kill_at(flush: int) -> Callable[[], None]:
    """SIGKILL to the own process at its n-th fsync: before, while and after a row, cache or checkpoint is written."""

    def prepare() -> None:
        original, left = os.fsync, [flush]

        def fsync(descriptor: int) -> None:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            original(descriptor)

        os.fsync = fsync  # type: ignore[assignment]

    return prepare


def kill_and_resume(wanted: AnyRecipe, flush: int, fewest: int) -> None:
    """Kill the run at a flush and let it finish; a skip where it is over before, which it may be beyond `fewest`."""
    shutil.rmtree(wanted.output, ignore_errors=True)
    status = in_child(wanted, kill_at(flush))
    if status == 0 and flush > fewest:
        pytest.skip("the run is over before this flush")
    assert status == -signal.SIGKILL, status
    train(wanted, quiet())
