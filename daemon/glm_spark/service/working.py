"""A worker's Spark: the session with the leader, told to systemd, the journal and the API."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from glm_spark.api.source import Readiness, Refused
from glm_spark.cluster import tell
from glm_spark.cluster.lease import boottime
from glm_spark.cluster.worker import Worker
from glm_spark.config.model import Config
from glm_spark.engine.pull import PULLING, TAKING
from glm_spark.fabric.standing import dark
from glm_spark.finding import Finding, Severity
from glm_spark.host import memory
from glm_spark.service.leading import reason_text
from glm_spark.service.pulse import Pulse
from glm_spark.service.station import Station
from glm_spark.status import Status

log = logging.getLogger(__name__)

CABLE_SECONDS = 0.25


class Working:
    """Fulfils api.source.Source on a worker."""

    def __init__(self, station: Station, pulse: Callable[[], Pulse]) -> None:
        self._station = station
        self._pulse = pulse
        self._since = time.time()
        self._said = self._shown = ""
        self._hurried = False
        timeouts = station.config.timeouts
        self.worker = Worker(
            station.self(),
            station.post,
            station.token,
            station.config.leader.name,
            timeouts.suspect_seconds,
            timeouts.lease_seconds,
            on_change=self._say,
        )

    def changed(self) -> None:
        self.worker.changed()
        self._say()

    def reload(self, config: Config) -> None:
        """Takes over a changed configuration. The next session compares the settings again."""
        self.worker.forget()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.worker.run(), name="worker")
            tasks.create_task(self._watch_cable(), name="cable")

    async def _watch_cable(self) -> None:
        """Ends a rank whose cable is out for longer than is borne, without waiting for the lease."""
        since: float | None = None
        while True:
            await asyncio.sleep(CABLE_SECONDS)
            now, hold = boottime(), self._station.config.fabric.hold_seconds
            if not self._station.post.occupied or not self._dark():
                since = None
                continue
            since = now if since is None else since
            if now - since >= hold:
                since = None
                await self.worker.abandon(f"no carrier on the cable for {hold:g} s")

    def _dark(self) -> bool:
        station = self._station
        inventory = station.watcher.inventory
        return inventory is not None and dark(station.place.me, inventory, station.post.links)

    def _told(self) -> Status | None:
        """The leader's last word, which this Spark knows better than when its own cable is out."""
        told = self.worker.told()
        if told is None or not told.ready or not self._dark():
            return told
        cut = Finding(
            code="fabric.carrier-lost",
            severity=Severity.ERROR,
            node=self._station.place.me,
            subject="the cable",
            measured="no carrier on any of its rails",
            wanted="a carrier",
            fix="Plug the cable in at both ends.",
        )
        return told.model_copy(update={"ready": False, "reason": cut})

    async def leave(self, drain: bool) -> None:
        """Asks the leader to stop the set, bounded; without a leader this Spark's rank is ended by the post."""
        post, limit = self._station.post, self._station.leaving_seconds(drain)
        post.leaving = True
        self.worker.changed()
        if not self.worker.connected:
            return
        try:
            async with asyncio.timeout(limit):
                while post.occupied and self.worker.connected and not self._hurried:
                    await self.worker.moved()
        except TimeoutError:
            log.warning("the leader did not stop the set within %.0f s; ending this Spark's rank", limit)

    def hurry(self) -> None:
        """Who asked for the stop does not want to wait for running requests."""
        self._hurried = True
        self.worker.changed()

    def healthy(self) -> bool:
        return True

    def headline(self) -> str:
        report = self._station.post.report
        told = self._told()
        if self.worker.reason is not None and told is None:
            return f"{report.state}: {self.worker.reason}"
        if told is None:
            return f"{report.state}, session with {self._station.config.leader.name}"
        return f"{report.state}; the set is {told.state}{reason_text(told.reason)}"

    # -- Source ------------------------------------------------------------------------------------------------

    def readiness(self) -> Readiness:
        told = self._told()
        if told is None:
            reason = self.worker.reason
            return Readiness(live=False, state="unknown", code=reason.code if reason else "set.unknown", reason=reason)
        live = told.ready and self.worker.fresh()
        code = "live" if live else (told.reason.code if told.reason else "cluster.suspect")
        return Readiness(live=live, state=told.state, code=code, reason=None if live else told.reason)

    def status(self) -> Status:
        station = self._station
        return tell.worker_status(
            station.config,
            station.place.me,
            self._told(),
            station.post.report,
            self.worker.reason,
            self._since,
            memory.read(),
        )

    def restarts(self) -> int:
        return 0  # the leader counts

    def incidents(self) -> list[dict[str, Any]]:
        return []

    async def restart(self) -> Refused | None:
        return self._ask_the_leader("restart")

    async def stop(self) -> Refused | None:
        return self._ask_the_leader("stop")

    async def sync(self) -> Refused | None:
        return self._ask_the_leader("weights sync")

    async def check(self) -> dict[str, Any]:
        findings = await self._station.check()
        return {"findings": [finding.model_dump(mode="json") for finding in findings]}

    async def plan(self) -> dict[str, Any]:
        finding = self._ask_the_leader("plan").findings[0]
        return {"links": [], "ranks": [], "findings": [finding.model_dump(mode="json")]}

    def _ask_the_leader(self, verb: str) -> Refused:
        leader = self._station.config.leader.name
        finding = Finding(
            code="cluster.ask-the-leader",
            severity=Severity.ERROR,
            node=self._station.place.me,
            subject=f"glm-spark {verb}",
            measured="this Spark is a worker",
            wanted="the leader",
            fix=f"On {leader}: glm-spark {verb}.",
        )
        return Refused((finding,))

    def _say(self) -> None:
        """One line in the journal for each change of what this Spark does."""
        line = self._line()
        if line != self._said:
            self._said = line
            self._since = time.time()
            log.info("%s", line, extra={"generation": self._station.post.report.generation})
        if (headline := self.headline()) != self._shown:
            self._shown = headline
            self._pulse().changed()

    def _line(self) -> str:
        """The headline without what changes all the time."""
        told = self.worker.told()
        if told is not None and told.reason is not None and told.reason.code == "set.weights":
            return f"{self._station.post.report.state}; the set is {told.state}: weights are being brought"
        if told is not None and told.reason is not None and told.reason.code in (PULLING, TAKING):
            where = told.reason.node
            return f"{self._station.post.report.state}; the set is {told.state}: {where} is being brought the image"
        return self.headline()
