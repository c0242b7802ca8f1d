"""The set's course from waiting to live and back. Pure: the world and the time go in, orders come out.

A generation lives and dies whole. Whatever ends it, every rank ends before the next generation begins.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from glm_spark.cluster.lease import Freshness
from glm_spark.cluster.protocol import Goal, Hello, Opening, Report
from glm_spark.engine.spec import Link, Variant
from glm_spark.fabric.inventory import Inventory
from glm_spark.finding import Finding, Severity
from glm_spark.status import LeaderState

PREPARE_SECONDS = 90.0  # every check has a deadline of its own below this
RECHECK_SECONDS = 5.0  # a start that preflight refused is tried again after this
BACKOFF_SECONDS = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
STEADY_SECONDS = 600.0  # live for so long, the next failure counts as the first

# What another try cannot mend: the configuration, the program or the weights are wrong.
TERMINAL = frozenset(
    {
        "engine.settings-differ",
        "engine.arguments-refused",
        "engine.window-none",
        "engine.answer-collapsed",
        "engine.refused",
    }
)

# What a rank says when another one is gone.
CONSEQUENCES = frozenset({"engine.peer-lost", "engine.peer-absent", "engine.peer-late"})


@dataclass(frozen=True, slots=True)
class Spark:
    """One Spark as the leader knows it now. The leader's own is always up and fresh."""

    name: str
    up: bool
    freshness: Freshness
    opening: Opening | None = None
    hello: Hello | None = None
    report: Report | None = None
    inventory: Inventory | None = None
    problem: Finding | None = None
    gone: bool = False  # its control port refuses connections

    @property
    def reachable(self) -> bool:
        return self.up and self.freshness is not Freshness.LAPSED

    @property
    def occupied(self) -> bool:
        """A rank is alive there, as far as it said."""
        rank = self.report.rank if self.report else None
        return rank is not None and rank.state not in ("none", "ended")


@dataclass(frozen=True, slots=True)
class World:
    """Everything the course depends on. `served` and `answer` are the engine's, for the current generation."""

    now: float  # CLOCK_BOOTTIME seconds
    sparks: tuple[Spark, ...]  # in rank order
    links: tuple[Link, ...] = ()
    obstacles: tuple[Finding, ...] = ()  # errors of the fabric and differing settings
    wanted: Literal["run", "stop"] = "run"
    served: bool = False
    answer: str | Finding | None = None
    silence: Finding | None = None  # a load without progress
    drained: bool = True
    drain_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Orders:
    """What follows: a goal for each Spark in rank order, what the endpoint does, what the engine is asked."""

    goals: tuple[Goal, ...]
    gate: Literal["open", "pause", "close", "drain"]
    ask: Literal["nothing", "models", "reply", "health"]


