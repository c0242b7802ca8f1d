"""The endpoint over a plain engine, and the control port, as real sockets on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest

from glm_spark.api.front import Front
from glm_spark.api.gate import Gate
from tests.unit.api.parts import LIMIT_S, Daemon, Endpoint, Engine, configured

Opener = Callable[..., Awaitable[Endpoint]]


@pytest.fixture
async def opened() -> AsyncIterator[Opener]:
    """Makes an endpoint with these [api] settings, gate open."""
    async with AsyncExitStack() as stack:

        async def make(**api: Any) -> Endpoint:
            config = configured(api=api)
            daemon, gate, engine = Daemon(), Gate(), Engine()
            await engine.open(config.engine.http_port)
            stack.callback(engine.die)
            front = Front(config, gate, daemon)
            await front.start()
            stack.push_async_callback(front.stop)
            gate.open(f"http://127.0.0.1:{config.engine.http_port}")
            return Endpoint(config, gate, daemon, engine, front)

        yield make


@pytest.fixture
async def endpoint(opened: Opener) -> Endpoint:
    return await opened()


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=LIMIT_S)) as session:
        yield session
