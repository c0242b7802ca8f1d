"""Signals, lost ranks and faults of a set that serves."""

from __future__ import annotations

import asyncio
import os
import signal

import aiohttp
import pytest

from tests.unit.standin.sets import Set, question, until


async def stuck(engine: Set, seconds: float = 0.2) -> bool:
    return bool((await engine.health())["iteration_s"] > seconds)


async def test_a_stop_of_rank_0_is_0_and_ends_the_idle_worker_with_1(engine: Set) -> None:
    head, worker = await engine.live(2)
    head.signal(signal.SIGTERM)
    assert await head.ends() == 0
    assert await worker.ends() == 1
    assert "torch.distributed.DistNetworkError: " in worker.text


async def test_a_stop_cuts_what_is_in_flight(engine: Set) -> None:
    engine.faults(reply_tokens=100_000, token_rate=100.0)
    head, _ = await engine.live(2)
    async with engine.client.post("/v1/chat/completions", json=question(stream=True)) as reply:
        await reply.content.readline()
        head.signal(signal.SIGINT)
        # The body has no length: a cut shows as an end without the last event.
        assert b"[DONE]" not in await reply.read()
    assert await head.ends() == 0


async def test_loading_and_following_ranks_have_no_handler(engine: Set) -> None:
    engine.faults(ranks={"0": {"delay_s": {"weights": 30}}})
    head, worker = await engine.begin(2)
    await head.says("startup estimate")
    await worker.says("startup estimate")
    for rank in (worker, head):
        rank.signal(signal.SIGTERM)
        assert await rank.ends() == -signal.SIGTERM


async def test_a_deaf_rank_ignores_a_stop(engine: Set) -> None:
    engine.faults(deaf=True)
    for rank in await engine.live(2):
        rank.signal(signal.SIGTERM)
    assert (await engine.chat())["status"] == 200


async def test_usr1_shows_the_stacks_and_changes_nothing(engine: Set) -> None:
    for rank in await engine.live(2):
        rank.signal(signal.SIGUSR1)
        await rank.says("most recent call first")
    assert (await engine.chat())["status"] == 200


async def test_a_lost_worker_is_unnoticed_and_cannot_come_back(engine: Set) -> None:
    head, worker = await engine.live(2)
    worker.signal(signal.SIGKILL)
    await worker.ends()
    again = await engine.rank(1, 2)
    await again.says("loading ")
    waiting = asyncio.create_task(engine.chat())
    await until(lambda: stuck(engine))
    assert "startup estimate" not in again.text
    assert head.process.returncode is None
    assert again.process.returncode is None
    waiting.cancel()


@pytest.mark.parametrize("comes_back", [True, False])
async def test_peer_watch_ends_rank_0(engine: Set, comes_back: bool) -> None:
    limits = {"peer_watch_restart_s": 0.2, "peer_watch_lost_s": 60.0 if comes_back else 0.2}
    engine.faults(peer_watch=True, **limits)
    head, worker = await engine.live(2)
    worker.signal(signal.SIGKILL)
    if comes_back:
        await engine.rank(1, 2)
    assert await head.ends() == 1
    assert "RuntimeError: peer-watch: rank 1 " in head.text


async def test_rank_0_lost_in_a_round_leaves_the_worker_for_ever(engine: Set) -> None:
    engine.faults(reply_tokens=100_000, token_rate=100.0)
    head, worker = await engine.live(2)
    asking = asyncio.create_task(engine.chat())

    async def decoding() -> bool:
        return bool((await engine.health())["completion_tokens_total"] > 3)

    await until(decoding)
    head.signal(signal.SIGKILL)
    with pytest.raises(aiohttp.ClientError):
        await asking
    with pytest.raises(TimeoutError):
        await worker.ends(0.5)


async def test_roce_gives_up_a_round_and_stays_broken(engine: Set) -> None:
    engine.faults(reply_tokens=100_000, token_rate=100.0)
    head, worker = await engine.live(2, TF_GLM_COMM="roce", TF_ROCE_WAIT_S="0.3")
    asking = asyncio.create_task(engine.chat())
    await asyncio.sleep(0.1)
    worker.signal(signal.SIGSTOP)
    body = await asking
    assert body["status"] == 500
    assert "RDMA write" not in body["error"]["message"]
    await head.says("request error: RuntimeError: RoCE all-gather failed (sequence ")
    worker.signal(signal.SIGCONT)
    assert (await engine.chat())["status"] == 500


async def test_a_hang_is_switched_on_and_off_under_way(engine: Set) -> None:
    await engine.live(2)
    engine.faults(ranks={"1": {"hang": True}})
    asking = asyncio.create_task(engine.chat())
    await until(lambda: stuck(engine))
    engine.faults()
    assert (await asking)["status"] == 200


