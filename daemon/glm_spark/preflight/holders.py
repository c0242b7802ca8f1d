"""Who holds a port or memory, as /proc tells it."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
_LISTEN = "0A"
_SHELLS = re.compile(r"^(python|perl|ruby|node|java|bash|sh)[0-9.]*$")


@dataclass(frozen=True, slots=True)
class Listener:
    """A listening TCP socket of this network namespace."""

    address: str
    port: int
    inode: int


@dataclass(frozen=True, slots=True)
class Holder:
    """A process. `rss` in bytes; `cluster` is the mark that this project leaves on its ranks, "" without one."""

    pid: int
    program: str
    rss: int = 0
    me: bool = False
    daemon: bool = False
    cluster: str = ""


def listeners() -> list[Listener]:
    """Every listening TCP socket, IPv4 and IPv6; an IPv6 socket on :: takes IPv4 too."""
    found = []
    for table in ("net/tcp", "net/tcp6"):
        with contextlib.suppress(FileNotFoundError), (PROC / table).open(encoding="ascii") as file:
            next(file)
            for line in file:
                fields = line.split()
                if fields[3] == _LISTEN:
                    address, port = fields[1].split(":")
                    found.append(Listener(_address(address), int(port, 16), int(fields[9])))
    return found


def _address(text: str) -> str:
    """/proc prints 32-bit words in the machine's order."""
    words = [int(text[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(text), 8)]
    address = ipaddress.ip_address(b"".join(words))
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def owners(inodes: set[int]) -> dict[int, Holder]:
    """The process that has each of these sockets open, as far as this user may look."""
    found: dict[int, Holder] = {}
    if not inodes:
        return found
    sockets = {f"socket:[{inode}]": inode for inode in inodes}
    for pid in _pids():
        with contextlib.suppress(OSError):
            for handle in os.listdir(PROC / str(pid) / "fd"):
                with contextlib.suppress(OSError):
                    inode = sockets.get(os.readlink(PROC / str(pid) / "fd" / handle))
                    if inode is not None and inode not in found:
                        found[inode] = _holder(pid)
    return found


def by_memory(most: int) -> list[Holder]:
    """The processes with the largest resident memory, largest first."""
    page = os.sysconf("SC_PAGE_SIZE")
    sizes = []
    for pid in _pids():
        with contextlib.suppress(OSError, ValueError, IndexError):
            statm = (PROC / str(pid) / "statm").read_text(encoding="ascii").split()
            sizes.append((int(statm[1]) * page, pid))
    return [_holder(pid, rss) for rss, pid in sorted(sizes, reverse=True)[:most]]


def _pids() -> Iterator[int]:
    for name in os.listdir(PROC):
        if name.isdigit():
            yield int(name)


def _holder(pid: int, rss: int = 0) -> Holder:
    arguments: list[str] = []
    environment: list[str] = []
    comm = "a program"
    with contextlib.suppress(OSError):
        arguments = (PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    with contextlib.suppress(OSError):
        comm = (PROC / str(pid) / "comm").read_text(errors="replace").strip()
    with contextlib.suppress(OSError):
        environment = (PROC / str(pid) / "environ").read_bytes().decode(errors="replace").split("\0")
    marks = dict(entry.split("=", 1) for entry in environment if entry.startswith("GLM_SPARK_") and "=" in entry)
    return Holder(
        pid=pid,
        program=program_of(arguments, comm),
        rss=rss,
        me=pid == os.getpid(),
        daemon=is_daemon(arguments),
        cluster=marks.get("GLM_SPARK_CLUSTER", ""),
    )


def program_of(arguments: list[str], comm: str) -> str:
    """What a person calls the program: the script or module where an interpreter runs one. Pure.

    Only names are taken from the command line: its other arguments may hold secrets.
    """
    if not arguments or not arguments[0]:
        return comm
    name = os.path.basename(arguments[0])
    if not _SHELLS.match(name):
        return name or comm
    rest = arguments[1:]
    while rest and rest[0].startswith("-") and rest[0] != "-m":
        if rest[0] == "-c":
            return name
        rest = rest[1:]
    if rest[:1] == ["-m"]:
        rest = rest[1:]
    return os.path.basename(rest[0]) if rest and rest[0] else name


def is_daemon(arguments: list[str]) -> bool:
    """Is this `glm-spark run`? Pure."""
    names = [os.path.basename(argument) for argument in arguments[:6]]
    started = any(name in ("glm-spark", "glm_spark", "glm_spark.cli") for name in names[:5])
    return started and "run" in arguments
