"""Whether a loading rank gets on. Late is not gone: only silence ends a load, never its length.

Bytes read, memory that grows and the CPU of compilers are progress. A rank's own CPU never is (one that waits for a
dead peer spins at 100 %), and neither is a line that says again that it waits. A rank in its rendezvous, or waiting
for another rank, has no progress of its own: the set gets on while any of its ranks does.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from glm_spark.engine import processes

WEIGHT_STEP = 32 * 1024 * 1024  # bytes read or grown since the last progress
COMPILER_STEP = 0.1  # seconds of compiler CPU since the last progress: one that waits uses none, a starved one little
COMPILERS = ("nvcc", "cicc", "ptxas", "fatbinary", "cudafe++", "nvlink", "cc1", "c++", "g++", "gcc", "clang", "ld")
WORKING = frozenset(("starting", "weights", "kernels", "warm-up"))
Figure = TypeVar("Figure", int, float)
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at a rank and all below it. `at` in seconds of any one clock; None where nothing could be read."""

    at: float
    phase: str
    read_bytes: int | None = None
    memory_bytes: int | None = None
    compiler_cpu_s: float | None = None


def progressed(mark: Sample, now: Sample) -> bool:
    """Pure: whether the rank got on since `mark`, the last sample that did."""
    if now.phase != mark.phase:
        return True
    return now.phase in WORKING and (
        _grew(mark.read_bytes, now.read_bytes, WEIGHT_STEP)
        or _grew(mark.memory_bytes, now.memory_bytes, WEIGHT_STEP)
        or _grew(mark.compiler_cpu_s, now.compiler_cpu_s, COMPILER_STEP)
    )


def _grew(before: float | None, after: float | None, step: float) -> bool:
    return before is not None and after is not None and after - before >= step


def silent_for(samples: Sequence[Sample], phase: str) -> float:
    """Pure: seconds from the last progress to the newest sample, 0.0 when `phase` was entered after that one.

    Steps count from the last progress, not from the last look: a slow but steady load is no silence.
    """
    watch = Watch()
    for sample in samples:
        watch.add(sample)
    return watch.silent_for if samples and samples[-1].phase == phase else 0.0


class Watch:
    """Keeps the last progress of one rank, in constant memory."""

    def __init__(self) -> None:
        self._mark: Sample | None = None
        self._newest: Sample | None = None

    def add(self, sample: Sample) -> None:
        if self._mark is None or progressed(self._mark, sample):
            self._mark = sample
        self._newest = sample

    @property
    def last_progress(self) -> float | None:
        """When the rank last got on, on the samples' clock; None before the first sample."""
        return self._mark.at if self._mark is not None else None

    @property
    def silent_for(self) -> float:
        """Seconds from the last progress to the newest sample."""
        if self._mark is None or self._newest is None:
            return 0.0
        return self._newest.at - self._mark.at


def look(pid: int, phase: str, at: float) -> Sample:
    """Read /proc for a rank and all below it. It can block on a stuck process: call it through processes.aside."""
    everyone = processes.table()
    below = processes.below(everyone.values(), [pid])
    family = [pid, *(process.pid for process in below)]
    # A compiler that ended counts in its parent's figure for collected children, so the sum does not fall.
    compilers = (_cpu(one.pid, own=one.name.startswith(COMPILERS)) for one in below)
    return Sample(
        at=at,
        phase=phase,
        read_bytes=_total(map(_bytes_read, family)),
        memory_bytes=_total(map(_resident, family)),
        compiler_cpu_s=_total([_cpu(pid, own=False), *compilers]),
    )


def _total(figures: Iterable[Figure | None]) -> Figure | None:
    known = [figure for figure in figures if figure is not None]
    return sum(known) if known else None


def _bytes_read(pid: int) -> int | None:
    """By system calls, and from storage through memory maps."""
    try:
        with open(f"/proc/{pid}/io", "rb") as file:
            fields = dict(line.split(b": ") for line in file.read().splitlines())
        return int(fields[b"rchar"]) + int(fields[b"read_bytes"])
    except (OSError, KeyError, ValueError):
        return None


def _resident(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * PAGE
    except (OSError, IndexError, ValueError):
        return None


def _cpu(pid: int, *, own: bool) -> float | None:
    """Seconds of its collected children, and its own where wanted."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            user, system, child_user, child_system = map(int, file.read().rpartition(b")")[2].split()[11:15])
    except (OSError, ValueError):
        return None
    return (child_user + child_system + (user + system if own else 0)) / TICKS
