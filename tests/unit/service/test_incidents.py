"""The history says what happened, what was done and how long it took, through every death of the daemon."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glm_spark.engine import processes
from glm_spark.finding import Finding, Severity
from glm_spark.service import history
from glm_spark.service.history import History
from glm_spark.service.incidents import (
    FIRST_DONE,
    LAST_DONE,
    MOST,
    Incident,
    Incidents,
    Kept,
    View,
    dump,
    listed,
    parse,
)

BOOT = "boot-1"


def fault(code: str = "engine.rank-ended", node: str = "spark-2", text: str = "signal 9") -> Finding:
    return Finding(code=code, severity=Severity.ERROR, node=node, subject="rank 1", measured=text)


def note(code: str, text: str) -> Finding:
    return Finding(
        code=code,
        severity=Severity.NOTE,
        node="spark-1",
        subject="the set",
        measured=text,
    )


class Told:
    """A set that goes from state to state, a second each."""

    def __init__(self, boot: str = BOOT, earlier: Kept | None = None) -> None:
        self.incidents = Incidents("spark-1", boot)
        self.now = 1000.0
        if earlier is not None:
            self.incidents.resume(earlier, self.now)

    def goes(
        self,
        state: str,
        generation: int = 1,
        reason: Finding | None = None,
        **more: Any,
    ) -> None:
        self.now += 1
        self.incidents.take(View(at=self.now, state=state, generation=generation, reason=reason, **more))

    def starts(self, generation: int) -> None:
        for state in ("waiting", "preparing", "loading", "verifying"):
            self.goes(state, generation, note("set.x", state))

    @property
    def all(self) -> tuple[Incident, ...]:
        return self.incidents.kept.incidents


def test_a_lost_rank_is_one_incident_from_live_to_live() -> None:
    told = Told()
    told.starts(1)
    told.goes("live")
    assert not listed(told.all)
    tails = {"rank 0 on spark-1": ("serving",), "rank 1 on spark-2": ("step 7", "gone")}
    other = Finding(
        code="fabric.link-down",
        severity=Severity.WARNING,
        node="spark-2",
        subject="enp1s0f0np0",
    )
    told.goes(
        "recovering",
        1,
        fault(),
        tails=tails,
        evidence=(fault(), other, note("a.b", "no evidence")),
    )
    told.starts(2)
    told.goes("live", 2)
    (incident,) = told.all
    assert (incident.state, incident.generation, incident.at) == ("live", 1, 1006.0)
    assert incident.reason == fault()
    assert incident.evidence == (other,)
    assert incident.tails == tails
    assert incident.seconds_to_live == 5.0
    assert [step.what for step in incident.done] == [
        "ended all ranks",
        "waits: spark-1: the set: waiting. [set.x]",
        "every Spark checks itself",
        "starts all ranks",
        "asks for a first reply through all ranks",
        "live again as generation 2",
    ]


def test_failed_starts_belong_to_the_incident_that_lasts() -> None:
    told = Told()
    told.starts(1)
    told.goes("recovering", 1, fault())
    told.starts(2)
    told.goes("recovering", 2, fault("engine.nccl-error", "spark-1", "NCCL error 2"))
    assert len(told.all) == 1
    assert told.all[0].state == "verifying"
    assert any("a start failed while verifying: spark-1: rank 1: NCCL error 2" in s.what for s in told.all[0].done)
    told.starts(3)
    told.goes("live", 3)
    assert told.all[0].seconds_to_live == 10.0


def test_the_cause_that_is_heard_later_takes_its_place() -> None:
    told = Told()
    told.goes("live")
    mourning = fault("engine.peer-lost", "spark-2", "the store is gone")
    told.goes("recovering", 1, mourning)
    told.goes(
        "recovering",
        1,
        fault(node="spark-1"),
        tails={"rank 0 on spark-1": ("my last word",)},
    )
    assert told.all[0].reason == fault(node="spark-1")
    assert mourning in told.all[0].evidence
    assert told.all[0].tails["rank 0 on spark-1"] == ("my last word",)


def test_an_owners_stop_is_told_as_one() -> None:
    told = Told()
    told.goes("live")
    told.goes("stopping", 1, note("set.stopped", "stopped by the owner"))
    told.goes("waiting", 1, note("set.stopped", "stopped by the owner"))
    (incident,) = told.all
    assert incident.reason is not None
    assert incident.reason.code == "set.stopped"
    assert incident.done[0].what == "stops all ranks: stopped by the owner"
    assert told.incidents.open is not None


def test_a_set_that_fails_for_hours_keeps_its_first_and_last_steps() -> None:
    told = Told()
    for generation in range(1, 200):
        told.starts(generation)
        told.goes("recovering", generation, fault(text=f"time {generation}"))
    (incident,) = told.all
    assert len(incident.done) <= FIRST_DONE + LAST_DONE
    assert len(dump(told.incidents.kept)) < 100_000
    assert sum(step.times for step in incident.done if step.what == "starts all ranks") > 1


def test_a_start_refused_again_and_again_is_counted() -> None:
    told = Told()
    refused = fault("memory.below-estimate", "spark-2", "80.0 GiB")
    for generation in range(1, 50):
        told.goes("preparing", generation, refused)
        told.goes("recovering", generation, refused)
        told.goes("waiting", generation, refused)
    assert len(told.all[0].done) <= 6


def test_a_killed_daemon_is_an_incident_of_the_next_life() -> None:
    told = Told()
    told.goes("live", 4)
    again = Told(earlier=parse(dump(told.incidents.kept)))
    (incident,) = again.all
    assert incident.generation == 4
    assert incident.reason is not None
    assert incident.reason.code == "daemon.killed"
    again.starts(5)
    again.goes("live", 5)
    assert again.all[0].seconds_to_live == 5.0
    rebooted = Told(boot="boot-2", earlier=parse(dump(told.incidents.kept)))
    assert rebooted.all[0].reason is not None
    assert rebooted.all[0].reason.code == "host.rebooted"


def test_what_is_seen_elsewhere_stands_with_the_incident_it_explains_whichever_comes_first() -> None:
    told, first, second = Told(), fault("host.rebooted", text="boot 2"), fault("host.rebooted", text="boot 3")
    told.goes("live", 1)
    told.incidents.witness(first)
    told.goes("recovering", 1, fault())
    told.incidents.witness(second)
    assert told.incidents.witness(second) is False
    told.starts(2)
    told.goes("live", 2)
    (incident,) = told.all
    assert {first, second} <= set(incident.evidence)
    # what was seen before a set went live explains nothing that comes after
    told.goes("stopping", 2, note("set.stopped", "stopped by the owner"))
    told.goes("live", 3)
    told.goes("recovering", 3, fault())
    assert first not in told.all[-1].evidence


def test_a_stopped_daemon_is_not_told_as_killed() -> None:
    told = Told()
    told.goes("live")
    told.goes("stopping", 1, note("set.stopped", "stopped by the owner"))
    told.goes("waiting", 1, note("set.stopped", "stopped by the owner"))
    again = Told(earlier=told.incidents.kept)
    assert len(again.all) == 1
    again.starts(2)
    again.goes("live", 2)
    assert again.all[0].seconds_to_live is not None


def test_the_last_fifty_are_kept() -> None:
    told = Told()
    for generation in range(1, 80):
        told.goes("live", generation)
        told.goes("recovering", generation, fault())
    assert len(told.all) == MOST
    assert told.all[-1].generation == 79


def test_a_request_s_text_never_gets_into_the_history() -> None:
    told = Told()
    told.goes("live")
    line = 'bad request: {"messages": [{"role": "user", "content": "my secret"}]}'
    told.goes(
        "recovering",
        1,
        fault(),
        tails={"rank 0 on spark-1": ("a step", line, "x" * 5000)},
    )
    assert b"my secret" not in dump(told.incidents.kept)
    assert told.all[0].tails["rank 0 on spark-1"][0] == "a step"
    assert len(told.all[0].tails["rank 0 on spark-1"][2]) == 300


STATES = st.sampled_from(
    [
        "waiting",
        "preparing",
        "loading",
        "verifying",
        "live",
        "recovering",
        "stopping",
        "failed",
    ]
)


@given(st.lists(st.tuples(STATES, st.integers(0, 3)), max_size=80), st.integers(0, 80))
def test_any_course_and_any_death_keep_a_history_that_makes_sense(course: list[tuple[str, int]], dies: int) -> None:
    told = Told()
    for at, (state, generation) in enumerate(course):
        if at == dies:
            told = Told(earlier=parse(dump(told.incidents.kept)))
        told.goes(state, generation, None if state == "live" else fault())
        lasting = [one for one in told.all if one.seconds_to_live is None]
        assert len(lasting) <= 1
        assert lasting == [] or lasting == [told.all[-1]]
        assert not (state == "live" and lasting), "nothing lasts while the set is live"
        assert (told.incidents.kept.live is not None) == (state == "live")
        assert parse(dump(told.incidents.kept)) == told.incidents.kept
    assert len(listed(told.all)) == len(told.all) <= MOST


@given(st.binary(max_size=200))
def test_damaged_histories_are_refused_or_read(content: bytes) -> None:
    with contextlib.suppress(ValueError):
        parse(content)


def test_a_damaged_incident_costs_only_itself() -> None:
    kept = parse(b'{"incidents": [{"at": "x"}, {"at": 1, "state": "live", "generation": 2}], "live": 7}')
    assert [one.generation for one in kept.incidents] == [2]


async def _written(kept: History) -> None:
    task = asyncio.create_task(kept.run())
    try:
        await kept.settled()
    finally:
        task.cancel()


async def test_the_history_lies_on_the_disk_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "history.json"
    first = History(path, "spark-1", BOOT)
    await first.load()
    first.take(View(at=1, state="live", generation=1))
    first.take(View(at=2, state="recovering", generation=1, reason=fault()))
    await _written(first)
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["history.json"]
    again = History(path, "spark-1", BOOT)
    await again.load()
    assert again.incidents.kept.incidents == first.incidents.kept.incidents


async def test_a_damaged_history_is_put_aside(tmp_path: Path) -> None:
    path = tmp_path / "history.json"
    path.write_bytes(b"{half of")
    kept = History(path, "spark-1", BOOT)
    await kept.load()
    assert kept.incidents.kept == Kept()
    assert (tmp_path / "history.json.unreadable").read_bytes() == b"{half of"


async def test_a_disk_that_refuses_is_said_and_stops_nothing(tmp_path: Path) -> None:
    kept = History(tmp_path / "gone" / "history.json", "spark-1", BOOT)
    await kept.load()
    kept.take(View(at=1, state="live", generation=1))
    assert not await kept._write()
    assert kept.trouble is not None
    assert "No such file" in kept.trouble.measured
    (tmp_path / "gone").mkdir()
    assert await kept._write()
    assert kept.trouble is None


async def test_a_disk_that_never_answers_does_not_hold_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(_work: object, deadline: float) -> None:
        raise TimeoutError

    monkeypatch.setattr(processes, "aside", never)
    kept = History(tmp_path / "history.json", "spark-1", BOOT)
    await kept.load()
    kept.take(View(at=1, state="live", generation=1))
    assert not await kept._write()
    assert kept.trouble is not None
    assert f"{history.DISK_SECONDS:g} s" in kept.trouble.measured