@pytest.mark.parametrize("ends", [False, True])
async def test_a_stuck_step_prints_all_stacks(engine: Set, ends: bool) -> None:
    engine.faults(hang=True, step_limit_s=0.2)
    head, _ = await engine.live(2, TF_GLM_MULTI_WATCHDOG_EXIT=str(int(ends)))
    asking = asyncio.create_task(engine.chat())
    await head.says("Timeout (0:05:00)!")
    await head.says("most recent call first")
    if ends:
        assert await head.ends() == 1
    else:
        assert (await engine.health())["ok"] is True
    asking.cancel()
    await asyncio.wait([asking])


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("request", "request error: RuntimeError: "),
        ("scheduler", "--parallel scheduler iteration failed: "),
        ("out-of-step", "the ranks are out of step: restart both"),
        ("roce-write", "(vendor_err 0x81, "),
    ],
)
async def test_latched_broken(engine: Set, kind: str, text: str) -> None:
    head, _ = await engine.live(2)
    assert (await engine.chat(max_tokens=1))["status"] == 200
    engine.faults(broken=kind)
    assert (await engine.chat())["status"] == 500
    await head.says(text)
    engine.faults()
    body = await engine.chat()
    assert (body["status"], list(body["error"])) == (500, ["message"])
    assert (await engine.health())["ok"] is True


async def test_broken_in_a_stream_is_an_event_after_a_200(engine: Set) -> None:
    engine.faults(reply_tokens=100_000, token_rate=100.0)
    await engine.live(2)
    async with engine.client.post("/v1/chat/completions", json=question(stream=True)) as reply:
        await reply.content.readline()
        engine.faults(broken="request")
        text = (await reply.read()).decode()
    error, done = text.strip().split("\n\n")[-2:]
    assert '"type": "server_error"' in error
    assert done == "data: [DONE]"


@pytest.mark.parametrize(("kind", "content"), [("bang", "!" * 8), ("empty", "")])
async def test_replies_of_wrong_weights(engine: Set, kind: str, content: str) -> None:
    engine.faults(reply=kind)
    await engine.live(2)
    body = await engine.chat(max_tokens=8)
    assert body["status"] == 200
    assert body["choices"][0]["message"]["content"] == content


async def test_a_stream_cut_in_the_middle(engine: Set) -> None:
    engine.faults(cut_after_tokens=5)
    await engine.live(2)
    async with engine.client.post("/v1/chat/completions", json=question(stream=True)) as reply:
        text = await reply.text()
    assert text.count('"content": "') == 6  # the role event and five words
    assert "[DONE]" not in text
    assert (await engine.health())["completion_tokens_total"] == 5


@pytest.mark.parametrize(("code", "status"), [(1, 1), (-6, -signal.SIGABRT)])
async def test_a_crash_after_ready(engine: Set, code: int, status: int) -> None:
    engine.faults(ranks={"1": {"crash_after_s": 0.1, "exit_code": code}})
    _, worker = await engine.live(2)
    assert await worker.ends() == status
    assert "ready in" in worker.text


async def test_a_worker_that_dies_at_the_first_request_leaves_it_hanging(engine: Set) -> None:
    engine.faults(ranks={"1": {"crash_at_round": 1, "exit_code": -9}})
    _, worker = await engine.live(2)
    asking = asyncio.create_task(engine.chat())
    assert await worker.ends() == -signal.SIGKILL
    await until(lambda: stuck(engine))
    asking.cancel()


async def test_a_grandchild_outlives_its_rank_in_its_own_session(engine: Set) -> None:
    engine.faults(ranks={"1": {"grandchild": True}})
    head, worker = await engine.live(2)
    pid = int((await worker.says("stand-in: grandchild ")).split()[2])
    try:
        assert os.getsid(pid) != os.getsid(worker.pid)
        worker.signal(signal.SIGKILL)
        # Not Process.wait(): it also waits for the pipe, which the grandchild holds open.
        await until(worker.ended)
        os.kill(pid, 0)
    finally:
        os.kill(pid, signal.SIGKILL)
    assert head.process.returncode is None


@pytest.mark.parametrize("peer_lives", [True, False])
async def test_the_spill_tiers_flush_needs_the_other_ranks(engine: Set, peer_lives: bool) -> None:
    head, worker = await engine.live(2, "--spill-gib", "8", TF_SPILL_FLUSH_S="0.5")
    if not peer_lives:
        worker.signal(signal.SIGSTOP)
    head.signal(signal.SIGTERM)
    assert await head.ends() == 0
    assert ("shutdown flush done in" if peer_lives else "shutdown flush not finished in 0.5s") in head.text
