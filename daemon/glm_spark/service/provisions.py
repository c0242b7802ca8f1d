"""Weights in a Spark's daily work: its own before a start, and on the leader those of its workers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from glm_spark.cluster.peer import Peer
from glm_spark.cluster.post import NotReady
from glm_spark.config.model import Config
from glm_spark.fabric.dial import Dial
from glm_spark.finding import Finding
from glm_spark.status import WeightsStatus
from glm_spark.weights import pins
from glm_spark.weights.feeder import Feeder
from glm_spark.weights.steward import Steward, Unprovided

log = logging.getLogger(__name__)


async def before_start(steward: Steward) -> None:
    """Has the weights complete; NotReady when they cannot be."""
    try:
        await steward.provide()
    except Unprovided as trouble:
        raise NotReady(*trouble.findings) from None


async def on_demand(steward: Steward) -> None:
    """Brings the weights outside a start. What stands in the way is in the steward's status."""
    try:
        await steward.provide()
    except Unprovided as trouble:
        log.warning("weights: %s", trouble)


class Supply:
    """The leader's: feeds workers that wait, and begins a sync when asked."""

    def __init__(
        self,
        steward: Steward,
        config: Callable[[], Config],
        peers: Iterable[tuple[Peer, Callable[[], Dial | Finding]]],
    ) -> None:
        self._steward = steward
        self._asked = asyncio.Event()
        self._peers = tuple(peer for peer, _ in peers)
        self._feeders = tuple(
            Feeder(peer.node.name, steward, _asks(peer), route, lambda: pins.wanted(config())) for peer, route in peers
        )

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for feeder in self._feeders:
                tasks.create_task(feeder.run(), name=f"weights for {feeder.worker}")
            tasks.create_task(self._sync(), name="sync")

    def changed(self) -> None:
        for feeder in self._feeders:
            feeder.changed()

    def sync(self) -> None:
        """Brings every Spark's weights now, also while the set is stopped; /v1/status tells how far it is."""
        self._asked.set()

    async def _sync(self) -> None:
        while True:
            await self._asked.wait()
            self._asked.clear()
            for peer in self._peers:
                peer.provide()
            await on_demand(self._steward)


def _asks(peer: Peer) -> Callable[[], WeightsStatus | None]:
    return lambda: peer.known.report.weights if peer.known.up and peer.known.report else None
