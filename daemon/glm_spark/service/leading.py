"""The leader's Spark: the course with its peers and the endpoint, told to systemd, the journal and the API."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable
from typing import Any

from glm_spark.api.front import BindFault, Front
from glm_spark.api.gate import Gate
from glm_spark.api.source import Readiness, Refused
from glm_spark.cluster import tell
from glm_spark.cluster.course import Course
from glm_spark.cluster.leader import Crew, Leader
from glm_spark.cluster.peer import Peer
from glm_spark.cluster.proofs import Proofs
from glm_spark.cluster.witness import Witness
from glm_spark.config.model import Config, Node
from glm_spark.engine import tensorfold
from glm_spark.engine.spec import Link
from glm_spark.fabric import links
from glm_spark.fabric.inventory import Inventory
from glm_spark.fabric.proving import Partner, prove
from glm_spark.fabric.verdict import RailProof, said
from glm_spark.finding import Finding, Severity
from glm_spark.host import memory
from glm_spark.service import renewal
from glm_spark.service.chronicle import Chronicle
from glm_spark.service.provisions import Supply
from glm_spark.service.pulse import Pulse
from glm_spark.service.station import Station
from glm_spark.status import Status

log = logging.getLogger(__name__)

BIND_AGAIN_SECONDS = 2.0
TELL_SECONDS = 2.0  # how old a live set's figures may be on a worker
CHECK_SECONDS = 30.0  # above every check's own deadline


class Leading:
    """Fulfils api.source.Source on the leader."""

    def __init__(self, station: Station, pulse: Callable[[], Pulse]) -> None:
        self._station = station
        self._pulse = pulse
        self.gate = Gate()
        self.front = Front(station.config, self.gate, self)
        self._front_fault: Finding | None = None
        self._chronicle = Chronicle(station)
        self._since = time.time()
        self._told: tuple[str, str | None] = ("", None)
        self._told_at = 0.0
        self._stepped_at = time.monotonic()
        self._restarting = asyncio.Lock()  # one at a time is checked for
        self._leaving = False
        me = station.self()
        config = station.config
        peers = tuple(self._peer(node) for node in config.node[1:])
        witness = Witness(
            node=station.place.me,
            base_url=f"http://127.0.0.1:{config.engine.http_port}",
            config=lambda: station.config,
            gate=self.gate,
            on_news=self.changed,
        )
        ways = [(peer, functools.partial(self._route, peer.node)) for peer in peers]
        self._supply = Supply(station, ways)
        self._proofs = Proofs(self._prove, self.changed)
        crew = Crew(peers, station.post, witness, self.gate, self._proofs)
        self._witness = witness
        self._peers = peers
        self.leader = Leader(lambda: station.config, me, crew, self._obstacles, self._stepped)
        station.peers = self._inventories
        station.on_inventory.append(lambda _inventory: self._rewire())

    def changed(self) -> None:
        self.leader.changed()
        self._supply.changed()

    def reload(self, config: Config) -> None:
        """Takes over a changed configuration. The next session compares the settings again."""
        self.front.reload(config)
        for peer in self._peers:
            peer.forget()
        self.changed()

    async def run(self) -> None:
        await self._chronicle.load()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._chronicle.run(), name="chronicle")
            tasks.create_task(self.leader.run(), name="leader")
            tasks.create_task(self._serve(), name="endpoint")
            tasks.create_task(self._supply.run(), name="weights")

    async def leave(self, drain: bool) -> None:
        """Stops the set everywhere, rank 0 first; returns when nothing runs or the time is up."""
        limit = self._station.leaving_seconds(drain) + 5
        self._leaving = True
        self.leader.stop()
        try:
            async with asyncio.timeout(limit):
                while not self.leader.at_rest:
                    await self.leader.stepped()
        except TimeoutError:
            log.error("the set did not stop within %.0f s; ending this Spark's rank", limit)
        await self._chronicle.close()
        await self.front.stop()

    def hurry(self) -> None:
        """Who asked for the stop does not want to wait for running requests."""
        self.leader.hurry()

    def healthy(self) -> bool:
        """The course moves: it is stepped four times a second."""
        return time.monotonic() - self._stepped_at < 10.0

    def headline(self) -> str:
        """One line for systemd's STATUS=."""
        course = self.leader.course
        if self.leader.ready():
            return f"live: {self._station.config.model.name} on port {self._station.config.api.port}"
        return f"{course.state}{reason_text(course.reason)}"

    # -- Source ------------------------------------------------------------------------------------------------

    def readiness(self) -> Readiness:
        return self.leader.readiness()

    def status(self) -> Status:
        world = self.leader.world
        known = tell.Known(
            course=self.leader.course,
            sparks=world.sparks,
            found=self.leader.found(),
            ready=self.leader.ready(),
            since=self._since,
            memory=memory.read(),
            health=self._witness.health,
            tokens_per_second=self._witness.tokens_per_second,
            warnings=(
                *self.front.findings(),
                *self._chronicle.trouble(),
                *self._station.watcher.findings,
                *self.leader.rail_warnings(),
            ),
        )
        return tell.leader_status(self._station.config, known)

    def restarts(self) -> int:
        return max(0, self.leader.course.starts - 1)

    def incidents(self) -> list[dict[str, Any]]:
        return self._chronicle.listed()

    async def restart(self) -> Refused | None:
        """With the file as it is on disk now. A set that runs goes on when it could not be started again."""
        async with self._restarting:
            read = await self._station.on_disk.read()
            if self._leaving:
                return Refused((renewal.leaving(self._station.place.me),))
            if self.leader.course.state in ("loading", "verifying", "live"):
                against = await self._against_a_restart(read)
                if self.leader.wanted == "stop":
                    against = (renewal.overtaken(self._station.place.me),)
                if against:
                    return Refused(against)
            if isinstance(read, Config):
                self._station.take_over(read)
            else:
                log.error("the changed configuration is not used: %s", read, extra={"code": read.code})
            self.leader.restart()
            return None

    async def _against_a_restart(self, read: Config | Finding) -> tuple[Finding, ...]:
        if isinstance(read, Finding):
            return (read,)
        new = renewal.then(self._station.config, read)
        differ = renewal.differences(new, self.leader.world.sparks)
        judged = await self._station.outfit.against(new)
        # Beside a running set no check touches its rails, and what its own ranks hold is not in the way.
        checked = await self._checks(self.leader.course.links)
        return renewal.errors((*differ, *judged, *checked, *self.leader.found().findings))

    async def stop(self) -> Refused | None:
        self.leader.stop()
        return None

    async def sync(self) -> Refused | None:
        self._supply.sync()
        return None

    async def check(self) -> dict[str, Any]:
        """This Spark's checks, the other Sparks' own, what the links show of both ends, and each rail's proof.

        The rails of a set that runs or starts are not disturbed: what its start proved is told.
        """
        found = self.leader.found()
        idle = self.leader.course.state in ("waiting", "failed") and not self._station.post.occupied
        rails = found.links if idle else self.leader.course.links
        findings = await self._checks(rails)
        proofs: tuple[RailProof, ...] = ()
        if self._station.config.fabric.transport == "roce":
            proofs = await self._proofs.look(rails) if idle else self._proofs.told()
        findings += [*found.findings, *(proof.finding for proof in proofs if proof.finding is not None)]
        status = links.link_status(self._station.config, self._inventories(), rails)
        return {
            "findings": [finding.model_dump(mode="json") for finding in dict.fromkeys(findings)],
            "links": [link.model_dump(mode="json") for link in status],
            "proofs": [proof.model_dump(mode="json") for proof in proofs],
        }

    async def _checks(self, rails: tuple[Link, ...]) -> list[Finding]:
        async with asyncio.TaskGroup() as tasks:
            own = tasks.create_task(self._station.check(rails), name="own checks")
            others = [tasks.create_task(_ask(peer), name=f"checks of {peer.node.name}") for peer in self._peers]
        return [*own.result(), *(finding for other in others for finding in other.result())]

    async def _prove(self, rails: tuple[Link, ...]) -> tuple[RailProof, ...]:
        """RDMA exchanges over these rails, each between the two Sparks at its ends."""
        inventories = self._inventories()
        partners = {peer.node.name: Partner(peer.exchange, inventories.get(peer.node.name)) for peer in self._peers}
        me = self._station.place.me
        partners[me] = Partner(self._station.exchanges.obey, inventories.get(me))
        proofs = await prove(rails, partners)
        for proof in proofs:
            log.log(logging.INFO if proof.verdict == "fine" else logging.WARNING, "%s", said(proof))
        return proofs

    async def plan(self) -> dict[str, Any]:
        """Every rank as it would be started now, from what each Spark last said of itself."""
        config = self._station.config
        found = self.leader.found()
        inventories = self._inventories()
        findings = list(found.findings)
        ranks = []
        for rank, node in enumerate(config.node):
            inventory = inventories.get(node.name)
            if inventory is None:
                continue
            rails, faults = links.local_rails(config, node.name, inventory, found.links)
            findings.extend(faults)
            try:
                master = links.master_address(config, node.name, found.links, inventory)
                netdev = links.bootstrap_netdev(config, node.name, inventory, rails)
            except links.Unresolved as unresolved:
                findings.append(unresolved.finding)
                continue
            spec = tensorfold.rank_spec(config, node.name, 0, rails, master, netdev, self.leader.course.variant)
            ranks.append(
                {"node": node.name, "rank": rank, "argv": list(spec.argv), "environment": dict(spec.environment)}
            )
        status = links.link_status(config, inventories, found.links)
        return {
            "links": [link.model_dump(mode="json") for link in status],
            "ranks": ranks,
            "findings": [finding.model_dump(mode="json") for finding in findings],
        }

    # -- the world's side --------------------------------------------------------------------------------------

    def _peer(self, node: Node) -> Peer:
        station, timeouts = self._station, self._station.config.timeouts
        return Peer(
            node,
            station.config.control.port,
            station.self(),
            station.token,
            timeouts.suspect_seconds,
            timeouts.lease_seconds,
            route=lambda: self._route(node),
            on_change=self.changed,
            on_reboot=self._chronicle.witnessed,
        )

    def _route(self, node: Node) -> links.Dial | Finding:
        """The way to a worker as the kernel would go now."""
        station = self._station
        inventory = station.watcher.inventory
        if inventory is None:
            return next(iter(station.watcher.findings), _unread(station.place.me))
        return links.dial(station.config, station.place.me, inventory, node)

    def _inventories(self) -> dict[str, Inventory]:
        return {spark.name: spark.inventory for spark in self.leader.world.sparks if spark.inventory is not None}

    def _rewire(self) -> None:
        for peer in self._peers:
            peer.wake()
        self.changed()

    def _obstacles(self) -> tuple[Finding, ...]:
        faults = [self._front_fault] if self._front_fault else []
        return (*faults, *self._station.watcher.findings)

    async def _serve(self) -> None:
        """Keeps the endpoint bound. A taken port is mended from outside: it is tried again and shown meanwhile."""
        while True:
            try:
                await self.front.start()
            except BindFault as fault:
                if fault.finding != self._front_fault:
                    log.error("%s", fault.finding, extra={"code": fault.finding.code})
                self._front_fault = fault.finding
                self.changed()
                await asyncio.sleep(BIND_AGAIN_SECONDS)
                continue
            self._front_fault = None
            self.changed()
            return

    def _stepped(self, course: Course) -> None:
        self._stepped_at = time.monotonic()
        self._chronicle.stepped(course, self.leader.world)
        now = (course.state, course.reason.code if course.reason else None)
        if now != self._told:
            self._announce(course)
        if now != self._told or time.monotonic() - self._told_at > TELL_SECONDS:
            self._told_at = time.monotonic()
            status = self.status()
            self._chronicle.told(status)
            for peer in self._peers:
                peer.tell(status, at_once=now != self._told)
        self._told = now

    def _announce(self, course: Course) -> None:
        """One line an event in the journal, READY=1 at the first LIVE."""
        doubted, was_doubted = course.reason is not None, self._told[1] is not None
        if course.state != self._told[0] or (course.state == "live" and doubted != was_doubted):
            self._since = time.time()
        extra = {"generation": course.generation, "code": course.reason.code if course.reason else course.state}
        config = self._station.config
        if course.state == "live" and course.reason is None and self._told[0] != "live":
            log.info("%s is now LIVE! on port %d", config.model.name, config.api.port, extra=extra)
            self._pulse().ready()
        else:
            log.log(_level(course), "%s", self.headline(), extra=extra)
        self._pulse().changed()


