"""Waits until the memory of an ended rank is back: up to 30 GiB linger in the driver for a while (seen on GB10)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

MARGIN_GIB = 2.0  # what else on a Spark takes and gives meanwhile
LIMIT_SECONDS = 45.0
STANDSTILL_SECONDS = 15.0  # nothing came back for so long: what is missing is held by something else
STEP_GIB = 0.25
LOOK_SECONDS = 0.25


async def returned(
    wanted_gib: float,
    available_gib: Callable[[], float],
    still_wanted: Callable[[], bool],
    clock: Callable[[], float],
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> float | None:
    """None when MemAvailable is back within the margin of `wanted_gib`, or when nobody waits any more.

    Else, after the limit or a standstill, what is available in GiB.
    """
    begun = risen = clock()
    highest = available_gib()
    while still_wanted():
        now, free = clock(), available_gib()
        if free >= wanted_gib - MARGIN_GIB:
            return None
        if free >= highest + STEP_GIB:
            highest, risen = free, now
        if now - begun >= LIMIT_SECONDS or now - risen >= STANDSTILL_SECONDS:
            return free
        await pause(LOOK_SECONDS)
    return None
