"""This Spark's rank under the leader's goals: made ready, started once a generation, ended.

Level-triggered: `pursue` takes a whole goal, the loop brings the Spark there from wherever it is, and `report`
says where it is. Leader and worker both have one; the leader's takes its goals without a wire.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import TypeVar

from glm_spark.cluster.generation import GenerationFile
from glm_spark.cluster.lease import boottime
from glm_spark.cluster.protocol import Goal, Report
from glm_spark.engine import processes, progress
from glm_spark.engine.pull import HOLDING
from glm_spark.engine.rank import Rank, RankView
from glm_spark.engine.runtime import Runtime
from glm_spark.engine.spec import Link, RankSpec, Variant
from glm_spark.fabric.rails import RailFault
from glm_spark.finding import Finding, Severity
from glm_spark.status import WeightsStatus, WorkerState

log = logging.getLogger(__name__)
T = TypeVar("T")

PROGRESS_SECONDS = 1.0
LOOK_SECONDS = 5.0
DUMP_SECONDS = 1.0
GOAL_SECONDS = 0.1  # how soon a changed goal ends what the weights take
HELD_SECONDS = 5.0  # a rank that is stopped for longer will have let its peers' collectives wait for too long
DISK_SECONDS = 10.0  # a generation is one small fsync; a disk that needs longer is in trouble


class NotReady(Exception):
    """This Spark cannot take the rank now, and why."""

    def __init__(self, *findings: Finding) -> None:
        super().__init__("; ".join(str(finding) for finding in findings))
        self.findings = findings


async def _nothing_lacks() -> None:
    """For a post whose weights are somebody else's affair."""


@dataclass(frozen=True, slots=True)
class Trade:
    """What a post needs of the rest of its Spark.

    `preflight` returns the findings of a check before a start; `specify` builds the rank of a goal and raises
    NotReady when this Spark cannot translate the rails; `recruit` makes a Rank of it. `provide` brings the weights,
    which may take an hour, and raises NotReady.
    """

    preflight: Callable[[Goal], Awaitable[tuple[Finding, ...]]]
    specify: Callable[[Goal], Awaitable[RankSpec]]
    recruit: Callable[[RankSpec], Rank]
    runtime: Runtime
    provide: Callable[[], Coroutine[None, None, None]] = _nothing_lacks


