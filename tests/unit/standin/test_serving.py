"""A live set: what rank 0 answers, and that it takes every rank to answer."""

from __future__ import annotations

import asyncio
import json
import os
import signal

import aiohttp
import pytest

from tests.unit.standin.sets import Set, question, until


async def test_lines_come_in_the_engines_order(engine: Set) -> None:
    head, worker = await engine.live(2, TF_GLM_COMM="roce")
    await worker.says("following rank 0")
    wanted = [
        "EXL3 support is experimental: ",
        "loading GLM-5.3-Flash-EXL3: GLM-5.3-Flash (glm5_next) on CUDA, rank 0 of 2",
        "all-gathers up to 512 KiB over RoCE (rocep1s0f0; ",
        "CUDA rank 0 startup estimate 88.09 GiB within ",
        f"serving GLM-5.3-Flash-EXL3 at http://127.0.0.1:{engine.http_port}/v1 on CUDA, rank 0 of 2 (sampling: ",
    ]
    ours = [line for line in head.lines if line.startswith("[tensorfold] ")]
    assert len(ours) == len(wanted)
    for line, beginning in zip(ours, wanted, strict=True):
        assert line.startswith(f"[tensorfold] {beginning}")
    assert not any("RoCE" in line or "serving" in line for line in worker.lines)


async def test_models_health_and_unknown_routes(engine: Set) -> None:
    await engine.live(1)
    async with engine.client.get("/v1/models") as reply:
        assert await reply.json() == {
            "object": "list",
            "data": [{"id": "GLM-5.3-Flash-EXL3", "object": "model", "owned_by": "tensorfold"}],
        }
    health = await engine.health()
    assert health["ok"] is True
    assert health["iteration_s"] == 0.0
    assert "streams" not in health
    assert "pool_tokens" not in health
    async with engine.client.get("/v1/nothing") as reply:
        assert (reply.status, await reply.json()) == (404, {"error": "not found"})


async def test_plain_reply_has_usage_and_the_engines_figures(engine: Set) -> None:
    await engine.live(2)
    body = await engine.chat(max_tokens=4)
    choice = body["choices"][0]
    assert choice["finish_reason"] == "length"
    assert len(set(choice["message"]["content"])) > 2
    assert "reasoning_content" not in choice["message"]
    assert body["usage"]["completion_tokens"] == 4
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    assert body["tensorfold"]["rounds"] >= 1
    health = await engine.health()
    assert (health["requests_total"], health["completion_tokens_total"]) == (1, 4)


async def test_stream_thinks_first_and_closes(engine: Set) -> None:
    engine.faults(think_tokens=3, reply_tokens=5)
    await engine.live(2)
    asked = question(stream=True)
    del asked["chat_template_kwargs"]
    async with engine.client.post("/v1/chat/completions", json=asked) as reply:
        assert reply.headers["Connection"] == "close"
        raw = (await reply.read()).decode()
    events = [line.removeprefix("data: ") for line in raw.split("\n\n") if line]
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert [list(delta) for delta in deltas[1:-1]] == [["reasoning_content"]] * 3 + [["content"]] * 5
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["usage"]["completion_tokens"] == 8


@pytest.mark.parametrize("tp", [2, 3])
async def test_a_reply_needs_the_last_ranks_value(engine: Set, tp: int) -> None:
    """The same question: the same answer while the last rank's value is the same, another one with another."""
    last = str(tp - 1)
    answers = []
    for value in ("one", "one", "two"):
        # Every rank but the last is given a value of its own, which must change nothing.
        engine.faults(secret=os.urandom(4).hex(), ranks={last: {"secret": value}})
        ranks = await engine.live(tp)
        answers.append((await engine.chat())["choices"][0]["message"]["content"])
        assert (await engine.chat())["choices"][0]["message"]["content"] == answers[-1]
        for rank in ranks:
            await rank.clear()
    assert answers[0] == answers[1]
    assert answers[0] != answers[2]


@pytest.mark.parametrize(
    ("tp", "victim", "how"),
    [(2, 1, signal.SIGKILL), (2, 1, signal.SIGSTOP), (3, 1, signal.SIGKILL), (3, 2, signal.SIGSTOP)],
)
async def test_without_one_rank_a_request_hangs_and_health_says_200(
    engine: Set, tp: int, victim: int, how: int
) -> None:
    ranks = await engine.live(tp)
    assert (await engine.chat(max_tokens=2))["status"] == 200
    ranks[victim].signal(how)
    waiting = asyncio.create_task(engine.chat())

    async def older_than(seconds: float) -> bool:
        return bool((await engine.health())["iteration_s"] > seconds)

    await until(lambda: older_than(0.2))
    await until(lambda: older_than(0.5))
    assert (await engine.health())["ok"] is True
    assert not waiting.done()
    assert ranks[0].process.returncode is None
    if how == signal.SIGSTOP:
        ranks[victim].signal(signal.SIGCONT)
        assert (await waiting)["status"] == 200
    else:
        waiting.cancel()


