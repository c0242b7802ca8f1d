"""Who is at the other end of control.sock, as the kernel says."""

from __future__ import annotations

import array
import errno
import grp
import os
import pwd
import socket
import struct

GROUP = "glm-spark"
_SO_PEERGROUPS = 59  # include/uapi/asm-generic/socket.h; not in Python's socket module
_MOST_GROUPS = 256  # as many as Python's getsockopt takes (1024 bytes)


def group_id() -> int | None:
    """The group whose members may use control.sock; None where it does not exist."""
    try:
        return grp.getgrnam(GROUP).gr_gid
    except KeyError:
        return None


def may_control(uid: int, gids: frozenset[int], own_uid: int, group: int | None) -> bool:
    """Root, the daemon's own user, and the group's members. Pure."""
    return uid in (0, own_uid) or (group is not None and group in gids)


def credentials(sock: socket.socket) -> tuple[int, frozenset[int]]:
    """The peer's uid and all its groups, as they were when it connected. Raises OSError."""
    _, uid, gid = struct.unpack("iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    groups = array.array("I")
    try:
        groups.frombytes(sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MOST_GROUPS * groups.itemsize))
    except OSError as error:
        if error.errno != errno.ERANGE:
            raise
        return uid, frozenset(os.getgrouplist(pwd.getpwuid(uid).pw_name, gid))  # a member of very many groups
    return uid, frozenset({gid, *groups})


def is_allowed(sock: socket.socket) -> bool:
    """Whether the process at the other end may use the socket."""
    uid, gids = credentials(sock)
    return may_control(uid, gids, os.geteuid(), group_id())


def name_of(sock: socket.socket) -> str:
    """The peer's user, for the journal: "owner (uid 1000)"."""
    uid, _ = credentials(sock)
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"
