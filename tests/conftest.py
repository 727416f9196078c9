"""Every test runs offline: no model hub, and no address but this machine's."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["OMP_NUM_THREADS"] = "1"  # models here are tiny: threads would only wait for each other

import socket
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import settings

settings.register_profile("gate", deadline=None, derandomize=True)
settings.load_profile("gate")

_connect = socket.socket.connect


def _local_only(self: socket.socket, address: Any) -> Any:
    host = address[0] if isinstance(address, tuple) else ""
    if host and host not in ("localhost", "::1") and not host.startswith("127."):
        raise AssertionError(f"a test tried to reach {host}")
    return _connect(self, address)


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A connection to another machine fails the test."""
    monkeypatch.setattr(socket.socket, "connect", _local_only)
    yield


@pytest.fixture(autouse=True)
def own_threads() -> Iterator[None]:
    """A recipe sets the threads of its process; the next test has its own number again."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
