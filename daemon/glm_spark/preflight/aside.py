"""Runs what may never return where it holds up neither the loop nor the exit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


async def in_a_thread(work: Callable[[], T], name: str) -> T:
    """Like asyncio.to_thread, in a thread of its own: one that is stuck takes no place in a pool, and the program
    can end while it is. Cancelling leaves the thread behind. Raises what `work` raises.
    """
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()  # from here a cancelled wait cannot make set_result fail

    def body() -> None:
        try:
            done.set_result(work())
        except Exception as error:  # noqa: BLE001 - raised again where it is awaited
            done.set_exception(error)

    threading.Thread(target=body, name=name, daemon=True).start()
    return await asyncio.wrap_future(done)
