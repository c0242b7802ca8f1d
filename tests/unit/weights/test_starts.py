"""Weights and the start of a set: a transfer that moves is never late, one that stands is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from glm_spark.cluster.protocol import Goal, Report
from glm_spark.config.load import judge
from glm_spark.config.model import Config
from glm_spark.finding import Severity
from glm_spark.preflight.checks import weights as check
from glm_spark.preflight.context import Context
from glm_spark.status import WeightsStatus
from glm_spark.weights import lists, pins, process, steward
from glm_spark.weights.faults import finding
from glm_spark.weights.steward import Steward, Unprovided
from tests.unit.cluster.harbour import Harbour, Imagined
from tests.unit.weights.repositories import fill, listed, some_files

FILES = some_files({"model.safetensors": 2000})


class Receiving(Imagined):
    """A worker that says how far its weights are and is not prepared before `total` bytes."""

    weights = WeightsStatus(phase="receiving", total=100)

    def obey(self, goal: Goal) -> None:
        if goal.phase == "prepare" and self.weights.done < self.weights.total:
            self.seen = max(self.seen, goal.generation)
            return
        super().obey(goal)

    def report(self) -> Report:
        return super().report().model_copy(update={"weights": self.weights})


@pytest.fixture
def harbour() -> Harbour:
    made = Harbour()
    made.sparks[1] = Receiving("spark-2")
    made.until("preparing")
    return made


def move(harbour: Harbour, done: int) -> None:
    harbour.sparks[1].weights = WeightsStatus(phase="receiving", done=done, total=100)  # type: ignore[attr-defined]


def test_an_hour_of_receiving_is_not_late(harbour: Harbour) -> None:
    for done in range(1, 100):
        move(harbour, done)
        harbour.turn(60.0)
        assert harbour.course.state == "preparing"
        assert harbour.course.reason is not None
        assert harbour.course.reason.code == "set.weights"
        assert "spark-2" in str(harbour.course.reason)
    move(harbour, 100)
    harbour.until("live")


def test_weights_that_stand_still_end_the_start(harbour: Harbour) -> None:
    move(harbour, 50)
    harbour.turn()
    harbour.course.most_failures = 1
    seconds = 0.0
    while harbour.course.state == "preparing":
        harbour.turn(1.0)
        seconds += 1.0
        assert seconds < 100
    assert seconds > 80
    told = str(harbour.course.reason)
    assert told.startswith("spark-2: ")
    assert "not prepared after 90 s: spark-2 receiving 50 bytes of 100 bytes" in told


# -- one Spark's steward -------------------------------------------------------------------------------------------


def config(tmp_path: Path, **weights: Any) -> Config:
    nodes = [{"name": "spark-1"}, {"name": "spark-2", "address": "192.168.100.2"}]
    made, faults = judge({"node": nodes, "model": {"cache": str(tmp_path / "cache")}, "weights": weights})
    assert made is not None, faults
    return made


def a_steward(tmp_path: Path, **weights: Any) -> Steward:
    made = config(tmp_path, **weights)
    return Steward("spark-1", tmp_path / "state", b"t" * 32, lambda: made, dict, lambda: None)


@asynccontextmanager
async def at_work(one: Steward) -> AsyncIterator[asyncio.Task[None]]:
    """Its daemon runs."""
    running = asyncio.create_task(one.run())
    try:
        yield running
    finally:
        running.cancel()
        await asyncio.wait([running])


async def test_weights_that_are_here_are_verified_once_and_then_cost_a_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = a_steward(tmp_path, fetch=False)
    (pin,) = pins.wanted(config(tmp_path))
    fill(tmp_path / "cache", FILES, pin)
    async with at_work(one):
        await asyncio.gather(one.provide(), one.provide())
    assert one.complete

    async def none(*_: object) -> tuple[()]:
        raise AssertionError("a process was started for weights that are complete")

    monkeypatch.setattr(process, "run", none)
    other = a_steward(tmp_path, fetch=False)
    async with at_work(other):
        await other.provide()


async def test_a_fault_is_told_again_at_once_and_tried_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = a_steward(tmp_path, endpoint="http://127.0.0.1:9")
    tries: list[str] = []

    async def failing(job: Any, _: object) -> tuple[Any, ...]:
        tries.append(job.verb)
        return (finding("spark-1", "hub-unreachable", "x", "y"),)

    monkeypatch.setattr(process, "run", failing)
    monkeypatch.setattr(steward, "PAUSES", (0.0, 100.0))
    async with at_work(one):
        for _ in range(4):
            with pytest.raises(Unprovided):
                await one.provide()
    assert tries == ["fetch", "fetch"]
    assert one.status.phase == "failed"
    assert one.status.finding is not None


async def test_a_transfer_outlives_a_start_that_is_set_back_and_ends_with_the_daemon(tmp_path: Path) -> None:
    made, changed = config(tmp_path), asyncio.Event()
    one = Steward("spark-2", tmp_path / "state", b"t" * 32, lambda: made, lambda: {"127.0.0.1": "lo"}, changed.set)
    async with at_work(one):
        start = asyncio.create_task(one.provide())
        async with asyncio.timeout(20):
            while one.status.phase != "waiting":
                changed.clear()
                await changed.wait()
        pid = int((tmp_path / "state/weights/lock").read_text().split()[1])
        start.cancel()
        await asyncio.wait([start])
        again = asyncio.create_task(one.provide())
        await asyncio.sleep(0)
        assert Path(f"/proc/{pid}").exists()
        assert one.status.phase == "waiting"
        again.cancel()
    assert not Path(f"/proc/{pid}").exists()


# -- the check -----------------------------------------------------------------------------------------------------


def test_a_check_tells_what_lacks_without_calling_it_a_fault(tmp_path: Path) -> None:
    made = config(tmp_path)
    context = Context(made, "spark-1", environ={"STATE_DIRECTORY": str(tmp_path / "state")})
    (found,) = check.run(context)
    assert (found.code, found.severity) == ("weights.missing", Severity.NOTE)
    assert "176 GB" in found.measured
    (pin,) = pins.wanted(made)
    fill(tmp_path / "cache", FILES, pin)
    lists.keep("spark-1", tmp_path / "state/weights", pin, listed(FILES, pin))
    (found,) = check.run(context)
    assert found.code == "weights.unproven"


def test_a_path_that_is_not_there_refuses_a_start(tmp_path: Path) -> None:
    nodes = [{"name": "spark-1"}, {"name": "spark-2", "address": "192.168.100.2"}]
    made, _ = judge({"node": nodes, "model": {"path": str(tmp_path / "nothing")}})
    assert made is not None
    (found,) = check.run(Context(made, "spark-1", moment="start", environ={}))
    assert (found.code, found.severity) == ("weights.path", Severity.ERROR)
