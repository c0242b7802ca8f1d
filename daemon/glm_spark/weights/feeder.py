"""The leader's side of a sync: whenever a worker waits for what this Spark has, a process sends it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Protocol

from glm_spark.fabric.dial import Dial
from glm_spark.finding import Finding
from glm_spark.status import WeightsStatus
from glm_spark.weights import pins, process
from glm_spark.weights.job import Job, Word
from glm_spark.weights.steward import Steward

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
AGAIN_SECONDS = 1.0


class Goods(Protocol):
    """What workers are fed with."""

    @property
    def name(self) -> str: ...

    @property
    def ready(self) -> bool:
        """Whether a worker that asks can be answered."""
        ...

    async def job(self, worker: str) -> Job:
        """What sends it, all but the way."""
        ...

    def remark(self, trouble: Finding | None) -> None:
        """What keeps it from a worker."""
        ...


class Weights:
    """The pinned weights, once they are complete on this Spark."""

    name = "the weights"

    def __init__(self, steward: Steward, pinned: Callable[[], tuple[pins.Pin, ...]]) -> None:
        self._steward = steward
        self._pinned = pinned

    @property
    def ready(self) -> bool:
        return self._steward.complete

    async def job(self, worker: str) -> Job:
        return self._steward.job("send", self._pinned()).model_copy(update={"door": self._steward.door(worker)})

    def remark(self, trouble: Finding | None) -> None:
        self._steward.remark(trouble)


class Feeder:
    """One worker's. `asks` is what it last said of these goods, None while it is not heard or needs nothing."""

    def __init__(
        self,
        worker: str,
        goods: Goods,
        asks: Callable[[], WeightsStatus | None],
        route: Callable[[], Dial | Finding],
    ) -> None:
        self.worker = worker
        self.name = goods.name
        self.sent = 0
        self._goods = goods
        self._asks = asks
        self._route = route
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
        return asks is not None and asks.phase in ("waiting", "receiving") and self._goods.ready

    async def _feed(self) -> None:
        job = await self._goods.job(self.worker)
        route = self._route()  # found last: making the job may take minutes
        if isinstance(route, Finding):
            self._say(route)
            return
        assert job.door is not None
        way: dict[str, Any] = {"address": route.address, "netdev": route.netdev, "source": route.source}
        job = job.model_copy(update={"door": job.door.model_copy(update={**way, "addresses": ()})})
        refused = job.image is not None and bool(job.image.refusal)
        if not refused:
            log.info("sending %s to %s over %s", self._goods.name, self.worker, route.netdev)
        findings = await process.run(job, self._take)
        self._say(findings[0] if findings else None)
        if not findings and not refused:
            log.info("%s has %s", self.worker, self._goods.name)

    def _take(self, word: Word) -> None:
        self.sent = word.moved

    def _say(self, trouble: Finding | None) -> None:
        """Each trouble once."""
        text = str(trouble) if trouble else None
        if trouble is not None and text != self._said:
            log.warning("%s", trouble, extra={"code": trouble.code})
        if text != self._said:
            self._goods.remark(trouble)
        self._said = text
