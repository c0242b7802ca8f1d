"""Which files were found to hold their pinned content, so that a start does not hash 176 GB again.

A file counts as the same while its real path, size, modification time and inode are the same. The device is left
out: an NFS mount gets another number at every boot.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

NAME = "verified.json"


def mark(status: os.stat_result) -> list[int]:
    """What a file is recognised by."""
    return [status.st_size, status.st_mtime_ns, status.st_ino]


class Remembered:
    """`directory` is the state directory's `weights`. Reading never fails: what cannot be read is hashed again."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: dict[str, list[object]] = {}
        with contextlib.suppress(OSError, ValueError, AttributeError):
            told = json.loads((directory / NAME).read_bytes())
            self._known = {path: row for path, row in told.items() if isinstance(row, list) and len(row) == 2}

    def digest_of(self, path: str, status: os.stat_result) -> str | None:
        """The digest the file was last found to have; None when unknown or when the file is another one now."""
        row = self._known.get(path)
        return str(row[1]) if row is not None and row[0] == mark(status) else None

    def add(self, found: Mapping[str, tuple[os.stat_result, str]]) -> None:
        """Notes (status, digest) by real path, lasting, beside what others noted meanwhile. Raises OSError."""
        rows: dict[str, list[object]] = {path: [mark(status), digest] for path, (status, digest) in found.items()}
        with self._locked():
            known = Remembered(self._directory)._known
            known.update(rows)
            known = {path: row for path, row in known.items() if path in rows or os.path.exists(path)}
            write_lasting(self._directory / NAME, json.dumps(known, separators=(",", ":")).encode())
        self._known = known

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(self._directory / "verified.lock", "ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def write_lasting(path: Path, content: bytes) -> None:
    """A whole file in one step, on the disk when this returns; mode 0600. Raises OSError."""
    new = path.with_name(f"{path.name}.new{os.getpid()}")
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