async def busy(engine: Set) -> bool:
    return bool((await engine.health())["busy"])


async def one_waits(engine: Set) -> bool:
    async with engine.client.get("/metrics") as reply:
        return "tensorfold:requests_waiting 1" in await reply.text()


async def test_requests_wait_for_a_slot_and_may_be_turned_away(engine: Set) -> None:
    engine.faults(reply_tokens=10_000, token_rate=100.0)
    await engine.live(1, TF_GLM_MAX_QUEUED="1")
    first = asyncio.create_task(engine.chat())
    await until(lambda: busy(engine))
    second = asyncio.create_task(engine.chat())
    await until(lambda: one_waits(engine))
    async with engine.client.post("/v1/chat/completions", json=question()) as reply:
        assert (reply.status, reply.headers["Retry-After"]) == (429, "5")
    engine.ranks[0].signal(signal.SIGTERM)
    for task in (first, second):
        with pytest.raises(aiohttp.ClientError):
            await task
    assert await engine.ranks[0].ends() == 0


async def test_parallel_shows_its_streams_and_pool(engine: Set) -> None:
    engine.faults(reply_tokens=10_000, token_rate=100.0)
    await engine.live(1, "--parallel", "4", "--drafter", "/models/dflash2")
    assert "[tensorfold] --parallel 4: up to 4 requests decode together" in engine.ranks[0].text
    both = [asyncio.create_task(engine.chat()) for _ in range(2)]

    async def two_decode() -> bool:
        return bool((await engine.health())["streams"]["decoding"] == 2)

    await until(two_decode)
    health = await engine.health()
    assert health["streams"]["max"] == 4
    assert health["pool_free_tokens"] < health["pool_tokens"]
    assert health["completion_tokens_total"] > 0
    for task in both:
        task.cancel()


async def test_bad_requests(engine: Set) -> None:
    await engine.live(1, "--context", "100")
    cases: list[tuple[str, object, int, str]] = [
        ("/v1/chat/completions", {}, 400, "messages"),
        ("/v1/chat/completions", question(max_tokens="x"), 400, "max_tokens"),
        ("/v1/completions", {"prompt": "word " * 200}, 400, "context window"),
        ("/v1/completions", [], 400, "object"),
    ]
    for path, body, status, text in cases:
        async with engine.client.post(path, json=body) as reply:
            error = (await reply.json())["error"]
            assert (reply.status, text in error["message"]) == (status, True)
            if "window" in text:
                assert error["code"] == "context_length_exceeded"
    reader, writer = await asyncio.open_connection("127.0.0.1", engine.http_port)
    writer.write(os.urandom(2000) + b"\r\n\r\n")
    assert (await reader.readline()).split()[1] in (b"400", b"431")
    writer.close()
    assert (await engine.chat(max_tokens=1))["status"] == 200


async def test_a_body_announced_with_expect_is_taken(engine: Set) -> None:
    await engine.live(1)
    body = question(max_tokens=1, note="x" * 3_000_000)
    async with engine.client.post("/v1/chat/completions", json=body, expect100=True) as reply:
        assert reply.status == 200


async def test_other_routes_answer(engine: Set) -> None:
    await engine.live(1)
    async with engine.client.post("/tokenize", json={"prompt": "naïve words"}) as reply:
        tokens = (await reply.json())["tokens"]
    async with engine.client.post("/detokenize", json={"tokens": tokens}) as reply:
        assert (await reply.json())["prompt"] == "naïve words"
    for path, body, kind in (
        ("/v1/completions", {"prompt": "x"}, "text_completion"),
        ("/v1/responses", {"input": "x"}, "response"),
    ):
        async with engine.client.post(path, json=body) as reply:
            assert (await reply.json())["object"] == kind
    async with engine.client.post("/v1/messages", json=question()) as reply:
        assert (await reply.json())["type"] == "message"
    async with engine.client.get("/metrics") as reply:
        text = await reply.text()
    assert "tensorfold:generation_tokens_total" in text
    assert "tensorfold_health:requests_total 3" in text
    assert 'tensorfold:request_latency_seconds_bucket{le="+Inf"} 3' in text
