"""A set that says it is well and is not: hangs, latched faults, wrong words; and what is tried after a failed start."""

from __future__ import annotations

import json
import os
import signal
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import Cluster, MakeCluster
from tests.cluster.test_losses import gone, live_again, not_ready
from tests.sparks.daemon import until

WATCHFUL = {"canary": {"interval_seconds": 1, "answer_seconds": 2, "decode_seconds": 3, "prefill_seconds": 5}}
QUESTION = {"model": "GLM-5.3-Flash-EXL3", "messages": [{"role": "user", "content": "How are you?"}], "max_tokens": 400}


async def failed_with(cluster: Cluster, code: str) -> dict[str, Any]:
    status = await cluster.leader.wait_state("failed")
    assert status["reason"]["code"] == code, status["reason"]
    return status


async def ask(cluster: Cluster) -> int:
    reply = await cluster.leader.spark.http("POST", "http://127.0.0.1:8888/v1/chat/completions", json=QUESTION)
    return reply.status


@pytest.mark.parametrize("rank", [0, 1])
async def test_a_held_rank_is_no_ready_set(cluster: Cluster, rank: int) -> None:
    """SIGSTOP: the process is there, /health of the engine stays 200, every request would hang."""
    generation = int((await cluster.live())["generation"])
    pid = cluster[rank].ranks(generation)[-1].pid
    os.kill(pid, signal.SIGSTOP)
    await not_ready(cluster)
    os.kill(pid, signal.SIGCONT)

    async def ready() -> bool:
        return await cluster.leader.endpoint_ready() == 200

    await until(ready, 5.0, "ready again")
    os.kill(pid, signal.SIGSTOP)
    await gone(cluster, generation, timeout=20)
    await live_again(cluster, generation)


