"""The process table as /proc shows it: who descends from whom, whose environment carries our marks, how to end them.

Reading another process's environment or command line can block in the kernel while that process is stuck, so callers
on the event loop go through `aside`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Process:
    """One entry of the table. `began` is its start in clock ticks since boot: with the pid it names it for good."""

    pid: int
    parent: int
    began: int
    name: str
    state: str


def read(pid: int) -> Process | None:
    """The process with this pid, None when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            head, _, rest = file.read().rpartition(b")")
    except OSError:
        return None
    fields = rest.split()
    if len(fields) < 20:
        return None
    name = head.partition(b"(")[2].decode(errors="replace")
    return Process(pid, int(fields[1]), int(fields[19]), name, fields[0].decode(errors="replace"))


def table() -> dict[int, Process]:
    found = (read(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {process.pid: process for process in found if process is not None}


def below(processes: Iterable[Process], roots: Iterable[int]) -> list[Process]:
    """Pure: all descendants of `roots`, without the roots themselves."""
    children: dict[int, list[Process]] = {}
    for process in processes:
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    queue = list(roots)
    while queue:
        nearest = children.get(queue.pop(), [])
        found += nearest
        queue += [process.pid for process in nearest]
    return found


def carries(pid: int, marks: Mapping[str, str]) -> bool:
    """Whether the process was started with exactly these variables. Unreadable or gone: no."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            told = set(file.read().split(b"\0"))
    except OSError:
        return False
    return all(f"{name}={value}".encode() in told for name, value in marks.items())


def first_marked(marks: Mapping[str, str]) -> Process | None:
    """The eldest process with these marks that no other one with them started; None while there is none."""
    carrying = {process.pid: process for process in table().values() if carries(process.pid, marks)}
    roots = [process for process in carrying.values() if process.parent not in carrying and process.state not in "ZX"]
    return min(roots, key=lambda process: process.began, default=None)


def kill(process: Process) -> bool:
    """SIGKILL to exactly this process, even if its number has been given to another meanwhile. False: it is gone."""
    return send(process, signal.SIGKILL)


def send(process: Process, number: signal.Signals) -> bool:
    """A signal to exactly this process; False when it is gone or may not be signalled."""
    try:
        handle = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        now = read(process.pid)
        if now is None or now.began != process.began:
            return False
        signal.pidfd_send_signal(handle, number)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(handle)
    return True


def marked(marks: Mapping[str, str], spare: frozenset[int] = frozenset()) -> list[Process]:
    """What carries the marks and all that descends from it; zombies, and `spare` with all below it, left out."""
    processes = table()
    everyone = processes.values()
    spared = spare | {process.pid for process in below(everyone, spare)}
    roots = [process for process in everyone if process.pid not in spared and carries(process.pid, marks)]
    found = {process.pid: process for process in (*roots, *below(everyone, [root.pid for root in roots]))}
    return [process for process in found.values() if process.pid not in spared and process.state not in "ZX"]


async def aside(call: Callable[[], Answer], deadline: float) -> Answer:
    """Run a call that may block in the kernel on a thread of its own; TimeoutError after `deadline` seconds.

    The thread is a daemon thread: one that never returns does not keep the program from ending.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Answer] = loop.create_future()

    def settle(value: Answer | None, error: BaseException | None) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(value)  # type: ignore[arg-type]

    def run() -> None:
        value, trouble = None, None
        try:
            value = call()
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever awaits the answer
            trouble = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, value, trouble)

    threading.Thread(target=run, name="proc", daemon=True).start()
    async with asyncio.timeout(deadline):
        return await answer
