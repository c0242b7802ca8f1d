"""Watches over this Spark itself: memory under a living rank, the kernel's words, what the engine says it needs."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from glm_spark.cluster.lease import boottime
from glm_spark.cluster.post import Post
from glm_spark.config.model import Config
from glm_spark.engine import processes
from glm_spark.engine.rank import RankView
from glm_spark.finding import Finding, Severity
from glm_spark.host import estimate, guard, kernel_lines, memory
from glm_spark.host.guard import Reading, Verdict
from glm_spark.host.kernel_log import FATAL_CODES, Ear
from glm_spark.preflight import holders

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.25  # reading /proc/meminfo takes 0.05 ms
REMEMBER_SECONDS = 3600.0  # how long a word of the kernel stays in sight
HOLDERS_SECONDS = 2.0
DISK_SECONDS = 5.0
_GIB = 1 << 30
_LEVELS = {Severity.ERROR: logging.ERROR, Severity.WARNING: logging.WARNING}


class Guarding:
    """What it finds is told through the post: as this Spark's findings, or as the reason to give its rank up."""

    def __init__(self, config: Callable[[], Config], post: Post, estimates: estimate.Estimates) -> None:
        self._config = config
        self._post = post
        self._estimates = estimates
        self._readings: deque[Reading] = deque(maxlen=64)
        self._verdict = Verdict.FINE
        self._low: Finding | None = None
        self._said: dict[str, tuple[float, Finding]] = {}  # by code: when, and what the kernel said
        self._ear = Ear(post.node)
        self._noted: tuple[int, float] | None = None  # the generation whose estimate is kept
        self._rank_changed = asyncio.Event()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch_memory(), name="memory")
            tasks.create_task(kernel_lines.follow(self.hear), name="kernel's words")
            tasks.create_task(self._keep_estimates(), name="estimates")

    # -- the kernel --------------------------------------------------------------------------------------------

    def hear(self, line: str) -> None:
        """One line of the kernel's, as it comes."""
        finding = self._ear.hear(line, boottime())
        if finding is None:
            return
        log.log(_LEVELS.get(finding.severity, logging.INFO), "%s", finding, extra={"code": finding.code})
        self._said[finding.code] = (boottime(), finding)
        self._tell()
        if finding.code in FATAL_CODES:
            self._post.give_up(finding)

    # -- memory ------------------------------------------------------------------------------------------------

    async def _watch_memory(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self._forget_old_words()
            if not self._post.occupied:
                self._readings.clear()
                self._settle(Verdict.FINE)
                continue
            now = memory.look()
            if now is None:
                continue
            self._readings.append(Reading(boottime(), now.available))
            await self._weigh(now)

    async def _weigh(self, now: memory.Memory) -> None:
        floor = self._config().memory.floor_gib
        recent = guard.recent(self._readings, boottime())
        verdict = guard.judge(recent, floor, self._verdict)
        if verdict is self._verdict:
            return
        if verdict is Verdict.FREEZING:
            self._verdict = verdict
            self._low = None
            finding = self._finding(verdict, now, guard.fall(recent), "")
            log.error("%s", finding, extra={"code": finding.code})
            self._tell()
            self._post.give_up(finding)  # first: who holds the memory can be read while it ends
        elif self._verdict is not Verdict.FREEZING:  # what was begun is not taken back while the rank lives
            self._settle(verdict, self._finding(verdict, now, guard.fall(recent), await _biggest()))

    def _settle(self, verdict: Verdict, low: Finding | None = None) -> None:
        if verdict is self._verdict:
            return
        self._verdict = verdict
        self._low = low if verdict is Verdict.LOW else None
        if self._low is not None:
            log.warning("%s", self._low, extra={"code": self._low.code})
        self._tell()

    def _finding(self, verdict: Verdict, now: memory.Memory, rate: float, held: str) -> Finding:
        freezing = verdict is Verdict.FREEZING
        floor = self._config().memory.floor_gib
        falling = f", falling by {rate:.1f} GiB a second" if rate >= 0.1 else ""
        return Finding(
            code="memory.exhausted" if freezing else "memory.running-out",
            severity=Severity.ERROR if freezing else Severity.WARNING,
            node=self._post.node,
            subject="memory",
            measured=f"{now.available:.1f} GiB of {now.total:.1f} available{falling}{held}",
            wanted=f"{floor if freezing else floor * guard.WARN_FLOORS:g} GiB or more under a running set "
            "(memory.floor_gib)",
            fix="All ranks are restarted before this Spark freezes. End what else grows here, or lower engine.context."
            if freezing
            else f"Below {floor:g} GiB all ranks are restarted: end what else grows here.",
        )

    def _forget_old_words(self) -> None:
        old = [code for code, (at, _) in self._said.items() if boottime() - at > REMEMBER_SECONDS]
        for code in old:
            del self._said[code]
        if old:
            self._tell()

    def _tell(self) -> None:
        low = (self._low,) if self._low is not None else ()
        self._post.host = (*low, *(finding for _, finding in self._said.values()))
        self._post.nudge()

    # -- what the engine needs ---------------------------------------------------------------------------------

    def rank_changed(self) -> None:
        self._rank_changed.set()

    async def _keep_estimates(self) -> None:
        """Keeps on the disk what the engine says it needs, as soon as it says it: a rank may end right after.

        A disk that refuses costs a check, not the set.
        """
        await self._disk(self._estimates.read)
        while True:
            view = self._post.report.rank
            if view is not None and view.estimate_gib is not None:
                await self._note(view, view.estimate_gib)
            await self._rank_changed.wait()
            self._rank_changed.clear()

    async def _note(self, view: RankView, gib: float) -> None:
        if self._noted == (view.generation, gib):
            return
        self._noted = (view.generation, gib)
        config, variant = self._config(), self._post.variant

        def keep() -> None:
            if self._estimates.keep(estimate.identity(config, variant), gib):
                self._estimates.write()

        await self._disk(keep)

    async def _disk(self, work: Callable[[], None]) -> None:
        try:
            await processes.aside(work, DISK_SECONDS)
        except OSError as error:  # TimeoutError is one
            log.warning("the engine's estimate is not kept: %s", error or "no answer", extra={"code": "disk.estimate"})


async def _biggest() -> str:
    """Who holds the most, in words; nothing where /proc does not answer."""
    try:
        found = await processes.aside(lambda: holders.by_memory(3), HOLDERS_SECONDS)
    except OSError:
        return ""
    told = [f"{one.program} (pid {one.pid}) {one.rss / _GIB:.1f} GiB" for one in found if one.rss >= _GIB // 2]
    return f"; the most is held by {', '.join(told)}" if told else ""
