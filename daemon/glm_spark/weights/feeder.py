"""The leader's side of a sync: whenever a worker waits for weights and this Spark has them, a process sends them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from glm_spark.fabric.dial import Dial
from glm_spark.finding import Finding
from glm_spark.status import WeightsStatus
from glm_spark.weights import pins, process
from glm_spark.weights.job import Word
from glm_spark.weights.steward import Steward

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
AGAIN_SECONDS = 1.0


class Feeder:
    """One worker's. `asks` is what it last said of its weights, None while it is not heard."""

    def __init__(
        self,
        worker: str,
        steward: Steward,
        asks: Callable[[], WeightsStatus | None],
        route: Callable[[], Dial | Finding],
        pinned: Callable[[], tuple[pins.Pin, ...]],
    ) -> None:
        self.worker = worker
        self.sent = 0
        self._steward = steward
        self._asks = asks
        self._route = route
        self._pinned = pinned
        self._changed = asyncio.Event()
        self._said: str | None = None

    def changed(self) -> None:
        """The worker or this Spark may want something else now."""
        self._changed.set()

    async def run(self) -> None:
        while True:
            self._changed.clear()
            if self._wanted():
                await self._feed()
                await asyncio.sleep(AGAIN_SECONDS)
                continue
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _wanted(self) -> bool:
        asks = self._asks()
        return asks is not None and asks.phase in ("waiting", "receiving") and self._steward.complete

    async def _feed(self) -> None:
        route = self._route()
        if isinstance(route, Finding):
            self._say(route)
            return
        steward = self._steward
        way: dict[str, Any] = {"address": route.address, "netdev": route.netdev, "source": route.source}
        door = steward.door(self.worker).model_copy(update={**way, "addresses": ()})
        job = steward.job("send", self._pinned()).model_copy(update={"door": door})
        log.info("sending the weights to %s over %s", self.worker, route.netdev)
        findings = await process.run(job, self._take)
        self._say(findings[0] if findings else None)
        if not findings:
            log.info("%s has the weights", self.worker)

    def _take(self, word: Word) -> None:
        self.sent = word.moved

    def _say(self, trouble: Finding | None) -> None:
        """Each trouble once."""
        text = str(trouble) if trouble else None
        if trouble is not None and text != self._said:
            log.warning("%s", trouble, extra={"code": trouble.code})
        if text != self._said:
            self._steward.remark(trouble)
        self._said = text
