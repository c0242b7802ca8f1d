"""Runs what may never return where it holds up neither the loop nor the exit."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_a_thread(work: Callable[[], T], name: str) -> T:
    """Like asyncio.to_thread, in a thread of its own: one that is stuck takes no place in a pool, and the program
    can end while it is. Cancelling leaves the thread behind.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: Callable[[], T]) -> None:
        if done.done():
            return
        try:
            done.set_result(result())
        except BaseException as error:
            done.set_exception(error)

    def body() -> None:
        try:
            value = work()
        except BaseException as error:
            failure = error

            def raise_it() -> T:
                raise failure

            told: Callable[[], T] = raise_it
        else:

            def give_it() -> T:
                return value

            told = give_it
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, told)

    threading.Thread(target=body, name=name, daemon=True).start()
    return await done
