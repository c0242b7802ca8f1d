"""What this Spark does before a rank of its own may start, beyond looking: the image, the memory of the last rank,
locks of killed builds, the GPU's clock."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from glm_spark.config.model import Config
from glm_spark.engine import buildlock, giveback, gpu, images, processes, tensorfold
from glm_spark.engine.pull import Pull, Source
from glm_spark.engine.spec import RankSpec, Variant
from glm_spark.finding import Finding, Severity
from glm_spark.host import memory
from glm_spark.host.settling import settled
from glm_spark.preflight import holders

log = logging.getLogger(__name__)

LOCK_SECONDS = 10.0
HOLDERS = 3
_GIB = 1 << 30


class Outfit:
    """`config` is read anew each time. `pull.run` is to be owned by whoever owns this. `other` may have the image."""

    def __init__(
        self, me: str, config: Callable[[], Config], on_change: Callable[[], None], other: Source | None = None
    ) -> None:
        self._me = me
        self._config = config
        self.pull = Pull(me, config, on_change, other)
        self.content = ""  # of the image of the start that is being prepared; "" for a process
        self._before: float | None = None  # GiB available when the last rank was started
        self._accepted: tuple[str, tuple[str, ...]] | None = None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What holds every start up meanwhile."""
        return (self.pull.finding,) if self.pull.finding is not None else ()

    def starting(self) -> None:
        """A rank is about to start: what is available now should be available again after its end."""
        seen = memory.look()
        self._before = seen.available if seen is not None else None

    async def ready(self) -> tuple[Finding, ...]:
        """Waits for the last rank's memory, clears stale build locks, caps the clock; what is worth telling."""
        found = [await self._memory_back(), *await self._locks(), await self._clock()]
        return tuple(finding for finding in found if finding is not None)

    def fetched(self, findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
        """The findings of a check, with the bringing of a missing image in its place where that is allowed."""
        if not self.pull.may:
            return findings
        return tuple(self.pull.want() if finding.code == "image.missing" else finding for finding in findings)

    async def judge(self, spec: RankSpec) -> Finding | None:
        """What the engine has against the rank's command line; asked once for the same line and image."""
        config = self._config()
        self.content, image = "", None
        if config.engine.runtime != "process":
            found = await images.look(config, self._me)
            if isinstance(found, Finding):
                return found
            image = found
            self.content = image.content
        # Which generation it is does not stand on the command line.
        if self._accepted == (self.content, spec.argv):
            return None
        fault = await images.arguments_fault(config, spec, image)
        self._accepted = (self.content, spec.argv) if fault is None else None
        return fault

    async def against(self, config: Config) -> tuple[Finding, ...]:
        """What the engine would have against this Spark's command line under another configuration; starts nothing.

        Neither the window of a remedy nor the master's address changes what its parser takes.
        """
        rank = config.rank_of(self._me)
        spec = RankSpec(
            cluster=config.cluster.name,
            node=self._me,
            rank=rank,
            generation=0,
            argv=tensorfold.arguments(config, rank, "127.0.0.1", Variant()),
            environment={},
        )
        fault = await images.arguments_fault(config, spec)
        return () if fault is None else (fault,)

    async def _memory_back(self) -> Finding | None:
        if self._before is None:
            return None
        seconds = await settled(giveback.wanted(self._before), memory.look)
        seen = memory.look()
        if seen is None:
            return None
        biggest = await processes.aside(lambda: holders.by_memory(HOLDERS), LOCK_SECONDS)
        named = [f"{one.program} (pid {one.pid}) {one.rss / _GIB:.1f} GiB" for one in biggest if one.rss >= _GIB / 2]
        return giveback.held(self._me, self._before, seen.available, seconds, named)

    async def _locks(self) -> tuple[Finding, ...]:
        cache = Path(self._config().engine.kernel_cache)
        try:
            removed = await processes.aside(lambda: buildlock.remove_stale(cache), LOCK_SECONDS)
        except OSError as error:  # TimeoutError is one
            log.warning("build locks in %s are not looked at: %s", cache, error or "no answer from the disk")
            return ()
        for lock in removed:
            log.warning("removed the build lock %s: %s", lock.path, lock, extra={"code": "engine.build-lock-removed"})
        return ()

    async def _clock(self) -> Finding | None:
        limit = self._config().gpu.clock_limit_mhz
        trouble = await gpu.cap(limit) if limit else ""
        if not trouble:
            return None
        return Finding(
            code="gpu.clock-not-limited",
            severity=Severity.WARNING,
            node=self._me,
            subject="the GPU's clock",
            measured=trouble[:4000],
            wanted=f"at most {limit} MHz (gpu.clock_limit_mhz)",
            fix=f"As root: nvidia-smi --lock-gpu-clocks=0,{limit}; or set gpu.clock_limit_mhz = 0.",
        )