async def test_a_hung_engine_is_found_by_its_own_question_and_leaves_its_stacks(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(2, config=WATCHFUL)
    generation = int((await cluster.live())["generation"])
    cluster.sparks.set_standin({"ranks": {"1": {"hang": True}}})
    await cluster.leader.wait_journal("engine.canary-silent")
    cluster.sparks.set_standin({})
    await live_again(cluster, generation)
    assert any("most recent call first" in line for line in cluster.leader.journal()), "rank 0's stacks"
    assert any("most recent call first" in line for line in cluster.workers[0].journal()), "rank 1's stacks"


async def test_a_stalled_reply_ends_the_set_and_the_client_is_told(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(2, config=WATCHFUL, standin={"token_rate": 20})
    generation = int((await cluster.live())["generation"])
    async with (
        cluster.leader.spark.session() as http,
        http.post("http://127.0.0.1:8888/v1/chat/completions", json={**QUESTION, "stream": True}) as stream,
    ):
        assert stream.status == 200
        await stream.content.readuntil(b"reasoning_content")
        cluster.sparks.set_standin({"ranks": {"1": {"hang": True}}})
        rest = await stream.content.read()
    assert b"server_error" in rest
    assert rest.endswith(b"data: [DONE]\n\n")
    cluster.sparks.set_standin({})
    await live_again(cluster, generation)


async def test_a_long_busy_reply_is_no_stall(make_cluster: MakeCluster) -> None:
    """Ten tokens a second for longer than every limit of the canary: busy is not dead."""
    cluster = make_cluster(2, config=WATCHFUL, standin={"token_rate": 10, "reply_tokens": 80, "think_tokens": 0})
    generation = int((await cluster.live())["generation"])
    assert await ask(cluster) == 200
    assert int((await cluster.leader.status())["generation"]) == generation


@pytest.mark.parametrize("broken", ["request", "scheduler", "out-of-step", "roce-write", "roce-late"])
async def test_a_latched_engine_is_started_anew(make_cluster: MakeCluster, broken: str) -> None:
    cluster = make_cluster(2)
    generation = int((await cluster.live())["generation"])
    cluster.sparks.set_standin({"broken": broken})
    with_error = await ask(cluster)
    assert with_error >= 500
    await not_ready(cluster)
    cluster.sparks.set_standin({})
    await live_again(cluster, generation)


@pytest.mark.parametrize("reply", ["bang", "empty"])
async def test_wrong_words_never_go_live(make_cluster: MakeCluster, reply: str) -> None:
    cluster = make_cluster(2, standin={"reply": reply})
    cluster.start()
    status = await failed_with(cluster, "engine.answer-collapsed")
    assert not status["ready"]
    assert await cluster.leader.endpoint_ready() == 503
    assert not any("LIVE" in line for line in cluster.leader.journal())


async def test_a_window_that_does_not_fit_is_made_smaller_and_said(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(2, standin={"window": 524_288})
    status = await cluster.live()
    assert status["engine"]["served_context"] == 524_288
    assert status["engine"]["context"] == 1_048_576
    assert "engine.smaller-window" in status["degraded"]


async def test_no_window_at_all_is_hopeless(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(2, standin={"window": 0})
    cluster.start()
    await failed_with(cluster, "engine.window-none")


async def test_a_first_connection_that_fails_twice_is_made_gently(make_cluster: MakeCluster) -> None:
    gently = {"TF_GLM_HC_SPLIT": "0", "TF_GLM_PREFILL_OVERLAP": "0"}
    cluster = make_cluster(2, standin={"fail_with": "nccl", "fail_unless": gently})
    status = await cluster.live()
    assert status["generation"] == 3
    assert "engine.gentle-start" in status["degraded"]


async def test_a_first_connection_that_fails_once_is_just_tried_again(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(2)
    counter = str(cluster.sparks.token_file.parent / "starts")
    cluster.sparks.set_standin({"fail_with": "nccl", "fail_starts": 1, "counter_file": counter})
    status = await cluster.live()
    assert status["generation"] == 2
    assert "engine.gentle-start" not in status["degraded"]


async def test_a_set_that_dies_at_its_first_request_is_never_ready(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(2, standin={"ranks": {"1": {"crash_at_round": 1}}}, config={"recovery": {"failures": 3}})
    cluster.start()
    seen_ready = False

    async def stopped() -> bool:
        nonlocal seen_ready
        seen_ready = seen_ready or await cluster.leader.endpoint_ready() == 200
        return await cluster.leader.state() == "failed"

    await until(stopped, 30.0, "the breaker")
    assert not seen_ready
    status = await failed_with(cluster, "set.breaker-open")
    assert "3 failures" in status["reason"]["measured"]
    assert not any(daemon.ranks() for daemon in cluster.daemons)


async def test_the_owner_restarts_a_stopped_set(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(2, standin={"window": 0})
    cluster.start()
    await cluster.leader.wait_state("failed")
    cluster.sparks.set_standin({})
    code, _ = await cluster.leader.control("POST", "/v1/restart")
    assert code == 202
    await cluster.live()


async def test_slow_kernels_stay_loading(make_cluster: MakeCluster) -> None:
    """Compilers at work are progress, however long: here three times the silence that ends a load."""
    cluster = make_cluster(
        2, standin={"delay_s": {"kernels": 6}, "compilers": 1}, config={"timeouts": {"silence_seconds": 2}}
    )
    status = await cluster.live()
    assert status["generation"] == 1


async def test_a_load_that_falls_silent_ends_and_names_its_phase(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(
        2,
        standin={"silent_phase": "weights"},
        config={"timeouts": {"silence_seconds": 2}, "recovery": {"failures": 1}},
    )
    cluster.start()
    status = await failed_with(cluster, "set.breaker-open")
    assert "weights" in status["reason"]["measured"]
    assert "no progress" in status["reason"]["measured"]


async def test_a_path_that_breaks_at_the_start_is_proven_anew_and_all_ranks_start_again(
    make_cluster: MakeCluster,
) -> None:
    cluster = make_cluster(2)
    counter = str(cluster.sparks.token_file.parent / "starts")
    cluster.sparks.set_standin({"fail_with": "roce-write", "fail_starts": 1, "counter_file": counter})
    status = await cluster.live()
    assert status["generation"] == 2
    _, (incident,) = await cluster.leader.control("GET", "/v1/incidents")
    assert incident["reason"]["code"] == "engine.path-broken"
    assert "every Spark checks itself" in [step["what"] for step in incident["done"]]


async def test_a_lock_that_a_killed_build_left_is_removed_when_nobody_builds(make_cluster: MakeCluster) -> None:
    """The next start waits on it, says so and gets nowhere; the one after it finds the lock gone."""
    cluster = make_cluster(2, config={"timeouts": {"silence_seconds": 2}})
    lock = Path(tomllib.loads(cluster.sparks.config_file.read_text())["engine"]["kernel_cache"]) / "extension/lock"
    lock.parent.mkdir(parents=True)
    building = {"build_lock": str(lock), "delay_s": {"kernels": 60}, "compilers": 1}
    cluster.sparks.set_standin({"ranks": {"1": building}})
    cluster.start()
    await until(lock.exists, 20.0, "a build")
    (builder,) = cluster.workers[0].ranks()
    cluster.sparks.set_standin({"ranks": {"1": {"build_lock": str(lock), "waiting_line_s": 0.2}}})
    os.kill(builder.pid, signal.SIGKILL)

    async def told() -> bool:
        return "engine.build-lock" in json.dumps((await cluster.leader.status())["nodes"])

    await until(told, 20.0, "a word on the lock")
    assert lock.exists(), "a lock this young may be of a build whose compiler was not seen yet"
    os.utime(lock, (0, 0))
    await cluster.leader.wait_state("live")
    assert not lock.exists()
    assert any("removed the build lock" in line for line in cluster.workers[0].journal() + cluster.leader.journal())


async def test_the_stopped_set_answers_honestly(cluster: Cluster) -> None:
    await cluster.live()
    code, _ = await cluster.leader.control("POST", "/v1/stop")
    assert code == 202

    async def stopped() -> bool:
        status = await cluster.leader.status()
        return bool(status["reason"]) and status["reason"]["code"] == "set.stopped" and status["state"] == "waiting"

    await until(stopped, 20.0, "the set stopped")
    assert not any(daemon.ranks() for daemon in cluster.daemons)
    reply = await cluster.leader.spark.http("POST", "http://127.0.0.1:8888/v1/chat/completions", json=QUESTION)
    assert reply.status == 503
    assert "glm-spark restart" in reply.json()["error"]["message"]
