"""A daemon that is told to stop stops, also when its reader is ended by the same signal."""

from __future__ import annotations

import asyncio
import sys

import pytest

from glm_spark.fabric.reader import Reader
from glm_spark.fabric.watch import Watcher


async def test_a_stop_that_meets_the_end_of_the_reader_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """systemd ends the daemon and its reader together: the reader's end arrives in the turn of the loop that
    cancels the watcher."""
    watcher = Watcher((), lambda _: None, command=(sys.executable, "-c", "import time; time.sleep(1000)"))
    listening = asyncio.Event()

    async def ended(_reader: Reader) -> bytes:
        listening.set()
        await told_to_stop.wait()
        return b""

    async def farewell(_reader: Reader, _errors: asyncio.Task[None]) -> str:
        return "exit status -15"

    monkeypatch.setattr(Reader, "line", ended)
    monkeypatch.setattr(Reader, "farewell", farewell)
    told_to_stop = asyncio.Event()
    running = asyncio.create_task(watcher.run())
    await listening.wait()
    told_to_stop.set()
    await asyncio.sleep(0)  # the reader's end is now under way
    running.cancel()
    done, _ = await asyncio.wait({running}, timeout=5)
    running.cancel()  # for the clean-up of a watcher that forgot
    assert done == {running}
    assert running.cancelled()
