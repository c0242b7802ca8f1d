"""A run's directory under the system's temporary one: a Unix socket's path must stay short.

Each is locked while its lab lives. What a killed run left (about 150 MB a Spark) the next run removes.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "glm-spark-lab-"


class RunDirectory:
    def __init__(self) -> None:
        _remove_leftovers()
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._lock = os.open(self.path, os.O_RDONLY)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _remove_leftovers() -> None:
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # one made this moment is not locked yet, but it is empty
            if any(path.iterdir()):
                shutil.rmtree(path, ignore_errors=True)
        except OSError:
            continue
        finally:
            os.close(lock)