@dataclass
class Course:
    leader: str
    state: LeaderState = "waiting"
    since: float = 0.0
    reason: Finding | None = None
    generation: int = 0
    links: tuple[Link, ...] = ()
    variant: Variant = field(default_factory=Variant)
    attempts: int = 0
    retry_at: float = 0.0
    starts: int = 0  # whole sets begun in this daemon's life
    _instances: dict[str, str] = field(default_factory=dict)
    _drain_until: float | None = None
    _refusal: Finding | None = None

    def step(self, world: World) -> Orders:
        """Moves as far as the world allows and says what each Spark should do now."""
        for _ in range(len(_MOVES)):
            before = self.state
            _MOVES[before](self, world)
            if self.state == before:
                break
        return self._orders(world)

    def ready(self, world: World) -> bool:
        """True while a request would be answered: live, every session up and every beat fresh."""
        return self.state == "live" and self._unsure(world) is None and self._loss(world) is None

    def restart(self, now: float, drain: float = 0.0) -> None:
        """The owner wants a new start: stop what runs, `drain` seconds for running requests, forget past failures."""
        self.attempts, self.retry_at = 0, 0.0
        self.variant = Variant()
        if self.state in ("preparing", "loading", "verifying", "live"):
            self._begin_stop(self._note("set.restarting", "restart asked by the owner"), now, drain)
        elif self.state == "failed":
            self._enter("waiting", self._note("set.restarting", "restart asked by the owner"), now)

    # -- states ------------------------------------------------------------------------------------------------

    def _waiting(self, world: World) -> None:
        if world.wanted == "stop":
            self.reason = self._stopped()
            return
        obstacle = self._obstacle(world)
        if obstacle is not None:
            self.reason = obstacle
            return
        if world.now < self.retry_at:
            return
        self.generation = 1 + max([self.generation, *_generations(world.sparks)])
        self.starts += 1
        self.links = world.links
        self._instances = {spark.name: spark.opening.instance_id for spark in world.sparks if spark.opening}
        # After a start that preflight refused its reason stays in sight until the same check passes.
        self._enter("preparing", self._refusal or self._note("set.preparing", "every Spark checks itself"), world.now)

    def _preparing(self, world: World) -> None:
        if self._interrupted(world):
            return
        reports = [spark.report for spark in world.sparks if spark.report]
        refused = next((r for r in reports if r.state == "failed" and r.generation == self.generation), None)
        if refused is not None:
            self._set_back(refused.reason or self._note("set.refused", "a Spark refused the start"), world.now)
        elif len(reports) == len(world.sparks) and all(r.prepared == self.generation for r in reports):
            self._refusal = None
            self._enter("loading", self._note("set.loading", "the ranks load"), world.now)
        elif world.now - self.since > PREPARE_SECONDS:
            self._fail(self._error("set.prepare-slow", f"not prepared after {PREPARE_SECONDS:.0f} s"), world.now)

    def _loading(self, world: World) -> None:
        if self._interrupted(world):
            return
        if world.silence is not None:
            self._fail(world.silence, world.now)
        elif world.served:
            self._enter("verifying", self._note("set.verifying", "a first reply is awaited"), world.now)

    def _verifying(self, world: World) -> None:
        if self._interrupted(world):
            return
        if isinstance(world.answer, Finding):
            self._fail(world.answer, world.now)
        elif world.answer is not None:
            self._enter("live", None, world.now)

    def _live(self, world: World) -> None:
        if self._interrupted(world):
            return
        self.reason = self._unsure(world)
        if self.attempts and world.now - self.since > STEADY_SECONDS:
            self.attempts = 0

    def _recovering(self, world: World) -> None:
        self._sharpen(world)
        if world.wanted == "stop":
            self._begin_stop(self._stopped(), world.now, 0.0)
        elif not _living(world.sparks) and world.now >= self.retry_at:
            self._enter("waiting", self.reason, world.now)

    def _stopping(self, world: World) -> None:
        if self._drain_until is not None:
            if not world.drained and world.now < self._drain_until and not self._loss(world):
                return
            self._drain_until = None
        if not _living(world.sparks):
            self._enter("waiting", self.reason, world.now)

    def _failed(self, world: World) -> None:
        if world.wanted == "stop":
            self._begin_stop(self._stopped(), world.now, 0.0)

    # -- transitions -------------------------------------------------------------------------------------------

    def _enter(self, state: LeaderState, reason: Finding | None, now: float) -> None:
        self.state, self.since, self.reason = state, now, reason

    def _interrupted(self, world: World) -> bool:
        """Whether this generation ends here: by the owner, by a Spark that leaves, or by a loss."""
        if world.wanted == "stop":
            self._begin_stop(self._stopped(), world.now, world.drain_seconds)
        elif loss := self._loss(world):
            self._fail(loss, world.now)
        elif leaving := next((s for s in world.sparks if s.report and s.report.leaving), None):
            reason = self._error("cluster.leaving", "its daemon was asked to stop", leaving.name)
            self._begin_stop(reason, world.now, world.drain_seconds)
        else:
            return False
        return True

    def _begin_stop(self, reason: Finding, now: float, drain: float) -> None:
        self._drain_until = now + drain if self.state == "live" and drain > 0 else None
        self._enter("stopping", reason, now)

    def _fail(self, reason: Finding, now: float) -> None:
        delay = BACKOFF_SECONDS[min(self.attempts, len(BACKOFF_SECONDS) - 1)]
        self.attempts += 1
        self.retry_at = now + delay * random.uniform(0.8, 1.2)
        self._enter("failed" if reason.code in TERMINAL else "recovering", reason, now)

    def _set_back(self, reason: Finding, now: float) -> None:
        """A start that was refused before any rank was started: checked again shortly, not counted as a failure."""
        self._refusal = reason
        self.retry_at = now + RECHECK_SECONDS
        self._enter("recovering", reason, now)

    # -- judgements --------------------------------------------------------------------------------------------

    def _obstacle(self, world: World) -> Finding | None:
        """Why no start can begin, the nearest cause first."""
        for spark in world.sparks:
            if not spark.up or spark.freshness is not Freshness.FRESH:
                return spark.problem or self._note("cluster.dialling", f"{spark.name} is being dialled")
            if spark.report is None or spark.hello is None:
                return self._note("cluster.no-report", f"{spark.name} has not said how it is yet")
            if spark.report.leaving:
                return self._error("cluster.leaving", "its daemon was asked to stop", spark.name)
        if world.obstacles:
            return world.obstacles[0]
        for spark in world.sparks:
            if spark.occupied:
                return self._error("set.clearing", "an earlier rank is still ending", spark.name)
        return None

    def _loss(self, world: World) -> Finding | None:
        """What broke the current generation, or None."""
        for spark in world.sparks:
            rank = spark.report.rank if spark.report else None
            if rank is not None and rank.generation == self.generation and rank.state == "ended":
                if spark.report is not None and spark.report.reason is not None:
                    return spark.report.reason
                return self._error("engine.rank-ended", rank.exit_text or "its rank ended", spark.name)
            if spark.gone:
                return self._error("cluster.daemon-gone", "its daemon is not running", spark.name)
            if spark.freshness is Freshness.LAPSED:
                return spark.problem or self._error("cluster.lease-lapsed", "no sign of life", spark.name)
            if spark.opening and spark.opening.instance_id != self._instances.get(spark.name):
                return self._error("cluster.daemon-restarted", "its daemon started anew", spark.name)
            if self.state != "preparing" and spark.report is not None and spark.report.prepared != self.generation:
                return spark.report.reason or self._error("engine.rank-given-up", "it gave its rank up", spark.name)
        return None

    def _sharpen(self, world: World) -> None:
        """A rank that mourns another one may be heard first: the cause takes its place when it is known."""
        if self.reason is None or self.reason.code not in CONSEQUENCES:
            return
        for spark in world.sparks:
            rank = spark.report.rank if spark.report else None
            if rank is None or rank.generation != self.generation:
                continue
            cause = next((f for f in rank.findings if _is_cause(f)), None)
            if cause is not None:
                self.reason = cause
                return

    def _unsure(self, world: World) -> Finding | None:
        """Why a request may not be answered although nothing is known to be lost."""
        for spark in world.sparks:
            if not spark.up:
                return spark.problem or self._error("cluster.session-lost", "its session broke", spark.name)
            if spark.freshness is not Freshness.FRESH:
                return self._error("cluster.suspect", "its beats stopped", spark.name)
        return None

    def _error(self, code: str, measured: str, name: str | None = None) -> Finding:
        node = name or self.leader
        return Finding(
            code=code,
            severity=Severity.ERROR,
            node=node,
            subject="this Spark" if name else "the set",
            measured=measured,
            wanted=_WANTED.get(code, ""),
            fix=_FIXES.get(code, f"See journalctl -u glm-spark on {node}."),
        )

    def _note(self, code: str, measured: str) -> Finding:
        return Finding(code=code, severity=Severity.NOTE, node=self.leader, subject="the set", measured=measured)

    def _stopped(self) -> Finding:
        return Finding(
            code="set.stopped",
            severity=Severity.NOTE,
            node=self.leader,
            subject="the set",
            measured="stopped by the owner",
            fix="glm-spark restart starts it again.",
        )

    # -- orders ------------------------------------------------------------------------------------------------

    def _orders(self, world: World) -> Orders:
        match self.state:
            case "preparing":
                return Orders(self._all(world, "prepare"), "close", "nothing")
            case "loading":
                return Orders(self._all(world, "run"), "close", "models")
            case "verifying":
                return Orders(self._all(world, "run"), "close", "reply")
            case "live":
                return Orders(self._all(world, "run"), "open" if self.ready(world) else "pause", "health")
            case "stopping" if self._drain_until is not None:
                return Orders(self._all(world, "run"), "drain", "nothing")
            case "stopping":
                return Orders(self._in_stop_order(world), "close", "nothing")
            case _:
                return Orders(self._all(world, "idle"), "close", "nothing")

    def _goal(self, phase: Literal["idle", "prepare", "run"], hard: bool) -> Goal:
        reason = self.reason if phase == "idle" else None
        return Goal(
            generation=self.generation,
            phase=phase,
            links=() if phase == "idle" else self.links,
            variant=self.variant,
            hard=hard,
            reason=reason,
        )

    def _all(self, world: World, phase: Literal["idle", "prepare", "run"]) -> tuple[Goal, ...]:
        return tuple(self._goal(phase, hard=phase == "idle") for _ in world.sparks)

    def _in_stop_order(self, world: World) -> tuple[Goal, ...]:
        """Rank 0 first: with the spill tier it flushes and needs the others alive meanwhile."""
        others: Literal["idle", "run"] = "run" if world.sparks[0].occupied else "idle"
        return tuple(
            self._goal("idle" if rank == 0 else others, hard=False) for rank, _spark in enumerate(world.sparks)
        )


