"""A Spark that runs out of memory freezes: the rank ends before that, and never for a passing dip."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glm_spark.host.guard import Reading, Verdict, fall, judge, recent

FLOOR = 2.0


def readings(*available: float, step: float = 0.25) -> tuple[Reading, ...]:
    return tuple(Reading(at * step, gib) for at, gib in enumerate(available))


@pytest.mark.parametrize(
    ("available", "verdict"),
    [
        ((110.0, 110.0), Verdict.FINE),
        ((7.0, 7.0), Verdict.FINE),  # rank 0's Spark at rest
        ((3.9, 3.9), Verdict.LOW),
        ((2.0, 2.0), Verdict.LOW),
        ((3.0, 1.9, 3.0), Verdict.LOW),  # one dip below the floor
        ((1.9,), Verdict.LOW),
        ((1.9, 1.9), Verdict.FREEZING),
        ((0.9,), Verdict.FREEZING),  # half the floor: no second look
        ((6.0, 5.0, 4.0, 3.0), Verdict.FREEZING),  # 4 GiB/s: gone in less than a second
        (
            (30.0, 20.0, 10.0),
            Verdict.FINE,
        ),  # a load takes its share fast, and stops at 7
        ((3.6, 3.58, 3.56), Verdict.LOW),
        ((), Verdict.FINE),
    ],
)
def test_the_table(available: tuple[float, ...], verdict: Verdict) -> None:
    assert judge(readings(*available), FLOOR) is verdict


def test_the_guard_can_be_turned_off() -> None:
    assert judge(readings(0.1, 0.1), 0) is Verdict.FINE


def test_a_warning_is_not_taken_back_by_a_hair() -> None:
    assert judge(readings(4.2, 4.2), FLOOR, Verdict.LOW) is Verdict.LOW
    assert judge(readings(4.2, 4.2), FLOOR, Verdict.FINE) is Verdict.FINE
    assert judge(readings(4.6, 4.6), FLOOR, Verdict.LOW) is Verdict.FINE


GIB = st.floats(0, 128)


@given(st.lists(GIB, min_size=1, max_size=20), GIB, st.sampled_from(Verdict))
def test_less_memory_is_never_judged_milder(before: list[float], less: float, verdict: Verdict) -> None:
    *rest, last = before
    lower = min(last, less)
    assert judge(readings(*rest, lower), FLOOR, verdict) >= judge(readings(*rest, last), FLOOR, verdict)


@given(GIB, st.integers(2, 10))
def test_steady_memory_above_twice_the_floor_never_ends_a_rank(gib: float, count: int) -> None:
    expected = Verdict.FREEZING if gib < FLOOR else Verdict.LOW if gib < 2 * FLOOR else Verdict.FINE
    assert judge(readings(*[gib] * count), FLOOR) is expected


def test_the_rate_is_measured_over_the_last_seconds() -> None:
    history = readings(100.0, 90.0, 10.0, 9.0, step=2.0)
    assert [one.available for one in recent(history, 6.0)] == [10.0, 9.0]
    assert fall(recent(history, 6.0)) == 0.5
    assert fall(readings(5.0, 6.0)) == 0.0
