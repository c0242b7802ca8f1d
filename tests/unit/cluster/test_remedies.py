"""What is tried differently after a failure, and when trying ends."""

from __future__ import annotations

from glm_spark.cluster.breaker import Breaker
from glm_spark.cluster.ladder import Rungs, climb
from glm_spark.engine.rank import RankView
from glm_spark.engine.spec import Variant
from tests.unit.cluster.harbour import Harbour, finding


def view(window: int | None) -> RankView:
    return RankView(generation=1, rank=0, window=window)


def test_a_failed_first_connection_is_tried_as_it_was_then_gently() -> None:
    once = climb(Rungs(), finding("engine.nccl-error"), [])
    assert once.variant == Variant()
    twice = climb(once, finding("engine.nccl-error"), [])
    assert twice.variant == Variant(gentle=True)
    assert climb(twice, finding("engine.nccl-error"), []).variant == Variant(gentle=True)


def test_a_window_that_does_not_fit_is_asked_for_as_the_engine_proposes() -> None:
    rungs = climb(Rungs(), finding("engine.window-refused"), [view(524_288), view(393_216), view(None)])
    assert rungs.variant == Variant(context=393_216)
    assert not rungs.exhausted


def test_a_window_is_made_smaller_twice_and_no_more() -> None:
    rungs = Rungs()
    for proposed in (500_000, 400_000):
        rungs = climb(rungs, finding("engine.window-refused"), [view(proposed)])
        assert not rungs.exhausted
    assert climb(rungs, finding("engine.window-refused"), [view(300_000)]).exhausted


def test_a_proposal_that_is_no_smaller_leads_nowhere() -> None:
    rungs = climb(Rungs(), finding("engine.window-refused"), [view(500_000)])
    assert climb(rungs, finding("engine.window-refused"), [view(500_000)]).exhausted
    assert climb(Rungs(), finding("engine.window-refused"), []).exhausted


def test_other_failures_keep_what_was_found_out() -> None:
    rungs = Rungs(Variant(context=5, gentle=True), connection_failures=2, window_steps=1)
    assert climb(rungs, finding("engine.rank-ended"), []).variant == rungs.variant


def test_the_breaker_trips_with_the_last_failure_of_a_window() -> None:
    breaker = Breaker()
    for second in range(5):
        breaker = breaker.failed(float(second), most=6, window=100.0)
        assert not breaker.tripped
    assert breaker.failed(5.0, most=6, window=100.0).tripped


def test_failures_far_apart_do_not_trip_it() -> None:
    breaker = Breaker()
    for hour in range(50):
        breaker = breaker.failed(hour * 3600.0, most=2, window=3600.0)
    assert not breaker.tripped


def fail_until_stopped(harbour: Harbour) -> int:
    failures = 0
    while harbour.course.state != "failed":
        harbour.until("loading", turns=3000)
        harbour.sparks[0].lose_rank()
        harbour.turn()
        failures += 1
        assert failures < 50
    return failures


def test_too_many_failures_leave_the_set_stopped_with_the_last_reason() -> None:
    harbour = Harbour()
    assert fail_until_stopped(harbour) == 6
    reason = harbour.course.reason
    assert reason is not None
    assert reason.code == "set.breaker-open"
    assert "glm-spark restart" in reason.fix
    for _ in range(5000):
        harbour.turn()
        assert not any(spark.alive for spark in harbour.sparks)


def test_a_reboot_is_worth_one_more_try() -> None:
    harbour = Harbour()
    fail_until_stopped(harbour)
    harbour.sparks[1].boot += 1
    harbour.sparks[1].restart_daemon()
    harbour.until("loading")
    harbour.sparks[0].lose_rank()
    harbour.turn()
    assert harbour.course.state == "failed"


def test_memory_that_the_ended_ranks_give_back_is_no_new_evidence() -> None:
    harbour = Harbour()
    harbour.memory = (1, 1)
    fail_until_stopped(harbour)
    for gib in range(2, 15):
        harbour.memory = (gib, gib)
        for _ in range(20):
            harbour.turn()
    assert harbour.course.state == "failed"


def test_memory_freed_later_is_worth_one_more_try() -> None:
    harbour = Harbour()
    harbour.memory = (10, 10)
    fail_until_stopped(harbour)
    for _ in range(600):
        harbour.turn()
    harbour.memory = (14, 10)
    harbour.until("loading")


def test_a_cable_plugged_in_again_is_worth_one_more_try() -> None:
    harbour = Harbour()
    fail_until_stopped(harbour)
    for _ in range(50):
        harbour.turn()
    assert harbour.course.state == "failed"
    harbour.carriers = (("spark-2", "enp1s0f0np0"),)
    harbour.until("loading")


def test_a_changed_configuration_is_tried_also_after_a_hopeless_failure() -> None:
    harbour = Harbour()
    harbour.answer = finding("engine.answer-collapsed")
    harbour.until("failed")
    for _ in range(100):
        harbour.turn()
    assert harbour.course.state == "failed"
    harbour.answer, harbour.configuration = "words", 1
    harbour.until("live")


def test_a_remedy_is_kept_until_something_changes() -> None:
    harbour = Harbour()
    for _ in range(2):
        harbour.until("loading")
        harbour.sparks[1].lose_rank()
        harbour.sparks[1].reason = finding("engine.nccl-error", "spark-2")
        harbour.turn()
    harbour.until("live")
    orders = harbour.turn()
    assert all(goal.variant.gentle for goal in orders.goals), "sent to all ranks alike"
    harbour.course.restart(harbour.now)
    harbour.turn()
    harbour.until("live")
    assert not harbour.turn().goals[0].variant.gentle


def test_a_live_set_that_hangs_writes_its_stacks_and_starts_anew() -> None:
    harbour = Harbour()
    harbour.until("live")
    generation = harbour.course.generation
    harbour.stall = finding("engine.stalled")
    orders = harbour.turn()
    assert all(goal.phase == "idle" and goal.dump and goal.hard for goal in orders.goals)
    harbour.stall = None
    harbour.until("live")
    assert harbour.course.generation == generation + 1


def test_a_live_sets_collapsed_answer_is_tried_again_once() -> None:
    harbour = Harbour()
    harbour.until("live")
    harbour.stall = finding("engine.answer-collapsed")
    harbour.turn()
    assert harbour.course.state == "recovering"
    harbour.stall, harbour.answer = None, finding("engine.answer-collapsed")
    harbour.until("failed")
