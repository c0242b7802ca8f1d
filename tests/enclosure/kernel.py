"""The few Linux calls that Python 3.11 has no name for."""

from __future__ import annotations

import ctypes
import os
import signal

NEWNS = 0x00020000
NEWUTS = 0x04000000
NEWUSER = 0x10000000
NEWPID = 0x20000000
NEWNET = 0x40000000

MS_REC = 0x4000
MS_PRIVATE = 1 << 18

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """OSError when the kernel refuses a namespace."""
    _check(_libc.unshare(flags), "unshare")


def setns(descriptor: int, flags: int) -> None:
    """Moves the calling thread; with a pidfd, `flags` may name several namespaces at once (Linux 5.8)."""
    _check(_libc.setns(descriptor, flags), "setns")


def mount(source: str, target: str, filesystem: str, flags: int = 0, data: str = "") -> None:
    _check(
        _libc.mount(source.encode(), target.encode(), filesystem.encode(), flags, data.encode()),
        f"mount {filesystem or 'propagation'} on {target}",
    )


def die_with_parent() -> None:
    """SIGKILL for this process when the thread that created it ends."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0), "prctl")
