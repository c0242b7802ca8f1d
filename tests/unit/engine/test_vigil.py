"""When a serving engine's silence means that it hangs, and when it is only busy."""

from __future__ import annotations

from typing import Any

import pytest

from glm_spark.engine.health import EngineHealth
from glm_spark.engine.vigil import Limits, Sight, Verdict, Vigil

LIMITS = Limits(interval=60.0, answer=30.0, decode=330.0, prefill=1800.0)


class Watched:
    """A vigil with a clock and an engine to play with."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.vigil = Vigil("spark-1", LIMITS, self.now)
        self.health: dict[str, Any] = {}
        self.passing = 0
        self.idle_since = self.now

    def look(self, seconds: float = 1.0, answers: bool = True, **health: Any) -> Verdict:
        self.now += seconds
        self.health.update(health)
        read = EngineHealth.model_validate(self.health) if answers else None
        return self.vigil.see(Sight(self.now, read, self.passing, self.now - self.idle_since))


@pytest.fixture
def engine() -> Watched:
    return Watched()


def code(verdict: Verdict) -> str:
    return verdict.stall.code if verdict.stall else ""


def test_an_idle_engine_is_asked_once_an_interval(engine: Watched) -> None:
    assert not engine.look(59).ask
    assert engine.look(1).ask
    engine.vigil.asked(engine.now)
    assert not engine.look(10, requests_running=1).ask
    engine.vigil.heard(engine.now)
    assert not engine.look(30, requests_running=0).ask
    assert engine.look(30).ask


def test_a_finished_request_is_evidence_enough(engine: Watched) -> None:
    engine.look(59)
    engine.idle_since = engine.now
    assert not engine.look(30, requests_total=1).ask


def test_it_is_never_asked_while_requests_run(engine: Watched) -> None:
    engine.passing = 1
    for _ in range(300):
        assert not engine.look(1, requests_running=1).ask


def test_a_sixteen_minute_prefill_is_no_stall(engine: Watched) -> None:
    engine.passing = 1
    for second in range(967):
        verdict = engine.look(1, requests_running=1, requests_total=1, iteration_s=float(second))
        assert verdict.stall is None


def test_a_decode_that_stands_still_is_a_stall(engine: Watched) -> None:
    engine.passing = 1
    engine.look(1, requests_running=1, requests_total=1)
    engine.look(1, completion_tokens_total=10)
    assert code(engine.look(329, iteration_s=329.0)) == ""
    assert code(engine.look(2, iteration_s=331.0)) == "engine.stalled"


def test_slow_tokens_are_no_stall(engine: Watched) -> None:
    engine.passing = 1
    for token in range(1, 20):
        assert engine.look(200, requests_running=1, completion_tokens_total=token, iteration_s=199.0).stall is None


def test_a_young_step_is_no_stall_whatever_the_counters_say(engine: Watched) -> None:
    engine.passing = 1
    engine.look(1, requests_running=1, completion_tokens_total=5)
    assert engine.look(5000, iteration_s=2.0).stall is None


def test_a_prefill_that_never_ends_is_a_stall_in_the_end(engine: Watched) -> None:
    engine.passing = 1
    engine.look(1, requests_running=1, requests_total=1)
    assert code(engine.look(1801, iteration_s=1801.0)) == "engine.stalled"


def test_an_unanswered_canary_with_nothing_else_running_means_a_hung_engine(engine: Watched) -> None:
    engine.vigil.asked(engine.now)
    assert code(engine.look(29, requests_running=1, iteration_s=29.0)) == ""
    assert code(engine.look(1, iteration_s=30.0)) == "engine.canary-silent"


def test_an_unanswered_canary_behind_somebodys_request_means_busy(engine: Watched) -> None:
    engine.vigil.asked(engine.now)
    engine.passing = 1
    for tokens in range(120):
        verdict = engine.look(1, requests_running=2, completion_tokens_total=tokens)
        assert verdict.stall is None
        assert not verdict.ask, "at most one is outstanding"


def test_an_abandoned_request_shows_as_busy(engine: Watched) -> None:
    verdict = engine.look(1, requests_running=1)
    assert "nobody waits" in verdict.note
    assert not engine.look(300, iteration_s=300.0).ask


def test_health_that_stops_answering_is_a_stall(engine: Watched) -> None:
    engine.look(1)
    assert code(engine.look(9, answers=False)) == ""
    assert code(engine.look(1, answers=False)) == "engine.http-silent"


def test_one_lost_answer_is_forgiven(engine: Watched) -> None:
    engine.look(1)
    engine.look(9, answers=False)
    engine.look(1)
    assert engine.look(9, answers=False).stall is None
