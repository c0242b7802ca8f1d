"""Holds one rank for the daemon, so that nothing of it outlives the daemon, whatever ends either of them.

Run as `python -I -S keeper.py COMMANDS STATUS PARENT -- PROGRAM ARGUMENT...` with the rank's whole environment, and
with two pipes: COMMANDS is read, and its end of file says that the daemon is gone; STATUS is written. It imports
nothing of the package, so that it is small and starts at once.

Why a process of its own: PR_SET_PDEATHSIG fires when the *thread* that created the child ends, which in a daemon may
be any thread at any time, and is no help for grandchildren. This process has one thread, and as a subreaper it becomes
the parent of every orphan of the rank, so that none escapes by a session of its own.

Commands, one byte each: T SIGTERM to the rank, U SIGUSR1 to the rank, K end everything.
Status, one line each: `started PID`, `failed ERRNO`, `ended CODE -` or `ended - SIGNAL`, `gone`.
"""

import ctypes
import os
import select
import signal
import sys

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
NOT_STARTED = 126


def main() -> int:
    split = sys.argv.index("--")
    commands, status, parent = (int(text) for text in sys.argv[1:split])
    program = sys.argv[split + 1 :]
    for number in (commands, status):
        os.set_inheritable(number, False)
    # A terminal's Ctrl-C and a service manager's SIGTERM are for the daemon to answer; this process ends last.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    wake_read, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        return tell(status, f"failed {ctypes.get_errno()}")
    try:
        daemon = os.pidfd_open(parent)
    except ProcessLookupError:
        return 0
    if os.getppid() != parent:
        return 0
    rank, trouble = start(program, libc)
    if trouble:
        os.waitpid(rank, 0)
        return tell(status, f"failed {trouble}")
    tell(status, f"started {rank}")
    keep(rank, commands, status, daemon, wake_read)
    end_everything(rank, status, wake_read)
    return tell(status, "gone")


def tell(status: int, text: str) -> int:
    try:
        os.write(status, f"{text}\n".encode())
    except OSError:  # the daemon is gone: there is nobody to tell
        return 1
    return 0


def start(program: list[str], libc: ctypes.CDLL) -> tuple[int, int]:
    """The rank's pid and 0, or the errno that kept it from starting. PATH is searched for a bare name."""
    me = os.getpid()
    trouble_read, trouble_write = os.pipe2(os.O_CLOEXEC)
    rank = os.fork()
    if rank == 0:
        try:
            os.setsid()
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != me:  # it ended before the line above took effect
                os._exit(NOT_STARTED)
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.execvp(program[0], program)
        except OSError as error:
            os.write(trouble_write, str(error.errno).encode())
        finally:
            os._exit(NOT_STARTED)
    os.close(trouble_write)
    trouble = os.read(trouble_read, 16)  # ends with exec, or with the child
    os.close(trouble_read)
    return rank, int(trouble or b"0")


def keep(rank: int, commands: int, status: int, daemon: int, wake: int) -> None:
    """Returns when the rank has ended, when everything is to be ended, or when the daemon is gone."""
    poll = select.poll()
    # The pidfd sees the daemon's end even while some fork of it still holds the command pipe open.
    for number in (commands, daemon, wake):
        poll.register(number, select.POLLIN)
    while True:
        ready = {number for number, _ in poll.poll()}
        if daemon in ready:
            return
        if wake in ready:
            drain(wake)
            ended, _ = reap(rank, status)
            if ended:
                return
        if commands in ready:
            wanted = os.read(commands, 64)
            if not wanted or b"K" in wanted:
                return
            # Not reaped yet, so the number is still the rank's own.
            if b"U" in wanted:
                os.kill(rank, signal.SIGUSR1)
            if b"T" in wanted:
                os.kill(rank, signal.SIGTERM)


def drain(wake: int) -> None:
    try:
        while os.read(wake, 512):
            pass
    except BlockingIOError:
        pass


def reap(rank: int, status: int) -> tuple[bool, bool]:
    """Collect every child that ended and tell how the rank did: (the rank was among them, no child is left)."""
    ended = False
    while True:
        try:
            pid, how = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended, True
        if pid == 0:
            return ended, False
        if pid == rank:
            ended = True
            code = os.waitstatus_to_exitcode(how)
            tell(status, f"ended - {-code}" if code < 0 else f"ended {code} -")


def end_everything(rank: int, status: int, wake: int) -> None:
    """Kill all descendants until none is left: what forks while it is being killed is found on the next look."""
    poll = select.poll()
    poll.register(wake, select.POLLIN)
    pause_ms = 5
    while True:
        for pid, began in descendants(os.getpid()):
            kill(pid, began)
        _, childless = reap(rank, status)
        if childless:  # and a subreaper without children has no descendants
            return
        poll.poll(pause_ms)  # a killed child wakes it; one stuck in the kernel is looked at again and again, slowly
        drain(wake)
        pause_ms = min(pause_ms * 2, 500)


def descendants(root: int) -> list[tuple[int, str]]:
    """(pid, start time) of everything below `root`, zombies too: a process whose first thread ended looks like one."""
    children: dict[int, list[tuple[int, str]]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            parent, began = stat(int(name))
            children.setdefault(parent, []).append((int(name), began))
    found: list[tuple[int, str]] = []
    queue = [root]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += [pid for pid, _ in below]
    return found


def stat(pid: int) -> tuple[int, str]:
    """(parent, start time) of a process; (-1, "") when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return int(fields[1]), fields[19].decode()
    except (OSError, IndexError):
        return -1, ""


def kill(pid: int, began: str) -> None:
    """SIGKILL to exactly this process: the number may have passed to another one since it was read."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if stat(pid)[1] == began:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    except ProcessLookupError:
        pass
    finally:
        os.close(handle)


if __name__ == "__main__":
    sys.exit(main())
