"""The two clocks of a session: suspicion withdraws readiness, expiry ends ranks."""

from __future__ import annotations

import time
from enum import StrEnum


def boottime() -> float:
    """Seconds since boot, time asleep included: a Spark that was suspended must not believe its lease."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Freshness(StrEnum):
    FRESH = "fresh"
    SUSPECT = "suspect"
    LAPSED = "lapsed"


class Lease:
    """A promise that the other side was there a moment ago. It can be renewed while it lasts, never revived.

    Times are CLOCK_BOOTTIME seconds. A sign of life read late, from a buffer after this process was held up, comes
    after the end and changes nothing: the other side has acted on the silence by then.
    """

    def __init__(self, suspect: float, lease: float, now: float) -> None:
        self._suspect = suspect
        self._lease = lease
        self._last = now
        self._lapsed = False

    def renew(self, at: float, now: float) -> bool:
        """Counts a sign of life sent or received `at`; False when the lease had already lapsed."""
        if self.freshness(now) is Freshness.LAPSED:
            return False
        self._last = max(self._last, min(at, now))
        return True

    def lapse(self) -> None:
        """Ends the lease before its time."""
        self._lapsed = True

    def freshness(self, now: float) -> Freshness:
        age = now - self._last
        if self._lapsed or age >= self._lease:
            self._lapsed = True
            return Freshness.LAPSED
        return Freshness.SUSPECT if age >= self._suspect else Freshness.FRESH

    def silent_for(self, now: float) -> float:
        return max(0.0, now - self._last)

    def next_change(self, now: float) -> float:
        """Seconds until the freshness can change by itself; at least a millisecond."""
        age = now - self._last
        edge = self._suspect if age < self._suspect else self._lease
        return max(0.001, edge - age)
