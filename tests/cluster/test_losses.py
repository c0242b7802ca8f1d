"""Whatever is lost, the whole set ends at once, nobody is told "ready" meanwhile, and it comes back by itself.

What is asserted is seen from outside the daemons: in /proc, on sockets, by a client.
"""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import aiohttp
import pytest

from tests.cluster.conftest import Cluster, MakeCluster
from tests.sparks.daemon import until
from tests.sparks.processes import keepers

SHORT_LEASE = {"timeouts": {"suspect_seconds": 0.8, "lease_seconds": 3}}


def generation_of(status: dict[str, Any]) -> int:
    return int(status["generation"])


async def gone(cluster: Cluster, generation: int, timeout: float = 10.0) -> None:
    """No process of any rank of that generation is left on any Spark."""
    await until(
        lambda: not any(daemon.ranks(generation) for daemon in cluster.daemons),
        timeout,
        f"the end of all ranks of generation {generation}",
    )


async def not_ready(cluster: Cluster, timeout: float = 5.0) -> None:
    async def seen() -> bool:
        return await cluster.leader.endpoint_ready() == 503

    await until(seen, timeout, "503 on /readyz")


async def live_again(cluster: Cluster, before: int) -> dict[str, Any]:
    found: list[dict[str, Any]] = []

    async def seen() -> bool:
        try:
            status = await cluster.leader.status()
        except (aiohttp.ClientError, OSError):
            return False
        found[:] = [status]
        return bool(status["ready"]) and generation_of(status) > before

    await until(seen, 30.0, f"live again after generation {before}")
    for daemon in cluster.daemons:
        ranks = daemon.ranks()
        assert {rank.generation for rank in ranks} == {found[0]["generation"]}, f"{daemon.spark.name}: {ranks}"
    return found[0]


@pytest.mark.parametrize(("count", "lost"), [(2, 0), (2, 1), (3, 2)])
async def test_a_killed_rank_ends_all_and_all_start_anew(make_cluster: MakeCluster, count: int, lost: int) -> None:
    cluster = make_cluster(count)
    generation = generation_of(await cluster.live())
    os.kill(cluster[lost].ranks(generation)[0].pid, signal.SIGKILL)
    await not_ready(cluster)
    await gone(cluster, generation)
    await live_again(cluster, generation)
    assert any("rank-ended" in line and f"spark-{lost + 1}" in line for line in cluster.leader.journal())


async def test_a_killed_keeper_takes_its_rank_and_the_set_with_it(cluster: Cluster) -> None:
    generation = generation_of(await cluster.live())
    (keeper,) = keepers("spark-2")
    os.kill(keeper.pid, signal.SIGKILL)
    await not_ready(cluster)
    await gone(cluster, generation)
    await live_again(cluster, generation)


async def test_a_killed_worker_daemon_leaves_no_rank_and_the_leader_says_who(cluster: Cluster) -> None:
    generation = generation_of(await cluster.live())
    await cluster.workers[0].kill9()
    await not_ready(cluster)
    await gone(cluster, generation)
    status = await cluster.leader.wait_state("waiting")
    assert status["reason"]["node"] == "spark-2"
    assert "systemctl start glm-spark" in status["reason"]["fix"]
    cluster.workers[0].start()
    await live_again(cluster, generation)


async def test_a_killed_leader_daemon_leaves_no_rank_anywhere(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(2, config=SHORT_LEASE)
    generation = generation_of(await cluster.live())
    await cluster.leader.kill9()
    await gone(cluster, generation)
    cluster.leader.start()
    await live_again(cluster, generation)


async def test_a_worker_ends_its_rank_when_the_leader_is_frozen_and_the_connection_stays_open(
    make_cluster: MakeCluster,
) -> None:
    cluster = make_cluster(2, config=SHORT_LEASE)
    generation = generation_of(await cluster.live())
    cluster.leader.freeze()
    worker = cluster.workers[0]
    await until(lambda: not worker.ranks(), 10.0, "the end of the worker's rank by its own clock")
    assert await worker.ready() == 503
    assert (await worker.status())["state"] == "unknown"
    cluster.leader.thaw()
    await live_again(cluster, generation)


async def test_a_frozen_worker_is_first_suspected_then_given_up(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(2, config=SHORT_LEASE)
    generation = generation_of(await cluster.live())
    worker = cluster.workers[0]
    worker.freeze()
    await not_ready(cluster)
    assert cluster.leader.ranks(generation), "suspicion alone ends no rank"
    await until(lambda: not cluster.leader.ranks(), 10.0, "the end of the leader's rank")
    worker.thaw()
    await gone(cluster, generation)
    await live_again(cluster, generation)


async def test_a_short_pause_of_a_worker_restarts_nothing(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(2, config=SHORT_LEASE)
    generation = generation_of(await cluster.live())
    cluster.workers[0].freeze()
    await not_ready(cluster)
    cluster.workers[0].thaw()

    async def ready() -> bool:
        return await cluster.leader.endpoint_ready() == 200

    await until(ready, 5.0, "ready again")
    assert generation_of(await cluster.leader.status()) == generation


async def test_a_cable_that_loses_everything_ends_both_ranks_and_heals(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(2, config=SHORT_LEASE)
    generation = generation_of(await cluster.live())
    cluster.sparks.lose_silently()
    await not_ready(cluster)
    await gone(cluster, generation)
    cluster.sparks.find_again()
    await live_again(cluster, generation)


async def test_a_waiting_request_is_answered_when_the_set_dies(cluster: Cluster) -> None:
    """A stopped rank: the engine says 200 on /health and the request hangs for ever. Then the rank is killed."""
    generation = generation_of(await cluster.live())
    victim = cluster.workers[0].ranks(generation)[0].pid
    os.kill(victim, signal.SIGSTOP)
    question = {"model": "GLM-5.3-Flash-EXL3", "messages": [{"role": "user", "content": "Are you there?"}]}
    asked = asyncio.create_task(
        cluster.leader.spark.http("POST", "http://127.0.0.1:8888/v1/chat/completions", json=question)
    )

    async def running() -> bool:
        reply = await cluster.leader.spark.http("GET", "http://127.0.0.1:8889/health")
        return bool(reply.json()["requests_running"])

    await until(running, 10.0, "the request in the engine")
    os.kill(victim, signal.SIGKILL)
    async with asyncio.timeout(3.0):
        reply = await asked
    assert reply.status == 503
    assert reply.json()["error"]["type"] == "not_ready"
    await live_again(cluster, generation)


async def test_all_daemons_killed_at_once_leave_nothing_and_start_clean(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(3)
    generation = generation_of(await cluster.live())
    for daemon in cluster.daemons:
        daemon.signal(signal.SIGKILL)
    for daemon in cluster.daemons:
        await daemon.exit_status()
    await gone(cluster, generation)
    cluster.start()
    await live_again(cluster, generation)


@pytest.mark.parametrize("first", [0, 1])
async def test_any_order_of_starting_goes_live(make_cluster: MakeCluster, first: int) -> None:
    cluster = make_cluster(2)
    cluster[first].start()
    await until(lambda: bool(cluster[first].journal()), 10.0, "the first daemon's first line")
    if first == 0:
        status = await cluster.leader.wait_state("waiting")
        assert status["reason"]["node"]
    cluster[1 - first].start()
    await cluster.live()
