"""The generation counter on disk: which starts of the set this Spark has seen."""

from __future__ import annotations

import json
import os
from pathlib import Path


class GenerationFile:
    """Keeps the highest generation through crashes and power cuts: written whole, fsynced, then renamed.

    The calls block on the disk; the daemon makes them in a thread with a deadline.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> int:
        """The highest generation seen; 0 for none. A damaged file counts as none: the other Sparks remember."""
        try:
            value = json.loads(self._path.read_bytes())["generation"]
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return 0
        return value if isinstance(value, int) and value >= 0 else 0

    def write(self, generation: int) -> None:
        """OSError when the disk refuses; the old value stays."""
        draft = self._path.with_suffix(".new")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, json.dumps({"generation": generation}).encode() + b"\n")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(draft, self._path)
        directory = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