async def _ask(peer: Peer) -> tuple[Finding, ...]:
    """A worker's own checks, or why they cannot be had."""
    if peer.known.problem is not None:
        return (peer.known.problem,)
    try:
        return await peer.check(CHECK_SECONDS)
    except TimeoutError:
        return (
            Finding(
                code="preflight.no-answer",
                severity=Severity.UNKNOWN,
                node=peer.node.name,
                subject="its own checks",
                measured=f"no answer within {CHECK_SECONDS:g} s",
                wanted="its findings",
                fix=f"Run glm-spark check on {peer.node.name}.",
            ),
        )


def reason_text(reason: Finding | None) -> str:
    """`: why`, shorter for what is no fault."""
    if reason is None:
        return ""
    return f": {reason.measured}" if reason.severity is Severity.NOTE else f": {reason}"


def _level(course: Course) -> int:
    reason = course.reason
    if reason is None or reason.severity is Severity.NOTE:
        return logging.INFO
    return logging.ERROR if course.state in ("recovering", "failed") else logging.WARNING


def _unread(me: str) -> Finding:
    return Finding(
        code="fabric.not-read",
        severity=Severity.ERROR,
        node=me,
        subject="this Spark's netdevs",
        measured="not read yet",
        wanted="a reading",
        fix="Wait a moment; if this stays, see journalctl -u glm-spark.",
    )
