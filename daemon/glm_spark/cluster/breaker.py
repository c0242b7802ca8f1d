"""How often a set may fail: growing pauses, and after too many failures in a window it stays stopped. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass

BACKOFF_SECONDS = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


@dataclass(frozen=True, slots=True)
class Breaker:
    """`failures` are CLOCK_BOOTTIME seconds of failures within the window, oldest first."""

    failures: tuple[float, ...] = ()
    tripped: bool = False

    def failed(self, now: float, most: int, window: float) -> Breaker:
        """After one more failure. It trips with the `most`-th within `window` seconds and stays so:
        a half-open one is tried once a change of evidence."""
        recent = (*(at for at in self.failures if now - at < window), now)
        return Breaker(recent, self.tripped or len(recent) >= most)

    def pause(self) -> float:
        """Seconds until the next try, with jitter so that nothing on two Sparks keeps meeting."""
        row = max(0, len(self.failures) - 1)
        return BACKOFF_SECONDS[min(row, len(BACKOFF_SECONDS) - 1)] * random.uniform(0.8, 1.2)
