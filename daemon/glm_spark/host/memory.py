"""This Spark's memory, from /proc/meminfo: reading it takes no lock that a stuck driver could hold."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from glm_spark.status import MemoryStatus

MEMINFO = Path("/proc/meminfo")
_KIB_PER_GIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Memory:
    """In GiB. `available` is what programs can have, page cache included; `free` is what nothing holds."""

    total: float
    available: float
    free: float
    cached: float = 0.0
    swap_total: float = 0.0
    swap_free: float = 0.0


def parse(text: str) -> Memory | None:
    """None where MemAvailable or MemTotal is missing: nothing is concluded from half a reading."""
    gib = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            gib[name] = int(words[0]) / _KIB_PER_GIB
    if "MemAvailable" not in gib or "MemTotal" not in gib:
        return None
    return Memory(
        total=gib["MemTotal"],
        available=gib["MemAvailable"],
        free=gib.get("MemFree", gib["MemAvailable"]),
        cached=gib.get("Cached", 0.0),
        swap_total=gib.get("SwapTotal", 0.0),
        swap_free=gib.get("SwapFree", 0.0),
    )


def look(path: Path | None = None) -> Memory | None:
    """The memory now; None when it cannot be read."""
    try:
        return parse((path or MEMINFO).read_text(encoding="ascii", errors="replace"))
    except OSError:
        return None


def read() -> MemoryStatus:
    """For the status: one decimal, 0 for what could not be read."""
    memory = look()
    if memory is None:
        return MemoryStatus(available_gib=0.0, total_gib=0.0)
    return MemoryStatus(available_gib=round(memory.available, 1), total_gib=round(memory.total, 1))
