"""The set's course: what starts it, what ends it, and what it says meanwhile."""

from __future__ import annotations

import pytest

from glm_spark.cluster.breaker import BACKOFF_SECONDS
from glm_spark.cluster.judge import TERMINAL
from glm_spark.cluster.lease import Freshness
from tests.unit.cluster.harbour import Harbour, finding


@pytest.fixture
def live() -> Harbour:
    harbour = Harbour()
    harbour.until("live")
    return harbour


def reason(harbour: Harbour) -> str:
    return harbour.course.reason.code if harbour.course.reason else ""


def test_it_goes_live_when_all_are_there(live: Harbour) -> None:
    assert live.ready
    assert live.course.reason is None
    assert live.turn().gate == "open"


def test_it_waits_for_a_spark_that_is_not_there_and_says_which() -> None:
    harbour = Harbour()
    harbour.sparks[1].dead = True
    for _ in range(100):
        harbour.turn()
    assert harbour.course.state == "waiting"
    assert harbour.course.reason is not None
    assert harbour.course.reason.node == "spark-2"
    harbour.sparks[1].restart_daemon()
    harbour.until("live", turns=10)


def test_nothing_starts_while_settings_differ() -> None:
    harbour = Harbour()
    harbour.obstacles = (finding("cluster.setting-differs", "spark-2"),)
    for _ in range(20):
        orders = harbour.turn()
        assert {goal.phase for goal in orders.goals} == {"idle"}
    assert reason(harbour) == "cluster.setting-differs"


def test_it_is_not_live_before_a_reply_came_through() -> None:
    harbour = Harbour()
    harbour.answer = None
    harbour.until("verifying")
    for _ in range(20):
        assert harbour.turn().gate == "close"
        assert not harbour.ready
    harbour.answer = "hello"
    harbour.until("live", turns=2)


@pytest.mark.parametrize("lost", [0, 1])
def test_a_lost_rank_ends_all_ranks_and_a_new_generation_starts(live: Harbour, lost: int) -> None:
    before = live.course.generation
    live.sparks[lost].lose_rank()
    orders = live.turn()
    assert not live.ready
    assert orders.gate == "close"
    assert all(goal.phase == "idle" and goal.hard for goal in orders.goals)
    assert not any(spark.alive for spark in live.sparks)
    assert reason(live) == "engine.rank-ended"
    live.until("live")
    assert live.course.generation > before


def test_a_daemon_that_is_gone_takes_the_set_down_and_is_named(live: Harbour) -> None:
    live.sparks[1].end_daemon()
    live.turn()
    assert not live.ready
    assert not live.sparks[0].alive
    assert live.course.reason is not None
    assert live.course.reason.node == "spark-2"
    live.until("waiting")
    live.sparks[1].restart_daemon()
    live.until("live")


def test_a_daemon_that_started_anew_holds_no_rank_of_this_generation(live: Harbour) -> None:
    live.sparks[1].restart_daemon()
    live.turn()
    assert not live.ready
    assert reason(live) == "cluster.daemon-restarted"
    assert not live.sparks[0].alive


def test_missed_beats_withdraw_readiness_but_keep_the_ranks(live: Harbour) -> None:
    live.sparks[1].freshness = Freshness.SUSPECT
    orders = live.turn()
    assert not live.ready
    assert orders.gate == "pause"
    assert all(spark.alive for spark in live.sparks)
    live.sparks[1].freshness = Freshness.FRESH
    assert live.turn().gate == "open"
    assert live.ready


def test_a_broken_session_is_news_at_once_and_mended_without_a_restart(live: Harbour) -> None:
    generation = live.course.generation
    live.sparks[1].cut = True
    assert not live.ready
    assert live.turn().gate == "pause"
    live.sparks[1].cut = False
    live.turn()
    assert live.ready
    assert live.course.generation == generation


def test_a_lapsed_lease_ends_the_set(live: Harbour) -> None:
    live.sparks[1].cut = True
    live.sparks[1].freshness = Freshness.LAPSED
    live.turn()
    assert not live.ready
    assert not live.sparks[0].alive


