"""A new session knows nothing of the set until it has been told: what the last one said may be over."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web

from glm_spark.cluster import protocol, session
from glm_spark.cluster.post import Post
from glm_spark.cluster.protocol import Beat, Hello, Opening, Report
from glm_spark.cluster.worker import Self, Worker
from glm_spark.finding import Finding
from glm_spark.status import ApiStatus, Status

TOKEN = b"t" * 64


class IdlePost:
    node = "spark-2"
    report = Report()

    def pursue(self, _goal: object) -> None:
        """A worker's rank is no matter here."""


def opening(node: str) -> Opening:
    return Opening(
        protocol=protocol.PROTOCOL,
        cluster="glm",
        node=node,
        boot_id="boot",
        instance_id="instance",
        nonce=protocol.nonce(),
    )


def live() -> Status:
    return Status(
        cluster="glm",
        node="spark-1",
        role="leader",
        state="live",
        ready=True,
        since=0.0,
        version="1",
        api=ApiStatus(url="http://127.0.0.1:8888/v1", model="GLM", max_tokens=1),
    )


async def nothing() -> None:
    return None


async def no_findings() -> tuple[Finding, ...]:
    return ()


@pytest.fixture
async def worker() -> AsyncIterator[tuple[Worker, str]]:
    me = Self(
        opening=lambda: opening("spark-2"),
        hello=lambda: Hello(version="1", generation=0, settings={}),
        inventory=lambda: None,
        memory=lambda: None,
        check=no_findings,
        provide=nothing,
    )
    made = Worker(me, cast(Post, IdlePost()), TOKEN, "spark-1", 2.0, 15.0, lambda: None)
    runner = web.ServerRunner(web.Server(made.handle))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    address: Any = runner.addresses[0]
    yield made, f"http://127.0.0.1:{address[1]}/v1/session"
    await runner.cleanup()


async def test_an_old_word_on_the_set_does_not_outlive_its_session(worker: tuple[Worker, str]) -> None:
    made, url = worker
    async with aiohttp.ClientSession() as http:
        first = await session.open_as_leader(await http.ws_connect(url), opening("spark-1"), TOKEN, "spark-2")
        await first.receive()
        await first.send(Beat(seq=1, ack=0, status=live()))
        await first.receive()
        told = made.told()
        assert told is not None
        assert told.ready
        second = await session.open_as_leader(await http.ws_connect(url), opening("spark-1"), TOKEN, "spark-2")
        await second.receive()
        assert made.fresh(), "the session itself is well"
        assert made.told() is None
        await second.send(Beat(seq=1, ack=0, status=live()))
        await second.receive()
        assert made.told() is not None
        await second.close()
