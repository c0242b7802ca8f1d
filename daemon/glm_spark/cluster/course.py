"""The set's course from waiting to live and back. Pure: the world and the time go in, orders come out.

A generation lives and dies whole. Whatever ends it, every rank ends before the next generation begins.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from glm_spark.cluster import judge, ladder
from glm_spark.cluster.breaker import Breaker
from glm_spark.cluster.bringing import Bringing
from glm_spark.cluster.protocol import Goal
from glm_spark.cluster.world import Evidence, Orders, World, highest_generation, living
from glm_spark.engine.spec import Link, Variant
from glm_spark.fabric.rails import RailFault, left_out, most_telling, without
from glm_spark.finding import Finding, Severity
from glm_spark.host.kernel_log import FATAL_CODES
from glm_spark.status import LeaderState

PREPARE_SECONDS = 90.0  # every check has a deadline of its own below this
RECHECK_SECONDS = 5.0  # a start that preflight refused is tried again after this
STEADY_SECONDS = 600.0  # live for so long, the next failure counts as the first
SETTLE_SECONDS = 120.0  # a stopped rank's memory comes back within this (about 30 GiB can linger for a while)
FAILURES, WINDOW_SECONDS = 6, 3600.0  # more failures within an hour need a person, or a change


@dataclass
class Course:
    leader: str
    state: LeaderState = "waiting"
    since: float = 0.0
    reason: Finding | None = None
    generation: int = 0
    links: tuple[Link, ...] = ()
    dropped: tuple[Finding, ...] = ()  # rails that this start goes on without, and why
    most_failures: int = FAILURES
    window_seconds: float = WINDOW_SECONDS
    retry_at: float = 0.0
    starts: int = 0  # whole sets begun in this daemon's life
    _rungs: ladder.Rungs = field(default_factory=ladder.Rungs)
    _breaker: Breaker = field(default_factory=Breaker)
    _bringing: Bringing = field(default_factory=Bringing)
    _instances: dict[str, str] = field(default_factory=dict)
    _evidence: Evidence | None = None  # as it was at the last failure
    _drain_until: float | None = None
    _cable_since: float | None = None
    _refusal: Finding | None = None

    @property
    def variant(self) -> Variant:
        """How starts depart from the configuration now."""
        return self._rungs.variant

    def step(self, world: World) -> Orders:
        """Moves as far as the world allows and says what each Spark should do now."""
        self._forget_old_remedies(world)
        self._cable_since = (self._cable_since or world.now) if world.cable is not None else None
        for _ in range(len(_MOVES)):
            before = self.state
            _MOVES[before](self, world)
            if self.state == before:
                break
        return self._orders(world)

    def ready(self, world: World) -> bool:
        """True while a request would be answered: live, every rank there, every session up and every beat fresh."""
        return self.state == "live" and judge.unsure(world) is None and self._loss(world) is None

    def restart(self, now: float, drain: float = 0.0) -> None:
        """The owner wants a new start: stop what runs, `drain` seconds for running requests, forget past failures."""
        self._rungs, self._breaker, self.retry_at = ladder.Rungs(), Breaker(), 0.0
        reason = judge.note(self.leader, "set.restarting", "restart asked by the owner")
        if self.state in ("preparing", "loading", "verifying", "live"):
            self._begin_stop(reason, now, drain)
        elif self.state == "failed":
            self._enter("waiting", reason, now)

    # -- states ------------------------------------------------------------------------------------------------

    def _waiting(self, world: World) -> None:
        if world.wanted == "stop":
            self.reason = self._stopped()
            return
        obstacle = judge.obstacle(world)
        if obstacle is not None:
            self.reason = obstacle
            return
        if world.now < self.retry_at:
            return
        self.generation = 1 + max(self.generation, highest_generation(world.sparks))
        self.starts += 1
        self.links, self.dropped = world.links, ()
        self._instances = {spark.name: spark.opening.instance_id for spark in world.sparks if spark.opening}
        # After a start that preflight refused its reason stays in sight until the same check passes.
        reason = self._refusal or judge.note(self.leader, "set.preparing", "every Spark checks itself")
        self._enter("preparing", reason, world.now)

    def _preparing(self, world: World) -> None:
        if self._interrupted(world):
            return
        reports = [spark.report for spark in world.sparks if spark.report]
        refused = next((r for r in reports if r.state == "failed" and r.generation == self.generation), None)
        if refused is not None:
            reason = refused.reason or judge.fault(self.leader, "set.refused", "a Spark refused the start", "the set")
            if reason.code in judge.TERMINAL:
                self._fail(reason, world)
            else:
                self._set_back(reason, world.now)
        elif len(reports) == len(world.sparks) and all(r.prepared == self.generation for r in reports):
            if differs := judge.images_differ(world.sparks):
                self._set_back(differs, world.now)
                return
            faults = (*(fault for report in reports for fault in report.bad_rails), *(world.proof or ()))
            if faults:
                self._drop(faults, world)
                return
            if world.proof is None:
                self.reason = judge.note(self.leader, "set.proving", "an RDMA exchange proves every rail")
                return
            self._refusal = None
            self._enter("loading", judge.note(self.leader, "set.loading", "the ranks load"), world.now)
        elif world.now - max(self.since, self._bringing.moved_at(world)) > PREPARE_SECONDS:
            self._fail(self._slow(world), world)
        elif bringing := self._bringing.told(world):
            self.reason = bringing

    def _slow(self, world: World) -> Finding:
        """The first Spark that did not get ready in time, and what it was at."""
        late = next(
            (one for one in world.sparks if not one.report or one.report.prepared != self.generation), world.sparks[0]
        )
        bringing = self._bringing.told(world)
        at = f": {bringing.measured}" if bringing is not None else ""
        return judge.fault(late.name, "set.prepare-slow", f"not prepared after {PREPARE_SECONDS:.0f} s{at}")

    def _loading(self, world: World) -> None:
        if self._interrupted(world):
            return
        if world.silence is not None:
            self._fail(world.silence, world)
        elif world.served:
            self._enter("verifying", judge.note(self.leader, "set.verifying", "a first reply is awaited"), world.now)

    def _verifying(self, world: World) -> None:
        if self._interrupted(world):
            return
        if isinstance(world.answer, Finding):
            self._fail(world.answer, world)
        elif world.answer is not None:
            self._enter("live", None, world.now)

    def _live(self, world: World) -> None:
        if self._interrupted(world):
            return
        if world.stall is not None:
            self._fail(world.stall, world)
            return
        self.reason = judge.unsure(world)
        if self._breaker.failures and world.now - self.since > STEADY_SECONDS:
            self._breaker = Breaker()

    def _recovering(self, world: World) -> None:
        if self.reason is not None and self.reason.code in judge.CONSEQUENCES:
            # A rank that mourns another one may be heard first: the cause takes its place when it is known.
            self.reason = judge.cause(world, self.generation) or self.reason
        if world.wanted == "stop":
            self._begin_stop(self._stopped(), world.now, 0.0)
        elif not living(world.sparks) and world.now >= self.retry_at:
            self._enter("waiting", self.reason, world.now)

    def _stopping(self, world: World) -> None:
        if self._drain_until is not None:
            if not world.drained and world.now < self._drain_until and not self._loss(world):
                return
            self._drain_until = None
        if not living(world.sparks):
            self._enter("waiting", self.reason, world.now)

    def _failed(self, world: World) -> None:
        """Stays so until the owner says otherwise or something changed that a new try could go better by."""
        if world.wanted == "stop":
            self._begin_stop(self._stopped(), world.now, 0.0)
        elif world.now - self.since < SETTLE_SECONDS and self._evidence is not None:
            # The ranks that just ended give their memory back for a while: that is no news.
            self._evidence = self._evidence.with_memory(world.evidence.memory)
            if self._changed_for_the_better(world, self._evidence):
                self._enter("waiting", self.reason, world.now)
        elif self._evidence is not None and self._changed_for_the_better(world, self._evidence):
            self._enter("waiting", self.reason, world.now)

    # -- transitions -------------------------------------------------------------------------------------------

    def _enter(self, state: LeaderState, reason: Finding | None, now: float) -> None:
        self.state, self.since, self.reason = state, now, reason

    def _interrupted(self, world: World) -> bool:
        """Whether this generation ends here: by the owner, by a Spark that leaves, or by a loss."""
        if world.wanted == "stop":
            self._begin_stop(self._stopped(), world.now, world.drain_seconds)
        elif loss := self._loss(world):
            self._fail(loss, world)
        elif leaving := next((s for s in world.sparks if s.report and s.report.leaving), None):
            reason = judge.fault(leaving.name, "cluster.leaving", "its daemon was asked to stop")
            self._begin_stop(reason, world.now, world.drain_seconds)
        else:
            return False
        return True

    def _begin_stop(self, reason: Finding, now: float, drain: float) -> None:
        self._drain_until = now + drain if self.state == "live" and drain > 0 else None
        self._enter("stopping", reason, now)

    def _fail(self, reason: Finding, world: World) -> None:
        """This generation is over. The next one comes after a pause, differently where there is a remedy, or not."""
        views = [spark.rank for spark in world.sparks if spark.rank and spark.rank.generation == self.generation]
        self._rungs = ladder.climb(self._rungs, reason, views)
        self._breaker = self._breaker.failed(world.now, self.most_failures, self.window_seconds)
        self.retry_at = world.now + self._breaker.pause()
        self._evidence = world.evidence
        # A live set whose answers collapse is started anew once: the start's own question tells whether it stays so.
        # Broken hardware is not tried again at all.
        hopeless = reason.code in FATAL_CODES or (reason.code in judge.TERMINAL and self.state != "live")
        if hopeless or self._rungs.exhausted:
            self._enter("failed", reason, world.now)
        elif self._breaker.tripped:
            self._enter("failed", self._too_often(reason), world.now)
        else:
            self._enter("recovering", reason, world.now)

    def _set_back(self, reason: Finding, now: float) -> None:
        """A start that was refused before any rank was started: checked again shortly, not counted as a failure."""
        self._refusal = reason
        self.retry_at = now + RECHECK_SECONDS
        self._enter("recovering", reason, now)

    def _drop(self, faults: tuple[RailFault, ...], world: World) -> None:
        """Prepares anew for the rails that are sound: all Sparks must agree. A link with none left stops the start."""
        left = without(self.links, faults)
        if left is None:
            hopeless = [fault for fault in faults if without(self.links, [f for f in faults if f is not fault]) != left]
            self._set_back(most_telling(hopeless or faults), world.now)
            return
        self.links, self.dropped = left, (*self.dropped, *left_out(faults))
        self.generation = 1 + max(self.generation, highest_generation(world.sparks))
        reason = judge.note(self.leader, "set.rail-dropped", "every Spark prepares anew, without a rail that failed")
        self._enter("preparing", reason, world.now)

    # -- judgements --------------------------------------------------------------------------------------------

    def _loss(self, world: World) -> Finding | None:
        found = judge.loss(world, self.generation, self._instances, started=self.state != "preparing")
        held = self._cable_since is not None and world.now - self._cable_since >= world.hold_seconds
        return found or (world.cable if held else None)

    def _forget_old_remedies(self, world: World) -> None:
        """Remedies answered a configuration and a boot that are gone."""
        then, now = self._evidence, world.evidence
        if then is None or self._rungs == ladder.Rungs():
            return
        if (then.configuration, then.boots) != (now.configuration, now.boots) and len(then.boots) == len(now.boots):
            self._rungs = ladder.Rungs()

    def _changed_for_the_better(self, world: World, then: Evidence) -> bool:
        now = world.evidence
        if now.configuration != then.configuration:
            return True
        if len(now.boots) < len(world.sparks):
            return False  # a Spark is away: there is nothing to try with
        if now.boots != then.boots:
            return True
        if self.reason is None or self.reason.code in judge.TERMINAL - judge.PLUGGABLE:
            return False
        return now.carriers != then.carriers or any(a > b for a, b in zip(now.memory, then.memory, strict=False))

    def _too_often(self, last: Finding) -> Finding:
        count, minutes = len(self._breaker.failures), self.window_seconds / 60
        return Finding(
            code="set.breaker-open",
            severity=Severity.ERROR,
            node=last.node,
            subject="the set",
            measured=f"{count} failures within {minutes:.0f} minutes, the last: {last.subject}: {last.measured}"[:4000],
            wanted="a set that stays up",
            fix="Mend what the last one says (glm-spark status --history has all), then glm-spark restart. "
            "A reboot, a plugged cable, freed memory or a changed configuration is tried once by itself.",
        )

    def _stopped(self) -> Finding:
        return judge.note(self.leader, "set.stopped", "stopped by the owner", "glm-spark restart starts it again.")

    # -- orders ------------------------------------------------------------------------------------------------

    def _orders(self, world: World) -> Orders:
        match self.state:
            case "preparing":
                prepared = all(s.report and s.report.prepared == self.generation for s in world.sparks)
                return Orders(self._all(world, "prepare"), "close", "nothing", prove=prepared and world.proof is None)
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
        idle = phase == "idle"
        return Goal(
            generation=self.generation,
            phase=phase,
            links=() if idle else self.links,
            variant=self.variant,
            hard=hard,
            dump=idle and self.reason is not None and self.reason.code in judge.HUNG,
            reason=self.reason if idle else None,
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
