"""Runs a command in a process tree that cannot leave anything behind.

The command runs in a PID and a mount namespace of its own (and, for a user other than root, a user
namespace), under a small init. When the process that started it ends, in whatever way, the kernel ends
all of it, and with the last process go the network namespaces, the mounts and the scratch file system.

`python -m tests.enclosure COMMAND ...` exits with the command's status. This package imports nothing but
the standard library: its processes stay small and start at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from tests.enclosure import kernel

ROOT = Path(__file__).resolve().parents[2]
MARK = "SPARKS_ENCLOSURE"
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_WATCHED = (*_FORWARDED, signal.SIGCHLD)
_SI_KERNEL = 0x80
# Where the scratch file system may lie: short, because a unix socket's path ends at 107 bytes.
_SCRATCH_PLACES = ("/srv", "/media", "/mnt", "/opt")


class NoNamespacesError(Exception):
    """This machine does not let us make the namespaces; the text says what would."""


def inside() -> bool:
    """True in a process that runs in an enclosure."""
    return MARK in os.environ


def scratch() -> Path:
    """A file system in memory that vanishes with the enclosure."""
    return Path(os.environ[MARK].split(":", 1)[1])


def host_pid() -> int:
    """The process id of the enclosure's init, as the machine outside numbers it."""
    return int(os.environ[MARK].split(":", 1)[0])


def mark() -> str:
    """What marks a process as one of this enclosure; a process that joins sets it in its environment."""
    return os.environ[MARK]


def join(init: int) -> None:
    """Enters the enclosure whose init has this process id; children of the caller are in it fully.

    PermissionError when it belongs to another user."""
    flags = kernel.NEWNS | kernel.NEWPID
    if os.stat(f"/proc/{init}/ns/user") != os.stat("/proc/self/ns/user"):
        flags |= kernel.NEWUSER
    descriptor = os.pidfd_open(init)
    try:
        kernel.setns(descriptor, flags)
    finally:
        os.close(descriptor)


def command(argv: Sequence[str]) -> list[str]:
    """The argv that runs `argv` in an enclosure, from any working directory (see `environment`)."""
    return [sys.executable, "-m", "tests.enclosure", *argv]


def environment(base: Mapping[str, str]) -> dict[str, str]:
    """`base` with this tree importable."""
    paths = [str(ROOT), *filter(None, [base.get("PYTHONPATH")])]
    return {**base, "PYTHONPATH": os.pathsep.join(paths)}


def run(argv: Sequence[str]) -> int:
    """Runs `argv` enclosed and returns its exit status (128 + n for signal n).

    Raises NoNamespacesError. Only for a process with one thread."""
    place = next(p for p in _SCRATCH_PLACES if Path(p).is_dir() and not _holds_us(Path(p)))
    _separate()
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    child = os.fork()
    if child == 0:
        _init(argv, place)
    return _wait_for(child)


def _holds_us(place: Path) -> bool:
    return any(path.is_relative_to(place) for path in (ROOT, Path.cwd(), Path(sys.prefix)))


def _separate() -> None:
    uid, gid = os.geteuid(), os.getegid()
    user = kernel.NEWUSER if uid != 0 else 0
    try:
        kernel.unshare(user | kernel.NEWPID | kernel.NEWNS)
        if user:
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
            Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
        kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
    except OSError as error:
        raise NoNamespacesError(refusal(error, as_root=not user)) from error


def refusal(error: OSError, *, as_root: bool, sysctls: Path = Path("/proc/sys")) -> str:
    """What a person can do when the kernel refuses the namespaces."""
    if as_root:
        return (
            f"this machine refuses root new namespaces ({error.strerror}): in a container, start it with "
            "CAP_SYS_ADMIN and CAP_NET_ADMIN (docker run --privileged)"
        )
    wanted = {
        "kernel/unprivileged_userns_clone": "1",
        "kernel/apparmor_restrict_unprivileged_userns": "0",
    }
    for path, want in wanted.items():
        with contextlib.suppress(OSError):
            found = (sysctls / path).read_text().strip()
            if found != want:
                name = path.replace("/", ".")
                return (
                    f"this machine does not let an ordinary user make namespaces: {name} is {found}, "
                    f"wanted {want}. Run the same command with sudo, or: sudo sysctl -w {name}={want}"
                )
    return (
        f"this machine does not let an ordinary user make namespaces ({error.strerror}; the sysctls "
        "kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns and "
        "user.max_user_namespaces decide it). Run the same command with sudo"
    )


def _init(argv: Sequence[str], place: str) -> NoReturn:
    """Process 1 of the enclosure: reaps, forwards signals, ends with the command."""
    status = 125
    try:
        kernel.die_with_parent()
        # The old /proc is still mounted and counts as the outside does.
        outside = int(os.readlink("/proc/self"))
        kernel.mount("proc", "/proc", "proc")
        kernel.mount("tmpfs", place, "tmpfs", data="mode=0755")
        child = os.posix_spawnp(
            argv[0],
            list(argv),
            {**os.environ, MARK: f"{outside}:{place}"},
            setsigmask=(),
            setsigdef=(*_FORWARDED, signal.SIGPIPE),
        )
        status = _wait_for(child)
    except OSError as error:
        message = f"cannot start {argv[0]}: {error}"
        if error.filename is None:
            message = refusal(error, as_root=os.getuid() == 0 and _maps_everyone())
        print(message, file=sys.stderr, flush=True)
    finally:
        os._exit(status)


def _maps_everyone() -> bool:
    """False in a user namespace that knows one user only."""
    return Path("/proc/self/uid_map").read_text().split()[2] != "1"


def _wait_for(main: int) -> int:
    """Reaps every child and passes signals on until `main` has ended; its exit status."""
    while True:
        received = signal.sigwaitinfo(_WATCHED)
        if received.si_signo != signal.SIGCHLD:
            # What the terminal sends (Ctrl-C) reaches the command by itself.
            if received.si_code != _SI_KERNEL:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(main, received.si_signo)
            continue
        ended = _reap(main)
        if ended is not None:
            return ended


def _reap(main: int) -> int | None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return None
        if pid == 0:
            return None
        if pid == main:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