_MOVES = {
    "waiting": Course._waiting,
    "preparing": Course._preparing,
    "loading": Course._loading,
    "verifying": Course._verifying,
    "live": Course._live,
    "recovering": Course._recovering,
    "stopping": Course._stopping,
    "failed": Course._failed,
}
_WANTED = {
    "cluster.suspect": "a beat twice a second",
    "cluster.leaving": "a running daemon",
    "cluster.daemon-gone": "a running daemon",
}
_FIXES = {
    "cluster.leaving": "systemctl start glm-spark there brings the set back.",
    "cluster.daemon-gone": "There: systemctl start glm-spark; journalctl -u glm-spark says why it ended.",
    "cluster.daemon-restarted": "Nothing to do: all ranks start anew.",
    "set.clearing": "Nothing to do: it is being ended.",
}


def _is_cause(finding: Finding) -> bool:
    return finding.severity is Severity.ERROR and finding.code not in CONSEQUENCES


def _generations(sparks: Iterable[Spark]) -> list[int]:
    seen = [spark.report.generation for spark in sparks if spark.report]
    return seen + [spark.hello.generation for spark in sparks if spark.hello]


def _living(sparks: Iterable[Spark]) -> bool:
    """Whether any Spark that can be heard still has a rank. One that cannot be heard ends its own by its lease."""
    return any(spark.occupied for spark in sparks if spark.reachable)
