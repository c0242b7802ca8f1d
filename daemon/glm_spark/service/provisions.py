"""Weights in a Spark's daily work: its own before a start, and on the leader those of its workers."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from glm_spark.cluster.peer import Peer
from glm_spark.cluster.post import NotReady
from glm_spark.fabric.dial import Dial
from glm_spark.finding import Finding
from glm_spark.handover.offer import Offer
from glm_spark.status import WeightsStatus
from glm_spark.weights import pins
from glm_spark.weights.feeder import Feeder, Weights
from glm_spark.weights.steward import Steward, Unprovided

if TYPE_CHECKING:
    from glm_spark.service.station import Station

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
    """The leader's: feeds workers that wait for weights or for the image, and begins a sync when asked."""

    def __init__(
        self,
        station: Station,
        peers: Sequence[tuple[Peer, Callable[[], Dial | Finding]]],
    ) -> None:
        self._steward = station.steward
        self._asked = asyncio.Event()
        self._peers = tuple(peer for peer, _ in peers)
        weights = Weights(self._steward, lambda: pins.wanted(station.config))
        place = station.place
        self._offer = Offer(
            place.me,
            place.state,
            self._steward,
            lambda: station.config,
            lambda: any(_image_asked(peer) for peer in self._peers),
            lambda: station.hand_over(self._offer.status),
        )
        self._feeders = tuple(
            Feeder(peer.node.name, goods, functools.partial(asks, peer), route)
            for peer, route in peers
            for goods, asks in ((weights, _weights_asked), (self._offer, _image_asked))
        )

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for feeder in self._feeders:
                tasks.create_task(feeder.run(), name=f"{feeder.name} for {feeder.worker}")
            tasks.create_task(self._offer.run(), name="offer of the image")
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


def _weights_asked(peer: Peer) -> WeightsStatus | None:
    return peer.known.report.weights if peer.known.up and peer.known.report else None


def _image_asked(peer: Peer) -> WeightsStatus | None:
    return peer.known.report.handover if peer.known.up and peer.known.report else None
