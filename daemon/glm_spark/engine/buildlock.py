"""Locks that a killed kernel build left: seen, judged, and removed only where nobody can be building.

PyTorch guards the build of an extension with a file named "lock" in its directory, which the builder keeps open
(torch.utils.file_baton). A killed build leaves it, and every later start waits for it for ever.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from glm_spark.engine import processes
from glm_spark.engine.progress import COMPILERS

NAME = "lock"
DEPTH = 4  # IMAGE/py312_cu130/EXTENSION/lock
YOUNG_SECONDS = 30.0  # one this young may belong to a build whose process was not seen yet
BUILDERS = (*COMPILERS, "ninja")


@dataclass(frozen=True, slots=True)
class Lock:
    """`builder`: the process that has it open, or a compiler that runs on this Spark; "" for none."""

    path: str
    age_seconds: float
    builder: str

    def __str__(self) -> str:
        by = f"held by {self.builder}" if self.builder else "held by no process, and no compiler runs"
        return f"{self.age_seconds / 60:.0f} min old, {by}"

    @property
    def stale(self) -> bool:
        return not self.builder and self.age_seconds >= YOUNG_SECONDS


def find(cache: Path) -> list[Lock]:
    """Every build lock below the kernel cache. Reads other processes' tables: call it off the loop."""
    files = list(_files(cache, DEPTH))
    if not files:
        return []
    compiler = next((one for one in processes.table().values() if one.name.startswith(BUILDERS)), None)
    running = f"{compiler.name} (pid {compiler.pid})" if compiler else ""
    holders = _holders({(seen.st_dev, seen.st_ino) for _, seen in files})
    return [
        Lock(str(path), max(0.0, time.time() - seen.st_mtime), holders.get((seen.st_dev, seen.st_ino), running))
        for path, seen in files
    ]


def remove_stale(cache: Path) -> list[Lock]:
    """Removes what is stale and returns it. Only while no rank of this Spark runs. Raises OSError."""
    removed = []
    for lock in find(cache):
        if lock.stale:
            with suppress(FileNotFoundError):
                os.unlink(lock.path)
                removed.append(lock)
    return removed


def _files(directory: Path, depth: int) -> Iterable[tuple[Path, os.stat_result]]:
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            with suppress(OSError):
                if entry.is_dir(follow_symlinks=False) and depth > 1:
                    yield from _files(Path(entry.path), depth - 1)
                elif entry.name == NAME and entry.is_file(follow_symlinks=False):
                    yield Path(entry.path), entry.stat(follow_symlinks=False)


def _holders(wanted: set[tuple[int, int]]) -> dict[tuple[int, int], str]:
    """Who has one of these files open, by device and inode: a container knows them under other paths."""
    found: dict[tuple[int, int], str] = {}
    for process in processes.table().values():
        with suppress(OSError), os.scandir(f"/proc/{process.pid}/fd") as handles:
            for handle in handles:
                with suppress(OSError):
                    seen = os.stat(handle.path)
                    if (seen.st_dev, seen.st_ino) in wanted:
                        found[seen.st_dev, seen.st_ino] = f"{process.name} (pid {process.pid})"
    return found