def test_failures_in_a_row_are_tried_again_ever_later() -> None:
    harbour = Harbour()
    harbour.course.most_failures = 100
    pauses = []
    for _ in range(len(BACKOFF_SECONDS)):
        harbour.until("loading")
        harbour.sparks[0].lose_rank()
        harbour.turn()
        failed = harbour.now
        harbour.until("preparing", turns=2000)
        pauses.append(harbour.now - failed)
    assert pauses[0] <= 1.0  # "relaunch at once" after a first failure
    assert pauses[-1] >= 40.0
    assert pauses[-1] <= 80.0


@pytest.mark.parametrize("code", sorted(TERMINAL))
def test_what_another_try_cannot_mend_is_not_tried_again(code: str) -> None:
    harbour = Harbour()
    harbour.answer = finding(code)
    harbour.until("failed")
    for _ in range(500):
        harbour.turn()
    assert harbour.course.state == "failed"
    assert reason(harbour) == code
    harbour.answer = "hello"
    harbour.course.restart(harbour.now)
    harbour.until("live")


def test_a_load_without_progress_ends() -> None:
    harbour = Harbour()
    harbour.serves = False
    harbour.until("loading")
    for _ in range(10_000):  # 40 minutes that go on are no failure
        harbour.turn()
    assert {goal.phase for goal in harbour.turn().goals} == {"run"}
    harbour.silence = finding("engine.load-silent")
    assert {goal.phase for goal in harbour.turn().goals} == {"idle"}
    assert reason(harbour) == "engine.load-silent"


def test_a_refused_start_is_checked_again() -> None:
    harbour = Harbour()
    harbour.sparks[1].refuses = finding("port.busy", "spark-2")
    for _ in range(40):
        harbour.turn()
        assert not any(spark.alive for spark in harbour.sparks)
    assert reason(harbour) in ("port.busy", "set.preparing")
    harbour.sparks[1].refuses = None
    harbour.until("live")


def test_the_owner_stops_it_and_it_stays_stopped(live: Harbour) -> None:
    live.wanted = "stop"
    live.drained = True
    live.until("waiting")
    assert not any(spark.alive for spark in live.sparks)
    for _ in range(100):
        live.turn()
    assert reason(live) == "set.stopped"
    live.wanted = "run"
    live.until("live")


def test_running_requests_are_waited_for_before_a_stop(live: Harbour) -> None:
    live.wanted = "stop"
    for _ in range(10):
        orders = live.turn()
        assert orders.gate == "drain"
        assert all(spark.alive for spark in live.sparks)
    live.drained = True
    live.turn()
    assert not live.sparks[0].alive


def test_draining_ends_after_its_time(live: Harbour) -> None:
    live.wanted = "stop"
    for _ in range(200):
        live.turn()
    assert live.course.state == "waiting"


def test_rank_0_is_stopped_first(live: Harbour) -> None:
    live.wanted, live.drained = "stop", True
    live.turn()
    orders = live.turn()
    assert orders.goals[0].phase == "idle"
    assert not orders.goals[0].hard
    live.sparks[0].rank = None
    assert {goal.phase for goal in live.turn().goals} == {"idle"}


def test_a_spark_that_leaves_takes_the_set_down_in_order(live: Harbour) -> None:
    live.sparks[1].leaving = True
    live.drained = True
    for _ in range(10):
        live.turn()
    assert not any(spark.alive for spark in live.sparks)
    assert reason(live) == "cluster.leaving"
    live.sparks[1].restart_daemon()
    live.until("live")


def test_generations_count_on_from_the_highest_that_anyone_saw() -> None:
    harbour = Harbour()
    harbour.sparks[1].seen = 41
    harbour.until("live")
    assert harbour.course.generation == 42


def test_restart_begins_a_new_generation(live: Harbour) -> None:
    before = live.course.generation
    live.course.restart(live.now)
    live.turn()
    live.until("live")
    assert live.course.generation == before + 1
