"""Whole sets of the stand-in engine, started from a configuration as the daemon does it."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest

from glm_spark.config.model import Config, Stop
from glm_spark.engine import canary, health, processes
from glm_spark.engine.process import ProcessRuntime
from glm_spark.engine.rank import Rank
from glm_spark.engine.spec import LocalRail, Variant
from glm_spark.engine.tensorfold import rank_spec
from glm_spark.finding import Finding, Severity

Until = Callable[[Callable[[], object]], Awaitable[None]]
MODEL = "GLM-5.3-Flash-EXL3"
RAIL = LocalRail(peer="b", netdev="lo", address="127.0.0.1", peer_address="127.0.0.1", mtu=65536)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


class Sparks:
    """Ranks of one set on this machine."""

    def __init__(self, cluster: str) -> None:
        self.cluster = cluster
        self.port = free_port()
        self.ranks: list[Rank] = []
        self.lives: list[asyncio.Task[None]] = []

    def start(
        self,
        number: int = 2,
        variant: Variant | None = None,
        told: dict[int, dict[str, str]] | None = None,
        **script: Any,
    ) -> None:
        """`told` is what single ranks hear beside the configuration."""
        names = [f"spark-{rank + 1}" for rank in range(number)]
        config = Config.model_validate(
            {
                "cluster": {"name": self.cluster},
                "node": [{"name": n, "address": f"127.0.1.{i + 1}"} for i, n in enumerate(names)],
                "fabric": {"transport": "socket"},
                "engine": {
                    "runtime": "process",
                    "command": [sys.executable, "-m", "glm_spark.standin"],
                    "http_port": self.port,
                    "master_port": free_port(),
                    "environment": {"TENSORFOLD_STANDIN": json.dumps({"any_model": True, "token_rate": 0, **script})},
                },
            }
        )
        for name in names:
            spec = rank_spec(config, name, 3, (RAIL,), "127.0.0.1", "lo", variant or Variant())
            own = (told or {}).get(spec.rank, {})
            spec = spec.model_copy(update={"environment": {**spec.environment, **own}})
            rank = Rank(spec, ProcessRuntime(), Stop(), lambda: None)
            self.ranks.append(rank)
            self.lives.append(asyncio.create_task(rank.run()))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def end(self) -> None:
        for rank in self.ranks:
            rank.stop(graceful=False)
        async with asyncio.timeout(10):
            await asyncio.gather(*self.lives)


@pytest.fixture
async def sparks(cluster: str) -> AsyncIterator[Sparks]:
    found = Sparks(cluster)
    yield found
    await found.end()


@pytest.mark.parametrize("number", [2, 3])
async def test_a_set_gets_ready_answers_and_stops(sparks: Sparks, until: Until, cluster: str, number: int) -> None:
    sparks.start(number)
    await until(lambda: [rank.view.state for rank in sparks.ranks] == ["ready"] * number)
    first = sparks.ranks[0].view
    assert (first.served_context, first.window, first.estimate_gib) == (1048576, 1048576, 88.09)
    assert first.transport == "Socket"
    assert [rank.view.findings for rank in sparks.ranks] == [()] * number
    async with aiohttp.ClientSession() as session:
        await served(session, sparks)
        answer = await canary.ask(session, sparks.url, MODEL, 5.0)
        assert isinstance(answer, str)
        assert canary.content_fault(answer) is None
        told = await health.poll(session, sparks.url, 5.0)
        assert isinstance(told, health.EngineHealth)
        assert told.completion_tokens_total > 0
    for rank in sparks.ranks:
        rank.stop(graceful=True)
    async with asyncio.timeout(10):
        await asyncio.gather(*sparks.lives)
    assert [rank.view.findings for rank in sparks.ranks] == [()] * number
    assert sparks.ranks[0].view.exit_text == "ended with exit status 0"
    assert processes.marked({"GLM_SPARK_CLUSTER": cluster}) == []


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ({"window": 524288}, "engine.window-refused"),
        ({"window": 0}, "engine.window-none"),
        ({"fail_with": "nccl"}, "engine.nccl-error"),
        ({"fail_with": "roce-write"}, "engine.path-broken"),
        ({"fail_with": "roce-late"}, "engine.peer-late"),
        ({"fail_with": "roce-device"}, "engine.rdma-device-missing"),
        ({"fail_with": "roce-port"}, "engine.roce-port-inactive"),
        ({"fail_with": "roce-geometry"}, "engine.roce-geometry"),
        ({"fail_with": "oom"}, "engine.out-of-memory"),
        ({"any_model": False}, "engine.refused"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
async def test_a_start_that_fails_is_named(sparks: Sparks, script: dict[str, Any], code: str) -> None:
    sparks.start(**script)
    async with asyncio.timeout(10):
        await sparks.lives[0]
    found = sparks.ranks[0].view.findings
    codes = [finding.code for finding in found if finding.severity is Severity.ERROR]
    assert codes[0] == code
    assert codes[-1] == "engine.rank-ended"


async def test_a_taken_port_is_named_after_the_load(sparks: Sparks) -> None:
    with socket.create_server(("127.0.0.1", sparks.port)):
        sparks.start()
        async with asyncio.timeout(10):
            await sparks.lives[0]
    assert sparks.ranks[0].view.findings[0].code == "engine.port-busy"


async def test_an_engine_that_is_broken_for_good_says_so(sparks: Sparks, until: Until) -> None:
    sparks.start(broken="out-of-step")
    await until(lambda: sparks.ranks[0].view.state == "ready")
    async with aiohttp.ClientSession() as session:
        await served(session, sparks)
        answer = await canary.ask(session, sparks.url, MODEL, 5.0, node="spark-1")
    assert isinstance(answer, Finding)
    assert answer.code == "engine.canary-refused"
    await until(lambda: sparks.ranks[0].view.findings)
    assert [finding.code for finding in sparks.ranks[0].view.findings] == ["engine.out-of-step", "engine.latched"]


async def test_a_smaller_window_that_the_engine_proposed_is_served(sparks: Sparks, until: Until) -> None:
    sparks.start(variant=Variant(context=524288), window=524288)
    await until(lambda: sparks.ranks[0].view.served_context == 524288)


async def test_a_set_whose_answers_collapsed_does_not_pass(sparks: Sparks, until: Until) -> None:
    sparks.start(reply="bang")
    await until(lambda: [rank.view.state for rank in sparks.ranks] == ["ready", "ready"])
    async with aiohttp.ClientSession() as session:
        await served(session, sparks)
        answer = await canary.ask(session, sparks.url, MODEL, 5.0)
    assert isinstance(answer, str)
    assert canary.content_fault(answer)


async def test_settings_that_differ_end_every_rank_with_that_finding(sparks: Sparks) -> None:
    sparks.start(told={1: {"TF_GLM_KV": "bf16"}})
    async with asyncio.timeout(10):
        await asyncio.gather(*sparks.lives)
    for rank in sparks.ranks:
        assert rank.view.findings[0].code == "engine.settings-differ"


async def served(session: aiohttp.ClientSession, sparks: Sparks) -> None:
    async with asyncio.timeout(5):
        while not await canary.models_ready(session, sparks.url, MODEL):  # noqa: ASYNC110 - a port of another process
            await asyncio.sleep(0.01)
