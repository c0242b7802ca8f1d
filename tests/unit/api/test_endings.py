"""A request is answered by the model or by a prompt, honest error; it never hangs because the set is dead."""

from __future__ import annotations

import asyncio
import json
import time

import aiohttp
import pytest

from glm_spark.api.source import Readiness
from tests.unit.api.parts import DEAD, DONE, EVENT, LIMIT_S, Endpoint, free_port, until

CHAT = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}"
SUSPECT = Readiness(live=False, state="live", code="session.late", reason=None)


async def waiting(endpoint: Endpoint, path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A request that reached the engine."""
    reader, writer = await endpoint.connect()
    writer.write(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{{}}".encode())
    async with asyncio.timeout(LIMIT_S):
        await endpoint.engine.came.wait()
    return reader, writer


async def fill(writer: asyncio.StreamWriter) -> None:
    """Write until all the buffers on the way are full and nothing moves any more."""
    try:
        while True:
            writer.write(EVENT * 10_000)
            async with asyncio.timeout(0.3):
                await writer.drain()
    except TimeoutError:
        return


async def json_of(reader: asyncio.StreamReader) -> tuple[bytes, dict[str, str]]:
    async with asyncio.timeout(LIMIT_S):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
        error: dict[str, str] = json.loads(await reader.readexactly(length))["error"]
    return head, error


async def test_a_waiting_request_is_answered_within_a_second_of_the_sets_death(endpoint: Endpoint) -> None:
    reader, writer = await waiting(endpoint, "/hang")
    closed = time.monotonic()
    endpoint.gate.close(DEAD)
    head, error = await json_of(reader)
    assert time.monotonic() - closed < 1.0
    assert head.startswith(b"HTTP/1.1 503 ")
    assert b"Retry-After: " in head
    assert (error["type"], error["code"]) == ("not_ready", "rank.lost")
    assert "spark-2: rank 1: ended by signal 9" in error["message"]
    assert "Wait: all ranks are started again." in error["message"]
    async with asyncio.timeout(LIMIT_S):
        await endpoint.engine.left.wait()
    assert endpoint.gate.counts["-", "cut"] == 1
    writer.close()


async def test_all_waiting_requests_are_answered_within_a_second(endpoint: Endpoint) -> None:
    waiters = [await waiting(endpoint, "/hang") for _ in range(30)]
    await until(lambda: len(endpoint.engine.arrived) == 30)
    closed = time.monotonic()
    endpoint.gate.close(DEAD)
    for reader, writer in waiters:
        assert (await reader.readline()).startswith(b"HTTP/1.1 503 ")
        writer.close()
    assert time.monotonic() - closed < 1.0


async def test_an_upload_in_its_middle_is_answered_too(endpoint: Endpoint) -> None:
    reader, writer = await endpoint.connect()
    writer.write(b"POST /v1/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nhalf")
    await until(lambda: endpoint.gate.busy)
    endpoint.gate.close(DEAD)
    head, _ = await json_of(reader)
    assert head.startswith(b"HTTP/1.1 503 ")
    writer.close()


async def test_a_started_stream_ends_in_the_engines_own_error_form(
    endpoint: Endpoint, client: aiohttp.ClientSession
) -> None:
    async with client.post(f"{endpoint.url}/v1/chat/completions", json={}) as reply:
        assert await reply.content.readexactly(len(EVENT)) == EVENT
        closed = time.monotonic()
        endpoint.gate.close(DEAD)
        rest = await reply.content.read()
        assert time.monotonic() - closed < 1.0
    first, last, nothing = rest.split(b"\n\n")
    error = json.loads(first.removeprefix(b"data: "))["error"]
    assert error["type"] == "server_error"
    assert "rank 1" in error["message"]
    assert (last, nothing) == (b"data: [DONE]", b"")


@pytest.mark.parametrize("path", ["/half-event", "/half-body", "/no-length"])
async def test_what_cannot_be_finished_is_broken_off_and_never_looks_complete(
    endpoint: Endpoint, client: aiohttp.ClientSession, path: str
) -> None:
    async with client.post(f"{endpoint.url}{path}", data=b"{}") as reply:
        assert reply.status == 200
        await reply.content.readany()
        endpoint.gate.close(DEAD)
        with pytest.raises(aiohttp.ClientError):
            await reply.read()


async def test_a_reply_without_length_is_reset_for_a_client_that_only_knows_its_end_by_the_close(
    endpoint: Endpoint,
) -> None:
    reader, writer = await endpoint.connect()
    writer.write(b"GET /no-length HTTP/1.0\r\nHost: localhost\r\n\r\n")
    async with asyncio.timeout(LIMIT_S):
        await reader.readuntil(b'"part"')
        endpoint.gate.close(DEAD)
        with pytest.raises(ConnectionResetError):
            await reader.read()
    writer.close()


async def test_a_client_that_reads_nothing_cannot_hold_the_cut_up(endpoint: Endpoint) -> None:
    """Its socket is full, so not even the last words can be written."""
    reader, writer = await waiting(endpoint, "/v1/chat/completions")
    async with asyncio.timeout(LIMIT_S):
        await reader.readuntil(b"\n\n")
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    (engine_side,) = endpoint.engine.writers
    await fill(engine_side)
    closed = time.monotonic()
    endpoint.gate.close(DEAD)
    await endpoint.none_in_flight()
    assert time.monotonic() - closed < 1.0
    writer.transport.abort()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/no-length", "/half-body"])
async def test_an_engine_killed_in_the_middle_of_a_reply_never_makes_it_look_complete(
    endpoint: Endpoint, client: aiohttp.ClientSession, path: str
) -> None:
    """The kernel closes a killed engine's connections in good order: without a length it looks like the end."""
    async with client.post(f"{endpoint.url}{path}", data=b"{}") as reply:
        await reply.content.readany()
        endpoint.engine.die()
        if path == "/v1/chat/completions":
            rest = await reply.content.read()
            assert b'"type": "server_error"' in rest
            assert rest.endswith(DONE)
        else:
            with pytest.raises(aiohttp.ClientError):
                await reply.read()
    await endpoint.none_in_flight()
    assert endpoint.gate.counts["-", "failed"] == 1


async def test_a_reply_without_length_from_a_living_engine_is_whole(
    endpoint: Endpoint, client: aiohttp.ClientSession
) -> None:
    endpoint.engine.more.set()
    async with client.post(f"{endpoint.url}/no-length", data=b"{}") as reply:
        assert await reply.json() == {"part": 1, "whole": True}


async def test_an_engine_that_dies_before_it_answers_is_said_to_have(endpoint: Endpoint) -> None:
    reader, writer = await waiting(endpoint, "/hang")
    endpoint.engine.die()
    head, error = await json_of(reader)
    assert head.startswith(b"HTTP/1.1 502 ")
    assert error["code"] == "engine.broken"
    assert "while the set was live" in error["message"]
    writer.close()


async def test_an_engines_death_is_told_with_its_reason_once_the_daemon_knows_it(endpoint: Endpoint) -> None:
    """Its connection breaks a moment before or after the daemon closes the gate."""
    reader, writer = await waiting(endpoint, "/hang")
    endpoint.daemon.now = DEAD
    endpoint.engine.die()
    head, error = await json_of(reader)
    assert head.startswith(b"HTTP/1.1 503 ")
    assert (error["type"], error["code"]) == ("not_ready", "rank.lost")
    writer.close()


async def test_an_engine_that_takes_no_connection_is_said_to(endpoint: Endpoint) -> None:
    endpoint.gate.open(f"http://127.0.0.1:{free_port()}")
    reader, writer = await endpoint.connect()
    writer.write(CHAT)
    head, error = await json_of(reader)
    assert head.startswith(b"HTTP/1.1 503 ")
    assert b"Retry-After: " in head
    assert error["code"] == "engine.refused"
    writer.close()


async def test_while_suspect_new_requests_are_refused_and_running_ones_go_on(
    endpoint: Endpoint, client: aiohttp.ClientSession
) -> None:
    async with client.post(f"{endpoint.url}/v1/chat/completions", json={}) as running:
        endpoint.gate.pause(SUSPECT)
        async with client.post(f"{endpoint.url}/v1/chat/completions", json={}) as refused:
            assert refused.status == 503
            assert (await refused.json())["error"]["code"] == "session.late"
        async with client.get(f"{endpoint.url}/readyz") as ready:
            assert ready.status == 503
        endpoint.engine.more.set()
        assert (await running.content.read()).endswith(DONE)


async def test_not_ready_is_said_at_once_with_the_state_the_daemon_is_in_now(
    endpoint: Endpoint, client: aiohttp.ClientSession
) -> None:
    endpoint.gate.close(DEAD)
    endpoint.daemon.now = Readiness(live=False, state="loading", code="load.weights", reason=None)
    async with client.get(f"{endpoint.url}/v1/models") as reply:
        assert reply.status == 503
        assert int(reply.headers["Retry-After"]) > 0
        error = (await reply.json())["error"]
    assert (error["type"], error["code"]) == ("not_ready", "load.weights")
    assert "loading" in error["message"]
    assert not endpoint.engine.arrived


async def test_a_daemon_that_is_not_ready_lets_nothing_through_even_with_the_gate_open(
    endpoint: Endpoint, client: aiohttp.ClientSession
) -> None:
    endpoint.daemon.now = DEAD
    async with client.get(f"{endpoint.url}/v1/models") as reply:
        assert reply.status == 503
    assert not endpoint.engine.arrived


async def test_draining_lets_running_requests_finish_and_refuses_new_ones(
    endpoint: Endpoint, client: aiohttp.ClientSession
) -> None:
    async with client.post(f"{endpoint.url}/v1/chat/completions", json={}) as running:
        async with asyncio.TaskGroup() as group:
            draining = group.create_task(endpoint.gate.drain(LIMIT_S))
            await until(lambda: endpoint.gate.state == "stopping")
            async with client.get(f"{endpoint.url}/v1/models") as refused:
                assert refused.status == 503
                assert (await refused.json())["error"]["code"] == "stopping"
            assert not draining.done()
            endpoint.engine.more.set()
            assert (await running.content.read()).endswith(DONE)
        assert draining.result() is True


async def test_draining_ends_when_its_time_is_up(endpoint: Endpoint) -> None:
    reader, writer = await waiting(endpoint, "/hang")
    assert await endpoint.gate.drain(0.05) is False
    endpoint.gate.close(DEAD)
    assert (await reader.readline()).startswith(b"HTTP/1.1 503 ")
    await endpoint.none_in_flight()
    writer.close()


async def test_the_canary_can_tell_busy_from_idle(endpoint: Endpoint) -> None:
    before = endpoint.gate.idle_since
    reader, writer = await waiting(endpoint, "/hang")
    assert endpoint.gate.busy
    assert endpoint.gate.in_flight == 1
    endpoint.engine.more.set()
    await endpoint.none_in_flight()
    assert not endpoint.gate.busy
    assert endpoint.gate.idle_since > before
    writer.close()
    del reader


async def test_health_and_readiness_answer_here_without_a_key(
    endpoint: Endpoint, client: aiohttp.ClientSession
) -> None:
    for now, status, body in (
        (endpoint.daemon.now, 200, {"state": "live", "code": "live"}),
        (DEAD, 503, {"state": "recovering", "code": "rank.lost"}),
    ):
        endpoint.daemon.now = now
        async with client.get(f"{endpoint.url}/healthz") as health:
            assert health.status == 200
        async with client.get(f"{endpoint.url}/readyz") as ready:
            assert (ready.status, await ready.json()) == (status, body)
