"""A reader that the kernel holds cannot be killed: it is left behind, a few times and no more."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess

import pytest

from glm_spark.fabric.watch import Watcher
from glm_spark.finding import Finding


class Held:
    """Readers on which SIGKILL does nothing, as on one in the kernel's uninterruptible sleep."""

    def __init__(self) -> None:
        self.pids: list[int] = []
        self.news = asyncio.Event()

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        if process.pid not in self.pids:
            self.pids.append(process.pid)
            self.news.set()

    def release(self) -> None:
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def unkillable(monkeypatch: pytest.MonkeyPatch) -> Held:
    held = Held()

    def kill(process: subprocess.Popen[bytes]) -> None:
        held.kill(process)

    monkeypatch.setattr("subprocess.Popen.kill", kill)
    monkeypatch.setattr("glm_spark.fabric.reader._GRACE", 0.05)
    monkeypatch.setattr("glm_spark.fabric.watch._BACK_OFF", (0.05,))
    return held


async def test_readers_that_cannot_be_killed_are_left_behind_and_counted(unkillable: Held) -> None:
    told: list[tuple[Finding, ...]] = []
    enough = asyncio.Event()

    def heard(findings: tuple[Finding, ...]) -> None:
        told.append(findings)
        if findings and "cannot be ended" in findings[0].measured:
            enough.set()

    silent = ("sh", "-c", "exec sleep 60")
    watcher = Watcher((), lambda _: None, 0.1, node="spark-1", on_findings=heard, command=silent)
    running = asyncio.create_task(watcher.run())
    try:
        async with asyncio.timeout(15):
            await enough.wait()
        assert len(unkillable.pids) == 3
        assert "3 of 3 stuck readers left behind" in str(told[-1][0])
        unkillable.news.clear()
        unkillable.release()
        async with asyncio.timeout(15):
            await unkillable.news.wait()  # with those gone, a further one was started
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        unkillable.release()
