"""A worker's answers to the leader's steps reach it, however many beats go meanwhile."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from glm_spark.cluster.protocol import Beat, Did, Report, Told
from glm_spark.cluster.worker import Worker
from glm_spark.fabric.exchange import Answer, Order, QueuePair

END = QueuePair(qpn=17, psn=1, gid="::ffff:a00:102", mtu=4096)


class Wire:
    """The session as the worker sees it: the leader's beats in, the worker's out."""

    def __init__(self) -> None:
        self.peer = SimpleNamespace(node="spark-1")
        self.inbound: asyncio.Queue[Beat] = asyncio.Queue()
        self.sent: list[Beat] = []
        self.news = asyncio.Event()

    async def receive(self) -> Beat:
        return await self.inbound.get()

    async def send(self, beat: Beat) -> None:
        self.sent.append(beat)
        self.news.set()

    async def close(self, *_: Any) -> None: ...

    async def until_sent(self, count: int) -> None:
        async with asyncio.timeout(5):
            while len(self.sent) < count:
                self.news.clear()
                await self.news.wait()

    async def answer(self) -> Did:
        async with asyncio.timeout(5):
            while True:
                found = [did for beat in self.sent for did in beat.answers or ()]
                if found:
                    assert len(found) == 1
                    return found[0]
                self.news.clear()
                await self.news.wait()


async def test_a_step_that_takes_several_beats_is_answered() -> None:
    go_on = asyncio.Event()

    async def exchange(_order: Order) -> Answer:
        await go_on.wait()
        return Answer(end=END)

    async def nothing() -> tuple[()]:
        return ()

    me: Any = SimpleNamespace(
        opening=lambda: None,
        hello=lambda: None,
        inventory=lambda: None,
        memory=lambda: None,
        check=nothing,
        provide=nothing,
        exchange=exchange,
    )
    post: Any = SimpleNamespace(node="spark-2", report=Report(), pursue=lambda _goal: None)
    worker, wire = Worker(me, post, b"t" * 32, "spark-1", 2.0, 15.0, lambda: None), Wire()
    running = [asyncio.create_task(worker.run()), asyncio.create_task(worker._serve(wire, "10.0.1.1"))]  # type: ignore[arg-type]
    try:
        order = Order(step="open", own="10.0.1.2", peer="10.0.1.1", role="listen")
        wire.inbound.put_nowait(Beat(seq=1, ack=0, orders=(Told(number=7, order=order),)))
        for seq in (2, 3, 4):
            wire.inbound.put_nowait(Beat(seq=seq, ack=0))
        await wire.until_sent(4)
        go_on.set()
        assert await wire.answer() == Did(number=7, answer=Answer(end=END))
    finally:
        for task in running:
            task.cancel()
        await asyncio.wait(running)
