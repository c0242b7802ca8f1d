"""The leader: peers, its own post and the engine's witness on one side, the course on the other."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from glm_spark.api.gate import Gate
from glm_spark.api.source import Readiness
from glm_spark.cluster.course import Course
from glm_spark.cluster.lease import Freshness, boottime
from glm_spark.cluster.peer import Peer
from glm_spark.cluster.post import Post
from glm_spark.cluster.proofs import Proofs
from glm_spark.cluster.witness import Witness
from glm_spark.cluster.worker import Self
from glm_spark.cluster.world import Evidence, Orders, Spark, World
from glm_spark.config import agreement
from glm_spark.config.model import Config
from glm_spark.engine.spec import Link
from glm_spark.fabric import links
from glm_spark.fabric.inventory import Inventory
from glm_spark.fabric.rails import RailFault
from glm_spark.fabric.standing import Standing, standing
from glm_spark.finding import Finding, Severity
from glm_spark.status import LinkStatus

log = logging.getLogger(__name__)

MEMORY_STEP_GIB = 8.0
TICK_SECONDS = 0.25  # timers of the course (back-off, drain, a preparing that takes too long) are this exact


@dataclass(frozen=True, slots=True)
class Crew:
    """Who works for the leader."""

    peers: tuple[Peer, ...]
    post: Post
    witness: Witness
    gate: Gate
    proofs: Proofs | None = None  # None: no rail is proven (transport "socket")


class Leader:
    """Runs the course: each change anywhere becomes one step, each step's orders are given at once."""

    def __init__(
        self,
        config: Callable[[], Config],
        me: Self,
        crew: Crew,
        obstacles: Callable[[], tuple[Finding, ...]],
        on_step: Callable[[Course], None],
    ) -> None:
        self._config = config
        self._me = me
        self._crew = crew
        self._obstacles = obstacles
        self._stepped = asyncio.Event()
        self._on_step = on_step
        self._changed = asyncio.Event()
        self._drain: asyncio.Task[bool] | None = None
        self._hurried = False
        self._fabric: tuple[dict[str, Inventory], links.Found] | None = None
        self._settings: object = None
        self._at_start: tuple[LinkStatus, ...] | None = None
        self._rails: tuple[Link, ...] = ()  # that `_at_start` is about
        self._settings_hash = 0
        self.wanted: Literal["run", "stop"] = "run"
        self.course = Course(leader=crew.post.node, since=boottime())
        self.world = self._look()

    def changed(self) -> None:
        self._changed.set()

    def restart(self) -> None:
        self.wanted = "run"
        self.course.restart(boottime(), self._config().stop.drain_seconds)
        self._changed.set()

    def stop(self) -> None:
        self.wanted = "stop"
        self._changed.set()

    def hurry(self) -> None:
        """No stop waits for running requests any more."""
        self._hurried = True
        self._changed.set()

    @property
    def at_rest(self) -> bool:
        """Nothing runs and nothing will until the owner says so."""
        return self.course.state == "waiting" and self.wanted == "stop" and not self._crew.post.occupied

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for peer in self._crew.peers:
                tasks.create_task(peer.run(), name=f"peer {peer.node.name}")
            tasks.create_task(self._crew.witness.run(), name="witness")
            tasks.create_task(self._steer(), name="course")
            if self._crew.proofs is not None:
                tasks.create_task(self._crew.proofs.run(), name="proofs")

    async def _steer(self) -> None:
        while True:
            self._changed.clear()
            self.advance()
            try:
                async with asyncio.timeout(TICK_SECONDS):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def advance(self) -> None:
        """One step: look, decide, order, tell."""
        self.world = self._look()
        recovery = self._config().recovery
        self.course.most_failures, self.course.window_seconds = recovery.failures, recovery.window_seconds
        self._obey(self.course.step(self.world))
        self._on_step(self.course)
        self._stepped.set()
        self._stepped = asyncio.Event()

    async def stepped(self) -> None:
        """Returns after the next step."""
        await self._stepped.wait()

    def ready(self) -> bool:
        """Judged now, not when the last step was: a beat that did not come is no event."""
        return self.course.ready(self._look())

    # -- looking -----------------------------------------------------------------------------------------------

    def _look(self) -> World:
        config = self._config()
        sparks = (self._myself(), *(_seen(peer) for peer in self._crew.peers))
        found = self._found(config, sparks)
        witness = self._crew.witness
        return World(
            now=boottime(),
            sparks=sparks,
            links=found.links,
            obstacles=(*_errors(self._obstacles()), *self._differences(sparks), *_errors(found.findings)),
            wanted=self.wanted,
            served=witness.served,
            answer=witness.answer,
            silence=self._silence(config, sparks),
            stall=witness.stall,
            evidence=self._evidence(config, sparks),
            proof=self._proof(),
            cable=self._cable(config, sparks).lost,
            hold_seconds=config.fabric.hold_seconds,
            drained=self._drained(),
            drain_seconds=config.stop.drain_seconds,
        )

    def _myself(self) -> Spark:
        return Spark(
            name=self._crew.post.node,
            up=True,
            freshness=Freshness.FRESH,
            opening=self._me.opening(),
            hello=self._me.hello(),
            report=self._crew.post.report,
            inventory=self._me.inventory(),
        )

    def found(self) -> links.Found:
        """The links as the latest inventories show them."""
        return self._found(self._config(), self.world.sparks)

    def _found(self, config: Config, sparks: tuple[Spark, ...]) -> links.Found:
        inventories = {spark.name: spark.inventory for spark in sparks if spark.inventory is not None}
        known = self._fabric
        if (
            known is None
            or known[0].keys() != inventories.keys()
            or any(known[0][n] is not i for n, i in inventories.items())
        ):
            known = self._fabric = (inventories, links.find(config, inventories))
        return known[1]

    def _differences(self, sparks: tuple[Spark, ...]) -> tuple[Finding, ...]:
        mine = self._me.hello().settings
        found: list[Finding] = []
        for spark in sparks[1:]:
            if spark.hello is not None and spark.hello.settings != mine:
                found.extend(agreement.differences(mine, spark.hello.settings, sparks[0].name, spark.name))
        return tuple(found)

    def _silence(self, config: Config, sparks: tuple[Spark, ...]) -> Finding | None:
        """A load in which no rank made progress for too long. One that moves is enough: the others wait for it."""
        reports = [spark.report for spark in sparks if spark.report and spark.report.rank]
        views = [report.rank for report in reports if report.rank]
        if not views or any(view.state == "ready" and view.rank == 0 for view in views):
            return None
        silent = min(report.silent_seconds for report in reports)
        if silent < config.timeouts.silence_seconds:
            return None
        phases = ", ".join(f"rank {view.rank} in {view.phase or 'starting'}" for view in views)
        return Finding(
            code="engine.load-silent",
            severity=Severity.ERROR,
            node=sparks[0].name,
            subject="the load",
            measured=f"no progress for {silent:.0f} s: {phases}",
            wanted=f"progress within {config.timeouts.silence_seconds:.0f} s",
            fix="See the ranks' last lines in journalctl -u glm-spark; timeouts.silence_seconds allows more.",
        )

    def _proof(self) -> tuple[RailFault, ...] | None:
        """What this start's exchanges broke on; None as long as a rail of it was not proven."""
        proofs = self._crew.proofs
        if proofs is None or self._config().fabric.transport != "roce" or self.course.state != "preparing":
            return ()
        return proofs.faults(self.course.starts, self.course.links)

    def _cable(self, config: Config, sparks: tuple[Spark, ...]) -> Standing:
        """The running set's rails against how they were at its start; nothing is judged while no set runs."""
        if self.course.state not in ("preparing", "loading", "verifying", "live"):
            self._at_start = None
            return Standing()
        inventories = {spark.name: spark.inventory for spark in sparks if spark.inventory is not None}
        if self._at_start is None or self._rails != self.course.links:
            self._rails = self.course.links
            self._at_start = links.link_status(config, inventories, self.course.links)
        return standing(config, inventories, self.course.links, self._at_start)

    def rail_warnings(self) -> tuple[Finding, ...]:
        return self._cable(self._config(), self.world.sparks).warnings

    def _evidence(self, config: Config, sparks: tuple[Spark, ...]) -> Evidence:
        settings = self._me.hello().settings
        if self._settings is not settings:
            self._settings = settings
            self._settings_hash = hash(json.dumps(settings, sort_keys=True))
        memory = [spark.report.memory for spark in sparks if spark.report and spark.report.memory]
        return Evidence(
            configuration=self._settings_hash,
            boots=tuple(spark.opening.boot_id for spark in sparks if spark.up and spark.opening),
            carriers=tuple(
                (spark.name, netdev.name)
                for spark in sparks
                if spark.inventory is not None
                for netdev in spark.inventory.netdevs
                if netdev.carrier
            ),
            memory=tuple(int(one.available_gib // MEMORY_STEP_GIB) for one in memory),
        )

    def _drained(self) -> bool:
        if self._hurried:
            return True
        if self._drain is None or not self._drain.done():
            return False
        self._drain.result()  # an error in draining is the daemon's own and ends it
        return True

    # -- ordering ----------------------------------------------------------------------------------------------

    def _obey(self, orders: Orders) -> None:
        own, *others = orders.goals
        self._crew.post.pursue(own)
        for peer, goal in zip(self._crew.peers, others, strict=True):
            peer.pursue(goal)
        self._crew.witness.ask(orders.ask, self.course.generation)
        if orders.prove and self._crew.proofs is not None:
            self._crew.proofs.want(self.course.starts, self.course.links)
        self._set_gate(orders.gate)

    def _set_gate(self, order: Literal["open", "pause", "close", "drain"]) -> None:
        gate, readiness = self._crew.gate, self.readiness()
        if order == "drain":
            if self._drain is None:
                seconds = self._config().stop.drain_seconds
                self._drain = asyncio.create_task(gate.drain(seconds), name="drain")
                self._drain.add_done_callback(lambda _task: self._changed.set())
            return
        self._drain = None
        match order:
            case "open":
                gate.open(f"http://127.0.0.1:{self._config().engine.http_port}")
            case "pause":
                gate.pause(readiness)
            case "close":
                gate.close(readiness)

    def readiness(self) -> Readiness:
        live = self.ready()
        reason = self.course.reason
        code = "live" if live else (reason.code if reason else "set.unknown")
        return Readiness(live=live, state=self.course.state, code=code, reason=None if live else reason)


def _seen(peer: Peer) -> Spark:
    known = peer.known
    return Spark(
        name=peer.node.name,
        up=known.up,
        freshness=peer.freshness(),
        opening=known.opening,
        hello=known.hello,
        report=known.report,
        inventory=known.inventory,
        problem=known.problem,
        gone=known.gone,
    )


def _errors(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    return tuple(finding for finding in findings if finding.severity is Severity.ERROR)
