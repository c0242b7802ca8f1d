"""Wait for what a fault shows, with a deadline, and say what was last seen when it does not."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# Guest processors are about this much slower than the host's (QEMU TCG): import of aiohttp 3 s, for instance.
# A deadline that is right on a Spark is multiplied by it here.
SLOWNESS = 12.0


def until(read: Callable[[], T], wanted: T, within: float, what: str = "value") -> float:
    """Poll until `read()` equals `wanted`; returns the seconds it took."""
    start = time.monotonic()
    while True:
        seen = read()
        if seen == wanted:
            return time.monotonic() - start
        if time.monotonic() - start > within:
            raise AssertionError(f"{what}: {seen!r} after {within:.0f} s, wanted {wanted!r}")
        time.sleep(0.1)
