"""Control groups of workers: found in both hierarchies, made with limits, gone afterwards."""

import os
from pathlib import Path

import pytest

from quatrain.sandbox.inside import cgroup
from quatrain.sandbox.inside.cgroup import Cgroup

WANTED = {"memory": 64 << 20, "pids": 7}


@pytest.fixture
def two_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A writable parent of each version, as ordinary folders."""
    v1, v2 = tmp_path / "memory", tmp_path / "unified"
    for folder in (v1, v2):
        folder.mkdir()
    found = [("v1", ["memory"], v1), ("v2", ["memory", "pids"], v2)]
    monkeypatch.setattr(cgroup, "_parents", lambda: found)
    return v1, v2


def test_a_group_gets_its_limits_in_the_files_of_its_version(two_versions: tuple[Path, Path]) -> None:
    v1, v2 = two_versions
    made = Cgroup.create(WANTED)
    name = f"quatrain-{os.getpid()}"
    assert made is not None and made.folders == (v1 / name, v2 / name)
    assert (v1 / name / "memory.limit_in_bytes").read_text() == str(64 << 20)
    assert (v2 / name / "memory.max").read_text() == str(64 << 20)
    assert (v2 / name / "pids.max").read_text() == "7"
    made.add(4321)
    assert (v2 / name / "cgroup.procs").read_text() == "4321"


def test_what_a_killed_launcher_left_is_swept_and_what_a_living_one_has_is_not(two_versions: tuple[Path, Path]) -> None:
    v1, _ = two_versions
    gone, alive = v1 / "quatrain-999999999", v1 / f"quatrain-{os.getppid()}"
    for folder in (gone, alive, v1 / "quatrain-other"):
        folder.mkdir()
    Cgroup.create(WANTED)
    assert not gone.exists()
    assert alive.exists() and (v1 / "quatrain-other").exists()


def test_where_none_can_be_made_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "_parents", lambda: [("v2", ["memory"], Path("/proc/no/such/folder"))])
    assert Cgroup.create(WANTED) is None
    assert Cgroup.create(None) is None


def test_removing_deletes_the_folder(two_versions: tuple[Path, Path]) -> None:
    v1, _ = two_versions
    folder = v1 / "quatrain-1"
    folder.mkdir()
    Cgroup((folder, v1 / "never-made")).remove()
    assert not folder.exists()
