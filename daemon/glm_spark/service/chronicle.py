"""The leader's memory and voice: every step of the course goes into the history, trouble to the owner's program."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable
from typing import Any

from glm_spark.cluster.course import Course
from glm_spark.cluster.world import Spark, World
from glm_spark.finding import Finding
from glm_spark.service import alerts, incidents
from glm_spark.service.alerts import Alerts
from glm_spark.service.history import DISK_SECONDS, History
from glm_spark.service.hook import HookRunner
from glm_spark.service.station import Station
from glm_spark.status import Status


class Chronicle:
    def __init__(self, station: Station) -> None:
        self._station = station
        self._history = History(station.place.state / "history.json", station.place.me, station.boot_id)
        self._alerts = Alerts()
        self._hook = HookRunner(lambda: station.config.hook)
        self._seen: tuple[str, Finding | None] | None = None

    async def load(self) -> None:
        """Before the first step."""
        await self._history.load()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._history.run(), name="history")
            tasks.create_task(self._hook.run(), name="hook")

    async def close(self) -> None:
        """Waits until the last incident is on the disk, no longer than a disk may take."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DISK_SECONDS):
                await self._history.settled()

    def listed(self) -> list[dict[str, Any]]:
        return list(incidents.listed(self._history.incidents.kept.incidents))

    def trouble(self) -> tuple[Finding, ...]:
        return (self._history.trouble,) if self._history.trouble is not None else ()

    def stepped(self, course: Course, world: World) -> None:
        """After every step; the ranks' last words are looked at only where they are history."""
        now = (course.state, course.reason)
        if now == self._seen and course.state not in ("recovering", "stopping", "failed"):
            return
        self._seen = now
        self._history.take(
            incidents.View(
                at=time.time(),
                state=course.state,
                generation=course.generation,
                reason=course.reason,
                evidence=tuple(_evidence(world.sparks)),
                tails=_tails(world.sparks, course.generation),
            )
        )

    def witnessed(self, finding: Finding) -> None:
        """Something that explains the trouble there is, seen outside the course."""
        self._history.witness(finding)

    def told(self, status: Status) -> None:
        """The set's status as it is told to the other Sparks: at every change and every few seconds."""
        hook = self._station.config.hook
        if not hook.command:
            return
        view = alerts.View(
            cluster=status.cluster,
            node=status.node,
            state=status.state,
            ready=status.ready,
            degraded=status.degraded,
            reason=status.reason,
            generation=status.generation,
            since=status.since,
        )
        event = self._alerts.event(view, time.time(), hook.repeat_seconds)
        if event is not None:
            self._hook.tell(event)


def _evidence(sparks: Iterable[Spark]) -> Iterable[Finding]:
    """What every Spark found of itself and of its rank."""
    for spark in sparks:
        if spark.problem is not None:
            yield spark.problem
        if spark.report is not None:
            yield from spark.report.findings
            yield from spark.rank.findings if spark.rank is not None else ()


def _tails(sparks: Iterable[Spark], generation: int) -> dict[str, tuple[str, ...]]:
    ranks = [(spark.name, spark.rank) for spark in sparks]
    return {
        f"rank {rank.rank} on {name}": rank.tail
        for name, rank in ranks
        if rank is not None and rank.generation == generation and rank.tail
    }