class Post:
    def __init__(
        self,
        node: str,
        cluster: str,
        trade: Trade,
        generations: GenerationFile,
        on_change: Callable[[], None],
    ) -> None:
        self.node = node
        self._cluster = cluster
        self._trade = trade
        self._generations = generations
        self._on_change = on_change
        self._wake = asyncio.Event()
        self._goal = Goal(generation=0, phase="idle")
        self._seen = 0
        self._kept = 0  # what is on disk; behind `_seen` only when the disk refused
        self._state: WorkerState = "armed"
        self._prepared: int | None = None
        self._reason: Finding | None = None
        self._findings: tuple[Finding, ...] = ()
        self._bad_rails: tuple[RailFault, ...] = ()
        self._rank: Rank | None = None
        self._life: asyncio.Task[None] | None = None
        self._silent = 0.0
        self._dump_until: float | None = None
        self._doubt: Finding | None = None
        self._doubt_since: float | None = None
        self._started: int | None = None  # the generation whose rank was started; never twice
        self.remarks: tuple[Finding, ...] = ()  # what else is wrong on this Spark
        self.reading: tuple[Finding, ...] = ()  # why its links and devices may have changed unseen
        self.host: tuple[Finding, ...] = ()  # its memory and its kernel's words
        self.outfit: tuple[Finding, ...] = ()  # what it still fetches
        self.image = ""  # the content of the image that is prepared, as a digest
        self._given_up: Finding | None = None  # why this Spark ended its rank by itself
        self._barred: Finding | None = None  # why the next start is refused, once
        self.leaving = False
        self.weights: WeightsStatus | None = None  # how far they are
        self.handover: WeightsStatus | None = None  # how far the image is that is handed over

    @property
    def report(self) -> Report:
        return Report(
            state=self._state,
            generation=self._seen,
            prepared=self._prepared,
            rank=self._rank.view if self._rank else None,
            reason=self._reason,
            findings=(*self.remarks, *self.reading, *self.host, *self.outfit, *self._lasting()),
            bad_rails=self._bad_rails,
            leaving=self.leaving,
            weights=self.weights,
            handover=self.handover,
            silent_seconds=round(self._silent),
            doubt=self._doubt,
            image_content=self.image,
            broken=self._doubt_since is not None and boottime() - self._doubt_since > HELD_SECONDS,
        )

    def _lasting(self) -> tuple[Finding, ...]:
        """The last check's findings without what `outfit` tells as it is now."""
        return tuple(finding for finding in self._findings if finding.code not in HOLDING)

    @property
    def occupied(self) -> bool:
        """True while a rank of ours may be alive."""
        return self._life is not None

    def pursue(self, goal: Goal) -> None:
        """Takes the leader's goal. A start older than one already seen is refused; idle is always obeyed."""
        if goal.phase != "idle" and goal.generation < self._seen:
            self._reason = Finding(
                code="cluster.generation-old",
                severity=Severity.ERROR,
                node=self.node,
                subject="start of the set",
                measured=f"generation {goal.generation}",
                wanted=f"{self._seen} or later",
                fix="Nothing to do: the leader counts on from here.",
            )
            self._on_change()
            return
        if goal == self._goal:
            return
        self._goal = goal
        # Ending a rank does not wait for whatever the loop is doing, such as a preflight that takes its time.
        self._end_unwanted()
        self._wake.set()

    @property
    def links(self) -> tuple[Link, ...]:
        """The rails of the goal."""
        return self._goal.links

    @property
    def variant(self) -> Variant:
        """How the start that is under way departs from the configuration."""
        return self._goal.variant

    def give_up(self, reason: Finding) -> None:
        """This Spark must not run a rank now: ends the one that is there at once; without one the next start is refused
        once, so that whoever leads learns why. The set follows, as after any loss.
        """
        if self._rank is not None and self._life is not None:
            self._given_up, self._prepared, self._reason = reason, None, reason
            self._state = "stopping"
            self._rank.stop(graceful=False)
        else:
            self._barred = reason
        self.nudge()

    def nudge(self) -> None:
        """The rank changed."""
        self._wake.set()
        self._on_change()

    async def run(self) -> None:
        """Owns the rank; when cancelled, ends it first."""
        try:
            self._seen = self._kept = await self._disk(self._generations.read)
        except NotReady as refusal:
            # The other Sparks remember; the first start here tells whether the disk takes it again.
            log.warning("%s", refusal, extra={"code": "disk.generation"})
        await self._sweep()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._watch_progress(), name="progress")
                while True:
                    self._wake.clear()
                    await self._advance()
                    self._on_change()
                    await self._wake.wait()
        finally:
            await self._vacate()

    async def _watch_progress(self) -> None:
        """Sees whether the rank's process is held, and measures how long a loading one has made no progress."""
        watch, generation = progress.Watch(), 0
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            view = self._rank.view if self._rank is not None and self._life is not None else None
            self._doubt_whether_it_runs(view)
            if view is None or view.pid is None or view.state != "loading":
                self._silent = 0.0
                continue
            if view.generation != generation:
                watch, generation = progress.Watch(), view.generation
            look = functools.partial(progress.look, view.pid, view.phase, boottime())
            try:
                watch.add(await processes.aside(look, LOOK_SECONDS))
            except TimeoutError:
                continue  # a stuck process; nothing is concluded from that
            self._silent = watch.silent_for

    def _doubt_whether_it_runs(self, view: RankView | None) -> None:
        """A process stopped by a signal (SIGSTOP, a debugger) answers nothing, and its engine's /health stays 200."""
        process = processes.read(view.pid) if view is not None and view.pid else None
        if process is None or view is None or process.state not in "Tt":
            changed = self._doubt is not None
            self._doubt, self._doubt_since = None, None
        else:
            changed = self._doubt is None
            self._doubt_since = self._doubt_since or boottime()
            self._doubt = Finding(
                code="engine.rank-held",
                severity=Severity.ERROR,
                node=self.node,
                subject=f"rank {view.rank} (pid {view.pid})",
                measured="stopped by a signal or a debugger",
                wanted="a running process",
                fix=f"kill -CONT {view.pid} on {self.node}, soon: else all ranks are started anew.",
            )
        if changed:
            self._on_change()

    async def _advance(self) -> None:
        goal = self._goal
        self._end_unwanted()
        await self._bury()
        if self.occupied and goal.generation == self._started and goal.phase == "run" and self._given_up is None:
            self._state = "running"
            return
        if self.occupied:
            self._state = "stopping"
            return
        if goal.phase == "idle":
            if self._state == "failed":
                self._barred = None  # it was told
            self._state, self._prepared, self._reason = "armed", None, goal.reason
            return
        if goal.generation == self._started:
            # Its rank was started and has ended. A lost rank cannot rejoin: only a new generation starts another.
            self._state, self._reason = "failed", self._why_ended()
            return
        try:
            if self._prepared != goal.generation:
                await self._prepare(goal)
            if goal.phase == "run" and self._goal == goal:
                await self._start(goal)
        except NotReady as refusal:
            self._state, self._reason = "failed", refusal.findings[0]
            self._findings = (*self._findings, *refusal.findings)

    async def _prepare(self, goal: Goal) -> None:
        self._state, self._reason, self._findings, self._bad_rails = "preparing", None, (), ()
        self._rank = None
        self._given_up = None
        self._on_change()
        # Before the write: the leader takes a refusal only for one of the generation that it asked for.
        self._seen = max(self._seen, goal.generation)
        if goal.generation > self._kept:
            await self._disk(lambda: self._generations.write(goal.generation))
            self._kept = goal.generation
        if self._barred is not None:
            raise NotReady(self._barred)
        await self._sweep()
        if not await self._provide(goal):
            return
        found = await self._trade.preflight(goal)
        # What only one rail lacks is the leader's to judge: others of its link may do.
        self._bad_rails = tuple(finding for finding in found if isinstance(finding, RailFault))
        self._findings = tuple(finding for finding in found if not isinstance(finding, RailFault))
        errors = tuple(finding for finding in self._findings if finding.severity is Severity.ERROR)
        if errors:
            self._state, self._reason = "failed", errors[0]
            return
        await self._trade.specify(goal)  # a rail this Spark cannot translate shows here, before anything starts
        self._prepared = goal.generation
        self._state = "armed"

    async def _provide(self, goal: Goal) -> bool:
        """Has the weights brought; False when the leader wants something else meanwhile."""
        bringing = asyncio.create_task(self._trade.provide(), name="weights")
        try:
            while self._goal == goal and not bringing.done():
                await asyncio.wait([bringing], timeout=GOAL_SECONDS)
            if self._goal != goal:
                return False
            bringing.result()
            return True
        finally:
            bringing.cancel()
            await asyncio.wait([bringing])

    async def _start(self, goal: Goal) -> None:
        if self._prepared != goal.generation:
            return
        spec = await self._trade.specify(goal)
        if self._goal != goal:
            return
        if self._barred is not None:
            self._prepared = None
            raise NotReady(self._barred)
        self._started = goal.generation
        self._dump_until, self._doubt, self._doubt_since = None, None, None
        self._rank = self._trade.recruit(spec)
        self._life = asyncio.create_task(self._rank.run(), name=f"rank {spec.rank}")
        self._life.add_done_callback(lambda _task: self._wake.set())
        self._state = "running"

    def _why_ended(self) -> Finding | None:
        if self._given_up is not None:
            return self._given_up
        findings = self._rank.view.findings if self._rank else ()
        return next((finding for finding in findings if finding.severity is Severity.ERROR), None)

    def _end_unwanted(self) -> None:
        if self._rank is None or self._life is None:
            return
        if self._goal.phase == "run" and self._goal.generation == self._started:
            return
        if self._goal.dump and self._writes_its_stacks():
            return
        self._rank.stop(graceful=not self._goal.hard)

    def _writes_its_stacks(self) -> bool:
        """Asks a hung rank for its threads' stacks once; True while it is given time to write them into its output."""
        loop = asyncio.get_running_loop()
        if self._dump_until is None and self._rank is not None:
            self._dump_until = loop.time() + DUMP_SECONDS
            self._rank.dump()
            loop.call_later(DUMP_SECONDS + 0.01, self._end_unwanted)
        return self._dump_until is not None and loop.time() < self._dump_until

    async def _bury(self) -> None:
        """Takes the result of a rank that ended; an error in following it is the daemon's and ends the daemon."""
        if self._life is None or not self._life.done():
            return
        life, self._life = self._life, None
        await life

    async def _vacate(self) -> None:
        if self._rank is not None and self._life is not None:
            self._rank.stop(graceful=False)
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.shield(self._life)
            self._life = None

    async def _sweep(self) -> None:
        ended = await self._trade.runtime.sweep(self._cluster, self.node)
        for text in ended:
            log.warning("ended a leftover of an earlier life: %s", text, extra={"code": "engine.leftover"})

    async def _disk(self, work: Callable[[], T]) -> T:
        """Runs a small read or write off the loop; NotReady when the disk refuses or does not answer."""
        try:
            return await processes.aside(work, DISK_SECONDS)
        except TimeoutError:
            measured = f"no answer within {DISK_SECONDS:g} s"
        except OSError as error:
            measured = error.strerror or str(error)
        raise NotReady(
            Finding(
                code="disk.generation",
                severity=Severity.ERROR,
                node=self.node,
                subject="the generation file in the state directory",
                measured=measured,
                wanted="a disk that takes one small write",
                fix="See df -h and journalctl -k on this Spark. A directory that is gone: systemctl restart glm-spark.",
            )
        )
