"""The leader's image for workers that ask: exported when the first one does, gone when nobody asks any more."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

from glm_spark.config.model import Config
from glm_spark.engine import processes
from glm_spark.finding import Finding
from glm_spark.handover import jobs, place
from glm_spark.handover.faults import words
from glm_spark.status import WeightsStatus
from glm_spark.weights import process
from glm_spark.weights.faults import Fault, of_disk
from glm_spark.weights.job import Job, Word
from glm_spark.weights.steward import Pacer, Steward

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
CLEAR_SECONDS = 60.0


class Offer:
    """Goods of a feeder. `asking`: whether any worker needs it now. `status` is how far the export is, or what keeps
    the image from a worker."""

    name = "the image"
    ready = True  # who cannot have it is told why

    def __init__(
        self,
        node: str,
        state: Path,
        steward: Steward,
        config: Callable[[], Config],
        asking: Callable[[], bool],
        on_change: Callable[[], None],
    ) -> None:
        self._node = node
        self._state = state
        self._steward = steward
        self._config = config
        self._asking = asking
        self._on_change = on_change
        self._pace = Pacer()
        self._exporting = asyncio.Lock()
        self._asked_at = time.monotonic()  # an earlier life's export may be asked for again
        self.status: WeightsStatus | None = None

    async def job(self, worker: str) -> Job:
        """A process that sends it, or one that tells the worker why it cannot have it."""
        refusal = await self._export()
        self._asked_at = time.monotonic()
        return jobs.job("send", self._node, self._state, self._config(), self._steward.door(worker, "image"), refusal)

    async def _export(self) -> str:
        """Why there is nothing to send, "" when all of it is on the disk. Two workers share one export."""
        async with self._exporting:
            config = self._config()
            if not jobs.may(config):
                return f"{self._node} hands no image over: see engine.hand_over, engine.runtime and engine.image there"
            findings = await process.run(jobs.job("export", self._node, self._state, config), self._take)
            self.remark(findings[0] if findings else None)
            if not findings:
                return ""
            log.error("%s", findings[0], extra={"code": findings[0].code})
            return words(findings[0])

    async def run(self) -> None:
        """Clears an export that nobody has asked for of late."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self._asking():
                self._asked_at = time.monotonic()
            if time.monotonic() - self._asked_at > place.EXPORT_SECONDS and not self._exporting.locked():
                async with self._exporting:
                    await self._clear()

    async def _clear(self) -> None:
        cache, notes = self._config().model.cache, place.state(self._state / "weights")
        try:
            if place.top(cache).exists() and not place.at_work(notes):
                await processes.aside(lambda: place.clear(cache, notes), CLEAR_SECONDS)
                log.info("removed the export of the image: no worker asks for it")
        except OSError as error:
            trouble: Fault = of_disk(self._node, str(place.top(cache)), error)
            log.warning("%s", trouble, extra={"code": trouble.finding.code})
            self._asked_at = time.monotonic()

    def _take(self, word: Word) -> None:
        if not word.ended and word.phase in ("exporting", "verifying"):
            rate = self._pace.rate(word.phase, word.done, time.monotonic())
            self._tell(WeightsStatus(phase=word.phase, done=word.done, total=word.total, rate=rate))

    def remark(self, trouble: Finding | None) -> None:
        self._tell(WeightsStatus(phase="failed", finding=trouble) if trouble else None)

    def _tell(self, status: WeightsStatus | None) -> None:
        if status != self.status:
            self.status = status
            self._on_change()
