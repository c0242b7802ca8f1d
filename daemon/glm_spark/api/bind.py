"""A port that cannot be had, told with its owner."""

from __future__ import annotations

import errno
import os
import re
import socket
from pathlib import Path

from glm_spark.finding import Finding, Severity

_SOCKET_LINK = re.compile(r"^socket:\[(\d+)\]$")
_LISTEN = "0A"


class BindFault(Exception):
    """The listening socket could not be made; `finding` says what holds the port."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(str(finding))
        self.finding = finding


def _listening_inodes(port: int) -> set[str]:
    """Inodes of the sockets that listen on a TCP port in this network namespace."""
    inodes: set[str] = set()
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue  # IPv6 can be switched off
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(fields[9])
    return inodes


def port_owner(port: int) -> str:
    """Who listens on a TCP port, as "name (pid 123)"; "" when nobody does or this user may not see it.

    Reads /proc of every process: some milliseconds, so call it off the event loop.
    """
    inodes = _listening_inodes(port)
    if not inodes:
        return ""
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            links = [os.readlink(entry.path) for entry in os.scandir(process / "fd")]
        except OSError:
            continue  # it ended meanwhile, or is another user's
        held = {match[1] for link in links if (match := _SOCKET_LINK.match(link))}
        if held & inodes:
            try:
                return f"{(process / 'comm').read_text().strip()} (pid {process.name})"
            except OSError:
                continue
    return ""


def bind_fault(node: str, setting: str, address: str, port: int, fault: OSError) -> BindFault:
    """What to tell about a bind that failed. `setting` is the key of config.toml that names the port."""
    subject = f"TCP {address}:{port}"
    wanted = f"free, for {setting}"
    if fault.errno == errno.EADDRINUSE:
        owner = port_owner(port)
        finding = Finding(
            code="port.busy",
            severity=Severity.ERROR,
            node=node,
            subject=subject,
            measured=f"in use by {owner}" if owner else "in use by a process that this user may not see",
            wanted=wanted,
            fix=f"End {owner or 'the process that listens there'}, or set {setting} to another port.",
        )
    elif fault.errno == errno.EADDRNOTAVAIL:
        finding = Finding(
            code="port.address-missing",
            severity=Severity.ERROR,
            node=node,
            subject=subject,
            measured="this Spark has no such address now",
            wanted=wanted,
            fix="Give the address to a netdev of this Spark, or name one that it has.",
        )
    else:
        finding = Finding(
            code="port.refused",
            severity=Severity.ERROR,
            node=node,
            subject=subject,
            measured=os.strerror(fault.errno) if fault.errno else str(fault),
            wanted=wanted,
            fix=f"Set {setting} to a port that this user may listen on.",
        )
    return BindFault(finding)


def listening_socket(address: str, port: int) -> socket.socket:
    """A bound, non-blocking TCP socket (not yet listening). Raises OSError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, port))
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock
