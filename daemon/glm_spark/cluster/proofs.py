"""Which rails were proven in a start, and the one task that proves them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from glm_spark.engine.spec import Link
from glm_spark.fabric.rails import RailFault, faults_proven
from glm_spark.fabric.verdict import RailProof

Prove = Callable[[tuple[Link, ...]], Awaitable[tuple[RailProof, ...]]]


class Proofs:
    """What is known belongs to one start: nothing about the cable is remembered from an earlier one.

    A start that goes on without a rail does not prove the others again.
    """

    def __init__(self, prove: Prove, on_news: Callable[[], None]) -> None:
        self._prove = prove
        self._on_news = on_news
        self._turn = asyncio.Lock()  # a rail has two ends and each takes part in one exchange at a time
        self._wanted = asyncio.Event()
        self._start = 0
        self._links: tuple[Link, ...] = ()
        self._known: dict[tuple[str, str], RailProof] = {}

    def want(self, start: int, links: tuple[Link, ...]) -> None:
        """Has the rails of these links proven that were not yet in this start; idempotent."""
        if start != self._start:
            self._start, self._known = start, {}
        if links != self._links or self._missing():
            self._links = links
            self._wanted.set()

    def faults(self, start: int, links: tuple[Link, ...]) -> tuple[RailFault, ...] | None:
        """What the proofs broke on; None while a rail of these links was not proven in this start."""
        rails = [rail for link in links for rail in link.rails]
        if start != self._start or any(rail not in self._known for rail in rails):
            return None
        return faults_proven(self._known[rail] for rail in rails)

    def told(self) -> tuple[RailProof, ...]:
        """Every proof of the last start."""
        return tuple(self._known.values())

    async def look(self, links: tuple[Link, ...]) -> tuple[RailProof, ...]:
        """Proves for somebody who asks; nothing is kept."""
        async with self._turn:
            return await self._prove(links)

    async def run(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            start, missing = self._start, self._missing()
            if not missing:
                continue
            proofs = await self.look(missing)
            if start == self._start:
                self._known.update({proof.rail: proof for proof in proofs})
                self._on_news()

    def _missing(self) -> tuple[Link, ...]:
        left = (
            link.model_copy(update={"rails": tuple(rail for rail in link.rails if rail not in self._known)})
            for link in self._links
        )
        return tuple(link for link in left if link.rails)
