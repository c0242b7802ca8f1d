"""Processes as /proc shows them: evidence that does not come from the daemon."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_CLUSTER, _GENERATION, _NODE = "GLM_SPARK_CLUSTER", "GLM_SPARK_GENERATION", "GLM_SPARK_NODE"


@dataclass(frozen=True)
class Rank:
    """A rank's first process. The daemon marks it with the cluster, the generation and the Spark."""

    pid: int
    cluster: str
    generation: int
    node: str
    argv: tuple[str, ...]


@dataclass(frozen=True)
class Memory:
    """Bytes: resident, and resident with shared pages divided among those who share them."""

    rss: int
    pss: int


def pids() -> list[int]:
    return [int(entry) for entry in os.listdir(_PROC) if entry.isdigit()]


def alive(pid: int) -> bool:
    """False for a process that is gone or a zombie."""
    return state(pid) not in (None, "Z", "X")


def state(pid: int) -> str | None:
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None


def parent(pid: int) -> int | None:
    try:
        return int((_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None


def in_network_of(pid: int) -> list[int]:
    """Every living process in the network namespace of `pid`."""
    wanted = os.readlink(_PROC / str(pid) / "ns/net")
    found = []
    for other in pids():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            if os.readlink(_PROC / str(other) / "ns/net") == wanted and alive(other):
                found.append(other)
    return found


def send(pid: int, number: int) -> None:
    """A signal to a process that may be gone already."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def ranks(node: str | None = None, generation: int | None = None) -> list[Rank]:
    """The living ranks, in no order; all of them unless a Spark or a generation is named."""
    marked = {rank.pid: rank for rank in _marked() if not _keeps(rank)}
    return [
        rank
        for pid, rank in marked.items()
        if parent(pid) not in marked
        and node in (None, rank.node)
        and generation in (None, rank.generation)
        and alive(pid)
    ]


def keepers(node: str | None = None) -> list[Rank]:
    """The processes that hold the ranks for the daemons."""
    return [rank for rank in _marked() if _keeps(rank) and node in (None, rank.node) and alive(rank.pid)]


def _keeps(rank: Rank) -> bool:
    return any(word.endswith("/keeper.py") for word in rank.argv)


def _marked() -> Iterator[Rank]:
    for pid in pids():
        try:
            raw = (_PROC / str(pid) / "environ").read_bytes()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        pairs = (entry.partition("=") for entry in raw.decode(errors="replace").split("\0"))
        values = {name: value for name, _, value in pairs}
        generation = values.get(_GENERATION, "")
        if _CLUSTER in values and _NODE in values and generation.isdigit():
            yield Rank(pid, values[_CLUSTER], int(generation), values[_NODE], argv(pid))


def argv(pid: int) -> tuple[str, ...]:
    """The command line of a process, empty when it is gone."""
    try:
        raw = (_PROC / str(pid) / "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return ()
    return tuple(raw.decode(errors="replace").rstrip("\0").split("\0"))


def environment_of(pid: int) -> dict[str, str]:
    raw = (_PROC / str(pid) / "environ").read_bytes().decode(errors="replace")
    pairs = (entry.partition("=") for entry in raw.split("\0") if entry)
    return {name: value for name, _, value in pairs}


def memory(pid: int) -> Memory:
    rows = {}
    for line in (_PROC / str(pid) / "smaps_rollup").read_text().splitlines()[1:]:
        key, _, rest = line.partition(":")
        rows[key] = int(rest.split()[0]) * 1024
    return Memory(rows["Rss"], rows["Pss"])


def cpu_seconds(pid: int) -> float:
    """User and system time of a process, its ended children left out."""
    fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
