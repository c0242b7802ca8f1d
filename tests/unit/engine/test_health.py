"""What /health says, and that nothing is concluded from silence."""

from __future__ import annotations

import json

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from glm_spark.engine.health import EngineHealth, parse, poll, tokens_per_second
from glm_spark.finding import Finding, Severity

BODY = (
    '{"ok":true,"backend":"tensorfold","busy":false,"requests_running":0,"requests_total":3,"prompt_tokens_total":40,'
    '"completion_tokens_total":120,"prefill_seconds_total":0.5,"decode_seconds_total":2,"cached_tokens_total":0,'
    '"rounds_total":60,"drafted_total":100,"accepted_total":60,"streams":{"decoding":1,"prefilling":0,"max":4,'
    '"filling":0,"paused":0},"pool_tokens":2922496,"pool_free_tokens":2900000,"kept_prompts":2,"iteration_s":0.25,'
    '"kept_bytes":0,"kept_bytes_cap":0,"context_length":1048576}'
)


def test_a_full_answer_is_read() -> None:
    health = parse(BODY)
    assert (health.completion_tokens_total, health.iteration_s, health.context_length) == (120, 0.25, 1048576)
    assert health.streams == {"decoding": 1, "prefilling": 0, "max": 4, "filling": 0, "paused": 0}
    assert (health.pool_tokens, health.pool_free_tokens) == (2922496, 2900000)


def test_streams_and_pool_may_be_missing() -> None:
    health = parse('{"ok": true, "iteration_s": 0.0, "something_new": [1]}')
    assert (health.streams, health.pool_tokens) == (None, None)


@pytest.mark.parametrize("body", ["", "null", "[]", "{}", "nonsense", '{"ok": true, "rounds_total": "x"}', b"\xff"])
def test_what_is_no_health_is_refused(body: str | bytes) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse(body)


def test_tokens_per_second_from_two_readings() -> None:
    first, second = (EngineHealth(completion_tokens_total=total) for total in (100, 220))
    assert tokens_per_second(first, 10.0, second, 12.0) == 60.0
    assert tokens_per_second(second, 10.0, first, 12.0) is None  # another engine by then
    assert tokens_per_second(first, 10.0, second, 10.0) is None


async def server(status: int, body: str) -> TestServer:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, text=body)

    app = web.Application()
    app.router.add_get("/health", answer)
    found = TestServer(app)
    await found.start_server()
    return found


@pytest.mark.parametrize(("status", "body"), [(500, BODY), (200, "nonsense"), (200, json.dumps({"other": 1}))])
async def test_a_wrong_answer_is_unknown(status: int, body: str) -> None:
    async with await server(status, body) as engine, aiohttp.ClientSession() as session:
        found = await poll(session, str(engine.make_url("")), 5.0, node="spark-1")
    assert isinstance(found, Finding)
    assert (found.severity, found.node, found.code) == (Severity.UNKNOWN, "spark-1", "engine.health-unknown")


async def test_a_good_answer_and_then_a_closed_port() -> None:
    async with aiohttp.ClientSession() as session:
        async with await server(200, BODY) as engine:
            url = str(engine.make_url(""))
            assert await poll(session, url, 5.0) == parse(BODY)
        assert isinstance(await poll(session, url, 5.0), Finding)
