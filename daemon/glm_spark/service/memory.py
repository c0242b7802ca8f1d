"""This Spark's memory, from /proc/meminfo: reading it takes no lock that a stuck driver could hold."""

from __future__ import annotations

from pathlib import Path

from glm_spark.status import MemoryStatus

MEMINFO = Path("/proc/meminfo")
_KIB_PER_GIB = 1 << 20


def parse(text: str) -> MemoryStatus:
    """MemAvailable and MemTotal in GiB, one decimal; 0 for what is not there."""
    kib = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            kib[name] = int(words[0])
    return MemoryStatus(
        available_gib=round(kib.get("MemAvailable", 0) / _KIB_PER_GIB, 1),
        total_gib=round(kib.get("MemTotal", 0) / _KIB_PER_GIB, 1),
    )


def read() -> MemoryStatus:
    return parse(MEMINFO.read_text())
