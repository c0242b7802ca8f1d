"""Whether memory is running out under a living rank. Pure: readings in, a verdict out.

An exhausted GB10 does not fail an allocation, it freezes or resets without a trace in its log, so the rank has to end
before that. Seen by owners of DGX Spark on driver 580 with long prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

WINDOW_SECONDS = 3.0  # the rate of fall is measured over so long
HORIZON_SECONDS = 2.0  # ending a rank and getting its memory back takes about one
WARN_FLOORS = 2.0  # this many floors are worth a warning
CALM_FLOORS = 2.25  # and above this many it is taken back, so that it does not flicker


class Verdict(IntEnum):
    FINE = 0
    LOW = 1  # say so
    FREEZING = 2  # end the rank now


@dataclass(frozen=True, slots=True)
class Reading:
    """MemAvailable in GiB at a moment in seconds of a steady clock."""

    at: float
    available: float


def recent(readings: Sequence[Reading], now: float) -> tuple[Reading, ...]:
    """What the rate is measured from, and always the last one."""
    return tuple(one for one in readings if now - one.at <= WINDOW_SECONDS)


def fall(readings: Sequence[Reading]) -> float:
    """GiB a second that go over the readings, oldest first; 0 where it does not fall."""
    if len(readings) < 2 or readings[-1].at <= readings[0].at:
        return 0.0
    return max(0.0, (readings[0].available - readings[-1].available) / (readings[-1].at - readings[0].at))


def trend(readings: Sequence[Reading]) -> float:
    """The rate of a fall that goes on: two steps down in a row, at the slower of the last step's and the whole's rate.
    One lump that a program took is no trend."""
    if len(readings) < 3 or not readings[-3].available > readings[-2].available > readings[-1].available:
        return 0.0
    return min(fall(readings), fall(readings[-2:]))


def judge(readings: Sequence[Reading], floor: float, before: Verdict = Verdict.FINE) -> Verdict:
    """The verdict on readings, oldest first. `floor` in GiB; 0 turns the guard off. `before` is the last verdict.

    FREEZING: below the floor twice in a row, below half of it once, or low and gone within two seconds if
    the fall goes on.
    """
    if floor <= 0 or not readings:
        return Verdict.FINE
    last = readings[-1].available
    if last < floor / 2 or (last < floor and len(readings) > 1 and readings[-2].available < floor):
        return Verdict.FREEZING
    if last < WARN_FLOORS * floor:
        rate = trend(readings)
        return Verdict.FREEZING if rate > 0 and last / rate < HORIZON_SECONDS else Verdict.LOW
    if before >= Verdict.LOW and last < CALM_FLOORS * floor:
        return Verdict.LOW
    return Verdict.FINE
