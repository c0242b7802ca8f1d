"""Ready means that a real answer came; what counts as one, and that no answer is an honest finding."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st

from glm_spark.engine.canary import ask, content_fault, content_finding, models_ready
from glm_spark.finding import Finding, Severity


@pytest.mark.parametrize("text", ["", "  \n", "!!!!!!!!", "! ! ! ! ! ! ! !", "ababababab", "\n\n!!!!!!!!!!!!!!!!"])
def test_a_collapsed_answer_is_a_fault(text: str) -> None:
    assert content_fault(text)


@pytest.mark.parametrize("text", ["Red, orange and yellow.", "42", "!!!!!!!", "红", "abcabcabc"])
def test_an_answer_is_an_answer(text: str) -> None:
    assert content_fault(text) is None


@given(st.text())
def test_any_text_is_judged(text: str) -> None:
    fault = content_fault(text)
    assert fault is None or text not in fault or len(text) < 3
    if fault:
        assert content_finding("spark-1", fault).code == "engine.answer-collapsed"


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def serving(path: str, handler: Handler) -> TestServer:
    app = web.Application()
    app.router.add_route("*", path, handler)
    found = TestServer(app)
    await found.start_server()
    return found


def reply(content: Any) -> web.Response:
    return web.json_response({"choices": [{"message": {"role": "assistant", "content": content}}]})


async def test_the_question_is_short_greedy_and_without_thinking() -> None:
    asked: list[dict[str, Any]] = []

    async def handler(request: web.Request) -> web.Response:
        asked.append(await request.json())
        return reply("Red, green, blue.")

    async with await serving("/v1/chat/completions", handler) as engine, aiohttp.ClientSession() as session:
        assert await ask(session, str(engine.make_url("")), "M", 5.0) == "Red, green, blue."
    (told,) = asked
    assert (told["model"], told["temperature"], told["max_tokens"], told["stream"]) == ("M", 0, 16, False)
    assert told["chat_template_kwargs"] == {"enable_thinking": False}


@pytest.mark.parametrize(
    ("answer", "code", "severity"),
    [
        (web.Response(status=500, text="{}"), "engine.canary-refused", Severity.ERROR),
        (web.Response(status=429), "engine.canary-busy", Severity.UNKNOWN),
        (web.Response(text="nonsense"), "engine.canary-unanswered", Severity.ERROR),
        (web.json_response({"choices": []}), "engine.canary-unanswered", Severity.ERROR),
    ],
    ids=["500", "429", "nonsense", "empty"],
)
async def test_what_is_no_answer_is_a_finding(answer: web.Response, code: str, severity: Severity) -> None:
    async def handler(_: web.Request) -> web.Response:
        return web.Response(status=answer.status, body=answer.body)

    async with await serving("/v1/chat/completions", handler) as engine, aiohttp.ClientSession() as session:
        found = await ask(session, str(engine.make_url("")), "M", 5.0, node="spark-1")
    assert isinstance(found, Finding)
    assert (found.code, found.severity, found.node) == (code, severity, "spark-1")


async def test_a_hanging_engine_is_a_finding_in_time() -> None:
    async def handler(_: web.Request) -> web.Response:
        await asyncio.sleep(1000)
        return reply("late")

    engine = await serving("/v1/chat/completions", handler)
    try:
        async with asyncio.timeout(5), aiohttp.ClientSession() as session:
            found = await ask(session, str(engine.make_url("")), "M", 0.1)
    finally:
        await engine.close()
    assert isinstance(found, Finding)
    assert found.measured == "no answer within 0.1 s"


async def test_an_answer_without_content_is_empty() -> None:
    async def handler(_: web.Request) -> web.Response:
        return reply(None)

    async with await serving("/v1/chat/completions", handler) as engine, aiohttp.ClientSession() as session:
        answer = await ask(session, str(engine.make_url("")), "M", 5.0)
    assert isinstance(answer, str)
    assert content_fault(answer) == "the answer is empty"


@pytest.mark.parametrize(
    ("body", "ready"),
    [
        ('{"object":"list","data":[{"id":"M","object":"model","owned_by":"tensorfold"}]}', True),
        ('{"object":"list","data":[{"id":"other"}]}', False),
        ('{"data":[1]}', False),
        ("[]", False),
        ("", False),
    ],
)
async def test_models_ready_wants_the_model_by_name(body: str, ready: bool) -> None:
    async def handler(_: web.Request) -> web.Response:
        return web.Response(text=body)

    async with aiohttp.ClientSession() as session:
        async with await serving("/v1/models", handler) as engine:
            url = str(engine.make_url(""))
            assert await models_ready(session, url, "M") is ready
        assert await models_ready(session, url, "M") is False
