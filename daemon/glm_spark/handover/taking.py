"""A worker's daemon while the image comes over the cable: asks for it, follows the process, says how far it is."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from pathlib import Path

from glm_spark.config.model import Config
from glm_spark.engine import images, processes
from glm_spark.finding import Finding
from glm_spark.handover import jobs, place
from glm_spark.status import WeightsStatus
from glm_spark.weights import process
from glm_spark.weights.job import Word
from glm_spark.weights.steward import Pacer, Steward

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
CLEAR_SECONDS = 60.0


class Taking:
    """`status` is what the leader reads the asking from; None while nothing is asked for."""

    def __init__(
        self, node: str, state: Path, steward: Steward, config: Callable[[], Config], on_change: Callable[[], None]
    ) -> None:
        self._node = node
        self._state = state
        self._steward = steward
        self._config = config
        self._on_change = on_change
        self._pace = Pacer()
        self.status: WeightsStatus | None = None

    def may(self, config: Config) -> bool:
        """Whether this Spark has somebody to take the image from."""
        return self._node != config.leader.name and jobs.may(config)

    async def take(self) -> tuple[Finding, ...]:
        """Returns what stood in the way, nothing once the image is in podman's store; also when the configuration
        names another image meanwhile, or it came there by other means. Cancelling it leaves what came already.
        """
        config = self._config()
        self._tell(WeightsStatus(phase="waiting"))
        try:
            async with self._steward.at_work:
                if not isinstance(await images.look(config, self._node), Finding):
                    return ()
                door = self._steward.door(self._node, "image")
                job = jobs.job("receive", self._node, self._state, config, door)
                return await self._follow(config, asyncio.create_task(process.run(job, self._take), name="image"))
        finally:
            self._tell(None)

    async def _follow(self, config: Config, running: asyncio.Task[tuple[Finding, ...]]) -> tuple[Finding, ...]:
        try:
            while not running.done() and self._config().engine == config.engine:
                await asyncio.wait([running], timeout=LOOK_SECONDS)
            if not running.done():
                return ()
            if not (found := running.result()):
                log.info("image %s is here, from %s", config.engine.image, config.leader.name)
            return found
        finally:
            running.cancel()
            await asyncio.wait([running])

    async def tidy(self) -> None:
        """Clears what an earlier life left after the image had come into podman's store; for the rest it is resumed."""
        config = self._config()
        notes = place.state(self._state / "weights")
        if not place.top(config.model.cache).exists() or place.at_work(notes):
            return
        if config.engine.runtime == "podman" and isinstance(await images.look(config, self._node), Finding):
            return
        with contextlib.suppress(OSError):  # TimeoutError is one; glm-spark weights gc says why
            await processes.aside(lambda: place.clear(config.model.cache, notes), CLEAR_SECONDS)

    def _take(self, word: Word) -> None:
        if not word.ended:
            rate = self._pace.rate(word.phase, word.done, time.monotonic())
            phase = "waiting" if word.phase == "idle" else word.phase
            self._tell(WeightsStatus(phase=phase, done=word.done, total=word.total, rate=rate))

    def _tell(self, status: WeightsStatus | None) -> None:
        if status != self.status:
            self.status = status
            self._on_change()
