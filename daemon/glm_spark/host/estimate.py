"""What the engine itself said it needs, kept from start to start for the same engine, weights and settings."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

from glm_spark.config.model import Config
from glm_spark.engine.spec import Variant
from glm_spark.host import whole_file

MOST_KEPT = 8  # as many settings as an owner goes back and forth between
_MEASURES_NOTHING = {"engine": {"http_port", "master_port", "kernel_cache"}, "model": {"name", "alias"}}


def identity(config: Config, variant: Variant) -> str:
    """What the estimate depends on, as a hash: another image, window or program has one of its own. Reads one stat."""
    told = {
        "engine": config.engine.model_dump(mode="json", exclude=_MEASURES_NOTHING["engine"]),
        "model": config.model.model_dump(mode="json", exclude=_MEASURES_NOTHING["model"]),
        "size": config.size,
        "context": variant.context,
        "program": _program(config),
    }
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:32]


def _program(config: Config) -> list[int]:
    """A program that is run as it is may be another one tomorrow under the same name; an image has its digest."""
    found = shutil.which(config.engine.command[0]) if config.engine.runtime == "process" else None
    if found is None:
        return []
    try:
        stat = os.stat(found)
    except OSError:
        return []
    return [stat.st_ino, stat.st_size, stat.st_mtime_ns]


class Estimates:
    """In memory; `read` and `write` block on the disk and are called in a thread with a deadline."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kept: dict[str, float] = {}

    def of(self, identity: str) -> float | None:
        """GiB a Spark; None when this was never started here."""
        return self._kept.get(identity)

    def keep(self, identity: str, gib: float) -> bool:
        """Whether that is news, to be written."""
        if self._kept.get(identity) == gib:
            return False
        self._kept.pop(identity, None)
        self._kept[identity] = gib
        while len(self._kept) > MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        return True

    def read(self) -> None:
        """A damaged file counts as none: the engine says it again at its next start."""
        try:
            told = json.loads(self._path.read_bytes())
        except (FileNotFoundError, ValueError):
            return
        if isinstance(told, dict):
            kept = {str(name): float(gib) for name, gib in told.items() if isinstance(gib, int | float)}
            self._kept = {**kept, **self._kept}

    def write(self) -> None:
        whole_file.write(self._path, json.dumps(self._kept).encode() + b"\n")
