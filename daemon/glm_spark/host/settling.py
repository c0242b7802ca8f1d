"""Memory that an ended rank gives back late: it is waited for while it comes, not for a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from glm_spark.host.memory import Memory

PAUSE_SECONDS = 0.25
STILL_SECONDS = 1.5  # without growth for so long nothing more is coming
LONGEST_SECONDS = 45.0  # half of what a whole preparation may take
GROWTH_GIB = 0.05  # less than this between two looks is a program breathing


async def settled(want: float, look: Callable[[], Memory | None]) -> float:
    """Waits while less than `want` GiB are available and more of it comes; returns the seconds it took.

    Up to 30 GiB were seen to linger for a while after a rank's end.
    """
    loop = asyncio.get_running_loop()
    began = grew = loop.time()
    most = float("-inf")
    while True:
        memory, now = look(), loop.time()
        if memory is None or memory.available >= want or now - began > LONGEST_SECONDS:
            return now - began
        if memory.available > most + GROWTH_GIB:
            most, grew = memory.available, now
        elif now - grew > STILL_SECONDS:
            return now - began
        await asyncio.sleep(PAUSE_SECONDS)
