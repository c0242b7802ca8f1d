"""Rails are proven once a start, one after another for whoever asks, and forgotten with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from glm_spark.cluster.proofs import Proofs
from glm_spark.cluster.protocol import Beat, Did, ProtocolFault, Told, decode, encode
from glm_spark.engine.spec import Link
from glm_spark.fabric.exchange import Answer, Measured, Order, QueuePair
from glm_spark.fabric.verdict import RailProof
from glm_spark.finding import Finding, Severity

FIRST, SECOND = ("10.0.1.1", "10.0.1.2"), ("10.0.2.1", "10.0.2.2")
BOTH = (Link(a="spark-1", b="spark-2", rails=(FIRST, SECOND)),)
ONE = (Link(a="spark-1", b="spark-2", rails=(FIRST,)),)


class Bench:
    def __init__(self) -> None:
        self.asked: list[tuple[tuple[str, str], ...]] = []
        self.broken: set[tuple[str, str]] = set()
        self.at_once = 0
        self.news = asyncio.Event()
        self.proofs = Proofs(self.prove, self.news.set)

    async def prove(self, links: tuple[Link, ...]) -> tuple[RailProof, ...]:
        rails = [rail for link in links for rail in link.rails]
        self.asked.append(tuple(rails))
        self.at_once += 1
        assert self.at_once == 1, "two exchanges on one rail"
        await asyncio.sleep(0)
        self.at_once -= 1
        return tuple(self._proof(rail) for rail in rails)

    def _proof(self, rail: tuple[str, str]) -> RailProof:
        if rail not in self.broken:
            return RailProof(a="spark-1", b="spark-2", rail=rail, verdict="fine")
        finding = Finding(code="fabric.rdma-broken", severity=Severity.ERROR, node="spark-1", subject="rail")
        return RailProof(a="spark-1", b="spark-2", rail=rail, verdict="broken", finding=finding)

    async def told(self) -> None:
        async with asyncio.timeout(5):
            await self.news.wait()
        self.news.clear()


@asynccontextmanager
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    running = asyncio.create_task(made.proofs.run())
    try:
        yield made
    finally:
        running.cancel()
        await asyncio.wait([running])


async def test_a_start_knows_nothing_before_its_rails_were_proven() -> None:
    async with bench() as at:
        assert at.proofs.faults(1, BOTH) is None
        at.broken = {SECOND}
        at.proofs.want(1, BOTH)
        await at.told()
        faults = at.proofs.faults(1, BOTH)
        assert faults is not None
        assert [(fault.code, fault.rail) for fault in faults] == [("fabric.rdma-broken", SECOND)]


async def test_going_on_without_a_rail_proves_none_twice_and_the_next_start_all() -> None:
    async with bench() as at:
        at.proofs.want(1, BOTH)
        await at.told()
        assert at.proofs.faults(1, ONE) == ()
        assert at.proofs.faults(2, ONE) is None
        at.proofs.want(2, BOTH)
        await at.told()
        assert at.asked == [(FIRST, SECOND), (FIRST, SECOND)]


async def test_who_asks_meanwhile_waits() -> None:
    async with bench() as at:
        at.proofs.want(1, BOTH)
        proofs = await asyncio.gather(at.proofs.look(ONE), at.proofs.look(BOTH))
        assert [len(one) for one in proofs] == [1, 2]
        await at.told()


def test_steps_and_their_answers_cross_the_wire_as_numbers_and_addresses_alone() -> None:
    order = Order(
        step="join",
        own="10.0.1.2",
        peer="10.0.1.1",
        role="listen",
        end=QueuePair(qpn=17, psn=4711, gid="::ffff:a00:101", mtu=4096),
    )
    answer = Answer(
        measured=Measured(step="done", received=3, round_trip=3e-6, wrote_bytes=1 << 20, wrote_seconds=1e-4)
    )
    beat = Beat(seq=1, ack=0, orders=(Told(number=7, order=order),), answers=(Did(number=6, answer=answer),))
    assert decode(encode(beat)) == beat
    assert decode(encode(Beat(seq=1, ack=0))).orders is None
    for step in ("exec", "open; reboot"):
        with pytest.raises(ProtocolFault):
            decode(encode(beat).replace(b'"join"', f'"{step}"'.encode()))
