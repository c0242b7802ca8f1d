"""The endpoint over a real set of stand-in ranks: what a client sees while ranks live, freeze and die."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from glm_spark.api.front import Front
from glm_spark.api.gate import Gate
from tests.unit.api.parts import DEAD, LIMIT_S, Daemon, configured
from tests.unit.standin.sets import Set, question

CHAT = "/v1/chat/completions"


class Served:
    def __init__(self, ranks: Set, gate: Gate, url: str) -> None:
        self.ranks = ranks
        self.gate = gate
        self.url = url


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    ranks, gate = Set(tmp_path), Gate()
    config = configured(engine={"http_port": ranks.http_port})
    front = Front(config, gate, Daemon())
    try:
        ranks.faults(reply_tokens=20)
        await ranks.live(2)
        await front.start()
        gate.open(f"http://127.0.0.1:{ranks.http_port}")
        yield Served(ranks, gate, f"http://127.0.0.1:{config.api.port}")
    finally:
        await front.stop()
        await ranks.clear()


async def test_a_chat_and_a_stream_are_the_engines_own(served: Served, client: aiohttp.ClientSession) -> None:
    async with client.post(served.url + CHAT, json=question()) as reply:
        assert reply.status == 200
        plain = (await reply.json())["choices"][0]["message"]["content"]
    async with client.post(served.url + CHAT, json=question(stream=True)) as reply:
        events = (await reply.text()).split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    deltas = [json.loads(event.removeprefix("data: "))["choices"][0]["delta"] for event in events[:-2]]
    assert "".join(delta.get("content", "") for delta in deltas) == plain
    assert plain


async def test_a_head_is_answered_as_the_engine_answers_it(served: Served, client: aiohttp.ClientSession) -> None:
    for _ in range(2):  # what follows on the client's connection is not upset by it
        async with client.head(served.url + "/v1/models") as reply:
            assert reply.status == 501
    async with client.get(served.url + "/v1/models") as reply:
        assert reply.status == 200


async def test_a_request_that_a_frozen_rank_holds_is_answered_when_the_daemon_knows(
    served: Served, client: aiohttp.ClientSession
) -> None:
    """Rank 0 is alive and its /health says 200: only the gate can end this request."""
    served.ranks.ranks[1].signal(signal.SIGSTOP)
    async with asyncio.TaskGroup() as group:
        asked = group.create_task(client.post(served.url + CHAT, json=question()).__aenter__())
        async with asyncio.timeout(LIMIT_S):
            while (await served.ranks.health())["requests_running"] == 0:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        closed = time.monotonic()
        served.gate.close(DEAD)
    reply = asked.result()
    assert time.monotonic() - closed < 1.0
    assert reply.status == 503
    assert (await reply.json())["error"]["code"] == "rank.lost"
    reply.release()


async def test_rank_0_killed_in_a_stream_ends_it_with_an_error_though_nobody_told_the_gate(
    served: Served, client: aiohttp.ClientSession
) -> None:
    served.ranks.faults(reply_tokens=100_000)
    async with client.post(served.url + CHAT, json=question(stream=True)) as reply:
        await reply.content.readuntil(b'"content": "')
        killed = time.monotonic()
        served.ranks.ranks[0].signal(signal.SIGKILL)
        rest = await reply.content.read()
    assert time.monotonic() - killed < 1.0
    assert rest.endswith(b"data: [DONE]\n\n")
    assert b'"type": "server_error"' in rest


async def test_an_abandoned_stream_frees_the_engines_slot(served: Served, client: aiohttp.ClientSession) -> None:
    served.ranks.faults(reply_tokens=100_000)
    async with client.post(served.url + CHAT, json=question(stream=True)) as reply:
        await reply.content.readuntil(b'"content": "')
        reply.close()
    async with asyncio.timeout(LIMIT_S):
        while (await served.ranks.health())["requests_running"] > 0:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert not served.gate.busy
