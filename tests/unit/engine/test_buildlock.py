"""A lock that a killed build left is removed; one that a living process holds, or may hold, never is."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from glm_spark.engine import buildlock

HOUR = 3600.0


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    """An hour old, where PyTorch puts it below the image's folder."""
    made = tmp_path / "a1897d591f70" / "py312_cu130" / "tensorfold_exl3" / "lock"
    made.parent.mkdir(parents=True)
    made.touch()
    os.utime(made, (time.time() - HOUR, time.time() - HOUR))
    return made


@pytest.fixture(autouse=True)
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever else compiles something on this machine is no builder of these tests'."""
    monkeypatch.setattr(buildlock, "BUILDERS", ("testcc",))


def test_a_left_lock_is_found_aged_and_removed(tmp_path: Path, lock: Path) -> None:
    (found,) = buildlock.find(tmp_path)
    assert found.path == str(lock)
    assert found.age_seconds == pytest.approx(HOUR, abs=60)
    assert found.stale
    assert "60 min old, held by no process, and no compiler runs" in str(found)
    (removed,) = buildlock.remove_stale(tmp_path)
    assert removed.path == str(lock)
    assert not lock.exists()
    assert buildlock.find(tmp_path) == []


def test_a_lock_that_a_process_holds_open_stays(tmp_path: Path, lock: Path) -> None:
    with subprocess.Popen(["sleep", "1000"], stdin=lock.open()) as holder:
        try:
            (found,) = buildlock.find(tmp_path)
            assert f"(pid {holder.pid})" in found.builder
            assert buildlock.remove_stale(tmp_path) == []
            assert lock.exists()
        finally:
            holder.kill()


def test_while_a_compiler_runs_every_lock_stays(tmp_path: Path, lock: Path) -> None:
    compiler = tmp_path / "testcc"
    # A script has its own name; a copy of a program may be one of many in one file, which look at theirs.
    compiler.write_text("#!/bin/sh\nread nothing\n")
    compiler.chmod(0o755)
    with subprocess.Popen([compiler], stdin=subprocess.PIPE) as building:
        try:
            while Path(f"/proc/{building.pid}/comm").read_text().strip() != "testcc":
                time.sleep(0.01)
            assert "testcc" in str(buildlock.find(tmp_path)[0])
            assert buildlock.remove_stale(tmp_path) == []
        finally:
            building.kill()


def test_a_young_lock_stays(tmp_path: Path, lock: Path) -> None:
    os.utime(lock)
    assert buildlock.remove_stale(tmp_path) == []


def test_other_files_and_links_are_no_locks(tmp_path: Path, lock: Path) -> None:
    lock.rename(lock.with_name("lock.old"))
    lock.symlink_to("/etc/passwd")
    (lock.parent / "build.ninja").touch()
    assert buildlock.find(tmp_path) == []
    assert buildlock.find(tmp_path / "nowhere") == []
