"""Processes the stand-in starts: compilers during a kernel build, and one that leaves for its own session."""

from __future__ import annotations

import os
import signal
import sys
import time

PR_SET_NAME = 15
ORPHAN_LIFE_S = 600  # a test that fails to find it is not left with it for ever


def name_process(name: str) -> None:
    """Sets what /proc/PID/comm and `ps` show."""
    import ctypes  # only a process that makes children pays for it

    ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode(), 0, 0, 0)


def start_compiler(name: str = "cicc") -> int:
    """A child that burns CPU until it is ended or its parent is gone; returns its pid."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    name_process(name)
    while os.getppid() == parent:
        for _ in range(100_000):
            pass
    os._exit(1)


def end_compilers(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def leave_grandchild() -> int:
    """Forks twice: the inner process has its own session and no living parent of ours. Returns its pid."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.setsid()
        grandchild = os.fork()
        if grandchild:
            os.write(writing, str(grandchild).encode())
            os._exit(0)
        # Its ends of the log pipes stay open on purpose: who waits for EOF there waits for this one too.
        os.close(writing)
        time.sleep(ORPHAN_LIFE_S)
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as answer:
        pid = int(answer.read())
    print(f"stand-in: grandchild {pid} in a session of its own", file=sys.stderr, flush=True)
    return pid
