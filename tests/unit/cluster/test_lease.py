"""The two clocks: what withdraws readiness, what ends ranks, and that no late word revives a lease."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from glm_spark.cluster.lease import Freshness, Lease

SUSPECT, LEASE = 2.0, 15.0


def test_silence_first_withdraws_trust_and_then_ends_it() -> None:
    lease = Lease(SUSPECT, LEASE, now=100.0)
    assert lease.freshness(101.9) is Freshness.FRESH
    assert lease.freshness(102.0) is Freshness.SUSPECT
    assert lease.freshness(114.9) is Freshness.SUSPECT
    assert lease.freshness(115.0) is Freshness.LAPSED


def test_a_sign_of_life_in_time_makes_it_fresh_again() -> None:
    lease = Lease(SUSPECT, LEASE, now=100.0)
    assert lease.renew(at=110.0, now=110.0)
    assert lease.freshness(111.0) is Freshness.FRESH


def test_a_sign_of_life_read_after_the_end_changes_nothing() -> None:
    """A daemon that was held up finds old beats in its socket; the other side has acted on the silence by then."""
    lease = Lease(SUSPECT, LEASE, now=100.0)
    assert not lease.renew(at=120.0, now=120.0)
    assert lease.freshness(100.1) is Freshness.LAPSED


def test_the_leader_counts_from_the_sending_of_what_was_acknowledged() -> None:
    lease = Lease(SUSPECT, LEASE, now=100.0)
    assert lease.renew(at=101.0, now=104.0)
    assert lease.freshness(104.0) is Freshness.SUSPECT
    assert lease.silent_for(104.0) == 3.0


def test_an_older_acknowledgement_does_not_shorten_it() -> None:
    lease = Lease(SUSPECT, LEASE, now=100.0)
    lease.renew(at=105.0, now=105.0)
    lease.renew(at=101.0, now=105.0)
    assert lease.silent_for(105.0) == 0.0


@given(st.lists(st.floats(min_value=0.001, max_value=30.0), min_size=1, max_size=30))
def test_once_lapsed_it_never_comes_back(pauses: list[float]) -> None:
    now, lapsed = 0.0, False
    lease = Lease(SUSPECT, LEASE, now)
    for pause in pauses:
        now += pause
        renewed = lease.renew(at=now, now=now)
        lapsed = lapsed or pause >= LEASE
        assert renewed is not lapsed
