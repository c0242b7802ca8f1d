"""While the set is live the endpoint is the engine: bytes through, both ways."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator

import aiohttp
import pytest
from yarl import URL

from tests.unit.api.conftest import Opener
from tests.unit.api.parts import DONE, EVENT, LIMIT_S, Endpoint, until

MIB = 1 << 20


async def test_method_path_query_and_body_arrive_as_they_were_sent(
    endpoint: Endpoint, client: aiohttp.ClientSession
) -> None:
    url = f"{endpoint.url}/v1/a%2Fb//c?x=%20&y=1"
    async with client.request("PATCH", URL(url, encoded=True), data=b"\x00\xff body") as reply:
        assert reply.status == 200
        assert reply.headers["Server"] == "engine"
    (arrived,) = endpoint.engine.arrived
    assert (arrived.method, arrived.target, arrived.body) == ("PATCH", "/v1/a%2Fb//c?x=%20&y=1", b"\x00\xff body")


async def test_the_engine_sees_no_key_no_foreign_host_and_no_wish_for_compression(
    endpoint: Endpoint, client: aiohttp.ClientSession
) -> None:
    headers = {
        "Authorization": "Bearer secret",
        "x-api-key": "secret",
        "Connection": "keep-alive, X-Hop",
        "X-Hop": "1",
        "X-Kept": "yes",
        "Accept-Encoding": "gzip",
    }
    async with client.post(f"{endpoint.url}/v1/models", headers=headers, json={}) as reply:
        await reply.read()
        assert "Access-Control-Allow-Origin" not in reply.headers
    (arrived,) = endpoint.engine.arrived
    assert not any("secret" in value for _, value in arrived.headers)
    assert arrived.named("x-hop") == arrived.named("accept-encoding") == []
    assert arrived.named("x-kept") == ["yes"]
    assert arrived.named("host") == [f"127.0.0.1:{endpoint.config.engine.http_port}"]


async def test_tokens_come_one_by_one_as_the_engine_makes_them(
    endpoint: Endpoint, client: aiohttp.ClientSession
) -> None:
    async with client.post(f"{endpoint.url}/v1/chat/completions", json={}) as reply:
        assert await reply.content.readexactly(len(EVENT)) == EVENT
        endpoint.engine.more.set()  # the second is only made once the first was seen
        assert await reply.content.read() == EVENT + DONE
    await endpoint.none_in_flight()
    assert endpoint.gate.counts["-", "answered"] == 1


async def test_a_body_of_96_mib_goes_through(endpoint: Endpoint, client: aiohttp.ClientSession) -> None:
    body = b"0123456789abcdef" * (96 * MIB // 16)
    timeout = aiohttp.ClientTimeout(total=30)
    async with client.post(f"{endpoint.url}/v1/echo", data=body, timeout=timeout) as reply:
        assert await reply.json() == {"sha256": hashlib.sha256(body).hexdigest(), "length": 96 * MIB}


async def test_a_larger_body_is_refused_at_once(endpoint: Endpoint) -> None:
    reader, writer = await endpoint.connect()
    writer.write(f"POST /v1/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: {96 * MIB + 1}\r\n\r\n".encode())
    async with asyncio.timeout(LIMIT_S):
        assert (await reader.readline()).startswith(b"HTTP/1.1 413 ")
        assert b"96 MiB (api.max_body_mib)" in await reader.readuntil(b"}}")
    writer.close()
    assert not endpoint.engine.arrived


async def test_a_chunked_body_reaches_the_engine_with_its_length(
    endpoint: Endpoint, client: aiohttp.ClientSession
) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for number in range(300):
            yield bytes([number % 256]) * 7919

    async with client.post(f"{endpoint.url}/v1/echo", data=pieces()) as reply:
        assert reply.status == 200
        assert (await reply.json())["length"] == 300 * 7919
    (arrived,) = endpoint.engine.arrived
    assert arrived.named("transfer-encoding") == []
    assert arrived.named("content-length") == [str(300 * 7919)]
    assert arrived.body == b"".join(bytes([number % 256]) * 7919 for number in range(300))


async def test_a_chunked_body_over_the_limit_is_refused(opened: Opener) -> None:
    endpoint = await opened(max_body_mib=1)
    chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    head = b"POST /v1/echo HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer = await endpoint.says(head + chunk * 17 + b"0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert not endpoint.engine.arrived
    assert endpoint.gate.counts["-", "refused"] == 1


async def test_memory_held_for_bodies_without_a_length_is_bounded_over_all_requests(opened: Opener) -> None:
    """Sixty-four clients with 96 MiB each would take the memory the model needs, and freeze the Spark."""
    endpoint = await opened(max_body_mib=1)
    head = b"POST /v1/echo HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    held = [await endpoint.connect() for _ in range(2)]
    for _, writer in held:
        writer.write(head + chunk * 16)  # a whole MiB, unfinished
    await until(lambda: endpoint.front.held_bytes == 2 * MIB)
    answer = await endpoint.says(head + chunk + b"0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 429 ")
    assert b"Retry-After: 5" in answer
    for _, writer in held:
        writer.write(b"0\r\n\r\n")
    for reader, writer in held:
        assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
        writer.close()
    assert endpoint.front.held_bytes == 0


async def test_a_client_that_waits_to_be_asked_is_asked(endpoint: Endpoint) -> None:
    reader, writer = await endpoint.connect()
    writer.write(b"POST /v1/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
    async with asyncio.timeout(LIMIT_S):
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"hello")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK\r\n")
    writer.close()
    assert endpoint.engine.arrived[0].body == b"hello"
    assert endpoint.engine.arrived[0].named("expect") == []


async def test_a_client_is_not_asked_for_a_body_that_would_be_refused(opened: Opener) -> None:
    endpoint = await opened(max_body_mib=1)
    request = b"POST /v1/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999999\r\nExpect: 100-continue\r\n\r\n"
    assert (await endpoint.head(request)).startswith(b"HTTP/1.1 413 ")


async def test_head_has_the_length_and_no_body(endpoint: Endpoint, client: aiohttp.ClientSession) -> None:
    async with client.head(f"{endpoint.url}/v1/models") as reply:
        assert reply.status == 200
        assert int(reply.headers["Content-Length"]) > 0
        assert await reply.read() == b""


async def test_one_connection_serves_many_requests(endpoint: Endpoint) -> None:
    reader, writer = await endpoint.connect()
    for _ in range(3):
        writer.write(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
        async with asyncio.timeout(LIMIT_S):
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
            await reader.readexactly(length)
    writer.close()
    assert len(endpoint.engine.arrived) == 3


@pytest.mark.parametrize("path", ["/hang", "/v1/chat/completions"])
async def test_a_client_that_leaves_frees_the_engine_at_once(endpoint: Endpoint, path: str) -> None:
    """An abandoned request must not go on blocking the only slot."""
    reader, writer = await endpoint.connect()
    writer.write(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{{}}".encode())
    async with asyncio.timeout(LIMIT_S):
        await endpoint.engine.came.wait()
        if path != "/hang":
            await reader.readuntil(b"\n\n")
        writer.close()
        await endpoint.engine.left.wait()
    await endpoint.none_in_flight()
    assert endpoint.gate.counts["-", "abandoned"] == 1


async def test_a_client_that_leaves_in_the_middle_of_its_body_frees_its_place(endpoint: Endpoint) -> None:
    _, writer = await endpoint.connect()
    writer.write(b"POST /v1/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nhalf")
    await until(lambda: endpoint.gate.busy)
    writer.close()
    await endpoint.none_in_flight()
    assert not endpoint.engine.arrived
