"""The control group systemd hands to the daemon (Delegate=yes), and a child of it for each rank.

What is in a group is ended by one write to cgroup.kill (Linux 5.14), also what is stopped, forks, or left its session.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

MOUNTINFO = Path("/proc/self/mountinfo")
OWN = Path("/proc/self/cgroup")
DAEMON = "daemon"
# systemd marks what it delegates (org.systemd.cgroup_delegation); trusted.* is for root, user.* is there since 251.
DELEGATION = ("user.delegate", "trusted.delegate")


def directory(mountinfo: str, own: str) -> Path | None:
    """Pure: where this process's cgroup v2 group is mounted; None without one."""
    path = next((line[3:] for line in own.splitlines() if line.startswith("0::")), None)
    if path is None:
        return None
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split()
        if right.split()[:1] == ["cgroup2"] and len(fields) > 4:
            root, mounted = fields[3], fields[4]
            inside = path.removeprefix(root) if root != "/" else path
            return Path(mounted + "/" + inside.strip("/")) if inside.strip("/") else Path(mounted)
    return None


def delegated() -> Path | None:
    """The group that was handed to this daemon, in which it may make others; None where none was."""
    try:
        here = directory(MOUNTINFO.read_text(), OWN.read_text())
    except OSError:
        return None
    if here is None:
        return None
    if here.name == DAEMON:  # where `settle` put this process
        here = here.parent
    return here if _handed_over(here) and (here / "cgroup.kill").exists() else None


def _handed_over(group: Path) -> bool:
    for name in DELEGATION:
        with suppress(OSError):
            if os.getxattr(group, name) == b"1":
                return os.access(group, os.W_OK)
    return False


def settle() -> Path | None:
    """Moves this process into a child of its delegated group and returns the delegated one; None without one.

    A group that holds processes cannot pass controllers on to its children (cgroup v2's rule of inner processes), and
    container runtimes want to do just that.
    """
    group = delegated()
    if group is None:
        return None
    try:
        own = group / DAEMON
        own.mkdir(exist_ok=True)
        (own / "cgroup.procs").write_text(str(os.getpid()))
    except OSError:
        return None
    return group


def make(name: str) -> Path | None:
    """An empty group for a rank; None where none can be made: the rank is held without one then."""
    group = delegated()
    if group is None:
        return None
    made = group / name
    try:
        made.mkdir(exist_ok=True)
    except OSError:
        return None
    return made


def kill(group: Path | None) -> None:
    """SIGKILL to everything in the group and below it; fine when it is gone."""
    if group is not None:
        with suppress(OSError):
            (group / "cgroup.kill").write_text("1")


def remove(group: Path | None) -> None:
    """The group and those that a container runtime made below it, as far as they are empty."""
    if group is not None:
        for directory, _, _ in os.walk(group, topdown=False):
            with suppress(OSError):
                os.rmdir(directory)
