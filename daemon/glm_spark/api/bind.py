"""A port that cannot be had, told with its owner."""

from __future__ import annotations

import errno
import os
import socket

from glm_spark.finding import Finding, Severity
from glm_spark.preflight import holders
from glm_spark.preflight.aside import in_a_thread


class BindFault(Exception):
    """The listening socket could not be made; `finding` says what holds the port."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(str(finding))
        self.finding = finding


def _owner(address: str, port: int) -> str:
    """Who listens there, as "name (pid 123)"; "" when nobody does or this user may not see it. Reads all of /proc."""
    inodes = {
        one.inode
        for one in holders.listeners()
        if one.port == port and (one.address in (address, "0.0.0.0", "::") or address in ("0.0.0.0", "::"))
    }
    owners = holders.owners(inodes)
    return next((f"{owner.program} (pid {owner.pid})" for owner in owners.values()), "")


async def bind_fault(node: str, setting: str, address: str, port: int, fault: OSError) -> BindFault:
    """What to tell about a bind that failed. `setting` is the key of config.toml that names the port."""
    return await in_a_thread(lambda: _bind_fault(node, setting, address, port, fault), "bind-fault")


def _bind_fault(node: str, setting: str, address: str, port: int, fault: OSError) -> BindFault:
    subject = f"TCP {address}:{port}"
    wanted = f"free, for {setting}"
    if fault.errno == errno.EADDRINUSE:
        owner = _owner(address, port)
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
