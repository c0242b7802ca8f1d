"""Holds one rank for the daemon, so that nothing of it outlives the daemon, whatever ends either of them.

Run as `python -I -S keeper.py COMMANDS STATUS PARENT [OPTION...] -- PROGRAM ARGUMENT...` with the rank's whole
environment, and with two pipes: COMMANDS is read, and its end of file says that the daemon is gone; STATUS is written.
It imports nothing of the package, so that it is small and starts at once.

Options: `--cgroup=DIRECTORY` is an empty cgroup v2 group that the rank starts in and that is emptied and removed at the
end. `--last=WORD`, one for each word, is a command that is run when everything has ended: the removal of a container
whose podman or docker was the rank's program. With it the program's children are given a moment to end by themselves.

Why a process of its own: PR_SET_PDEATHSIG fires when the *thread* that created the child ends, which in a daemon may
be any thread at any time, and is no help for grandchildren. This process has one thread, and as a subreaper it becomes
the parent of every orphan of the rank, so that none escapes by a session of its own.

Commands, one byte each: T SIGTERM to the rank, U SIGUSR1 to the rank, K end everything.
Status, one line each: `started PID`, `failed ERRNO`, `ended CODE -` or `ended - SIGNAL`, `gone`; `left` in place of
`gone` when the last command did not succeed.
"""

import ctypes
import os
import select
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
NOT_STARTED = 126
OOM_SCORE = b"500"  # the daemon runs at -900: when memory runs out the rank goes first
SETTLE_SECONDS = 5.0  # a container's own keeper, conmon, records the end and unmounts: 0.3 s
LAST_SECONDS = 30.0  # for one try of the last command
LAST_PAUSES = (0.0, 0.5, 1.0, 2.0, 4.0)


def main() -> int:
    split = sys.argv.index("--")
    commands, status, parent = (int(text) for text in sys.argv[1:4])
    options = sys.argv[4:split]
    program = sys.argv[split + 1 :]
    cgroup = "".join(option[9:] for option in options if option.startswith("--cgroup="))
    last = [option[7:] for option in options if option.startswith("--last=")]
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
    rank, trouble = start(program, libc, cgroup)
    if trouble:
        os.waitpid(rank, 0)
        remove_group(cgroup)
        return tell(status, f"failed {trouble}")
    tell(status, f"started {rank}")
    by_itself = keep(rank, commands, status, daemon, wake_read)
    if last and by_itself:
        let_end(rank, commands, status, daemon, wake_read)
    end_everything(rank, status, wake_read, cgroup)
    remove_group(cgroup)
    return tell(status, "gone" if succeed(last) else "left")


def tell(status: int, text: str) -> int:
    try:
        os.write(status, f"{text}\n".encode())
    except OSError:  # the daemon is gone: there is nobody to tell
        return 1
    return 0


def start(program: list[str], libc: ctypes.CDLL, cgroup: str) -> tuple[int, int]:
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
            put("/proc/self/oom_score_adj", OOM_SCORE)
            if cgroup:
                put(f"{cgroup}/cgroup.procs", str(os.getpid()).encode())
            os.execvp(program[0], program)
        except OSError as error:
            os.write(trouble_write, str(error.errno).encode())
        finally:
            os._exit(NOT_STARTED)
    os.close(trouble_write)
    trouble = os.read(trouble_read, 16)  # ends with exec, or with the child
    os.close(trouble_read)
    return rank, int(trouble or b"0")


def put(path: str, text: bytes) -> bool:
    """Writes into a file of the kernel's; where that is refused the rank is held all the same."""
    try:
        number = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(number, text)
        return True
    except OSError:
        return False
    finally:
        os.close(number)


def keep(rank: int, commands: int, status: int, daemon: int, wake: int) -> bool:
    """Returns when the rank has ended (True), when everything is to be ended, or when the daemon is gone."""
    poll = select.poll()
    # The pidfd sees the daemon's end even while some fork of it still holds the command pipe open.
    for number in (commands, daemon, wake):
        poll.register(number, select.POLLIN)
    while True:
        ready = {number for number, _ in poll.poll()}
        if daemon in ready:
            return False
        if wake in ready:
            drain(wake)
            ended, _ = reap(rank, status)
            if ended:
                return True
        if commands in ready:
            wanted = os.read(commands, 64)
            if not wanted or b"K" in wanted:
                return False
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


def let_end(rank: int, commands: int, status: int, daemon: int, wake: int) -> None:
    """The program ended by itself: its children may finish what they do, unless somebody is in a hurry."""
    poll = select.poll()
    for number in (commands, daemon, wake):
        poll.register(number, select.POLLIN)
    until = time.monotonic() + SETTLE_SECONDS
    while (left := until - time.monotonic()) > 0 and not reap(rank, status)[1]:
        ready = {number for number, _ in poll.poll(left * 1000)}
        drain(wake)
        if daemon in ready or (commands in ready and os.read(commands, 64) not in (b"T", b"U")):
            return


def succeed(command: list[str]) -> bool:
    """Runs the last command until it succeeds; False when it never does. Its output is nobody's."""
    if not command:
        return True
    for pause in LAST_PAUSES:
        time.sleep(pause)
        child = os.fork()
        if child == 0:
            nothing = os.open(os.devnull, os.O_RDWR)
            for number in range(3):
                os.dup2(nothing, number)
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            try:
                os.execvp(command[0], command)
            finally:
                os._exit(NOT_STARTED)
        if outcome(child) == 0:
            return True
    return False


def outcome(child: int) -> int:
    """The exit status of a child that is given LAST_SECONDS; what it leaves behind is no concern of its status."""
    until = time.monotonic() + LAST_SECONDS
    while time.monotonic() < until:
        pid, how = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(how)
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    return -signal.SIGKILL


def kill_group(cgroup: str) -> None:
    """Everything in the group at once, whatever session it is in and whether or not it is stopped."""
    if cgroup:
        put(f"{cgroup}/cgroup.kill", b"1")


def remove_group(cgroup: str) -> None:
    """The group and those that a container runtime made below it."""
    if not cgroup:
        return
    for directory, _, _ in os.walk(cgroup, topdown=False):
        remove_directory(directory)


def remove_directory(directory: str) -> bool:
    try:
        os.rmdir(directory)
        return True
    except OSError:  # not empty yet, or gone
        return False


def end_everything(rank: int, status: int, wake: int, cgroup: str = "") -> None:
    """Kill all descendants until none is left: what forks while it is being killed is found on the next look."""
    poll = select.poll()
    poll.register(wake, select.POLLIN)
    pause_ms = 5
    while True:
        kill_group(cgroup)
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
