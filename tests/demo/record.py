"""The note a running demo leaves for the verbs that are typed in another terminal."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path

from tests.enclosure import ROOT

# A test's demo keeps its note elsewhere, so that it does not meet one that somebody watches.
PLACE = "SPARKS_DEMO_RECORD"
FILE = Path(os.environ.get(PLACE, ROOT / ".cache/demo.json"))


@dataclass(frozen=True)
class Record:
    """`init` is the enclosure's first process as this machine numbers it; `room` and `holders` (by Spark
    number, from 1) are numbered as inside the enclosure."""

    init: int
    mark: str
    directory: str
    room: int
    names: tuple[str, ...]
    holders: tuple[int, ...]
    count: int

    def spark_directory(self, number: int) -> Path:
        return Path(self.directory) / self.names[number - 1]


def write(record: Record, file: Path = FILE) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_name(f"{file.name}.{os.getpid()}")
    new.write_text(json.dumps(dataclasses.asdict(record)))
    os.replace(new, file)


def running(file: Path = FILE, proc: Path = Path("/proc")) -> Record | None:
    """The demo that runs now; None when there is none, or when only its note is left."""
    try:
        raw = json.loads(file.read_text())
        raw["names"], raw["holders"] = tuple(raw["names"]), tuple(raw["holders"])
        record = Record(**raw)
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return None
    try:
        words = (proc / str(record.init) / "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The process id may have gone to another program since.
    return record if b"tests.demo" in words else None
