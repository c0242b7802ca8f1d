"""A process that holds namespaces, and the ways into them."""

from __future__ import annotations

import concurrent.futures
import os
import queue
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from tests.enclosure import kernel

T = TypeVar("T")


def entering(pid: int, cwd: Path) -> list[str]:
    """What stands before a command so that it runs where `pid` does; the command keeps the process id."""
    return ["nsenter", "-t", str(pid), "-n", "-u", "-m", "--", "env", "-C", str(cwd)]


def run_ip(pid: int, lines: Sequence[str]) -> None:
    """Runs `ip -batch` in the network namespace of `pid`; RuntimeError with ip's words when a line fails."""
    result = subprocess.run(
        ["nsenter", "-t", str(pid), "-n", "ip", "-batch", "-"],
        input="\n".join(lines) + "\n",
        text=True,
        capture_output=True,
    )
    if result.returncode != 0:
        raise RuntimeError(f"ip refused: {result.stderr.strip()} (lines: {list(lines)})")


class Holder:
    """A process in namespaces of its own, and a thread in the same network namespace.

    A socket belongs to the network namespace of the thread that makes it, whoever uses it later."""

    def __init__(self, name: str, arguments: Sequence[str], script: str) -> None:
        self.process = subprocess.Popen(
            ["unshare", "--net", "--uts", "--mount", "sh", "-c", script, name, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # a terminal's Ctrl-C would end it before its Spark's programs
        )
        assert self.process.stdout is not None
        if self.process.stdout.readline().strip() != "ready":
            self.process.wait()
            raise RuntimeError(f"the namespaces of {name} could not be made (exit {self.process.returncode})")
        self.pid = self.process.pid
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"inside {name}", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        descriptor = os.open(f"/proc/{self.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            kernel.setns(descriptor, kernel.NEWNET)
        finally:
            os.close(descriptor)
        while (job := self._jobs.get()) is not None:
            job()

    def call(self, function: Callable[[], T]) -> T:
        """Runs a quick function in the network namespace; its exception is raised here."""
        done: concurrent.futures.Future[T] = concurrent.futures.Future()

        def job() -> None:
            try:
                done.set_result(function())
            except BaseException as error:  # noqa: BLE001  handed to the caller, who waits for it
                done.set_exception(error)

        self._jobs.put(job)
        return done.result(timeout=30)

    def ip(self, lines: Sequence[str]) -> None:
        run_ip(self.pid, lines)

    def close(self) -> None:
        self._jobs.put(None)
        self._thread.join()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.kill()
        self.process.wait()
