"""The observer itself: it sees what it is there for, and nothing where all is well."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from aiohttp import web

from tests.cluster.attendant import watched
from tests.cluster.conftest import Cluster
from tests.cluster.observer import FRONT, Limits, Observer
from tests.sparks.daemon import until

LIMITS = Limits(suspect=0.2, lease=0.3, kill=0.1)


@contextmanager
def rank(cluster: Cluster, node: int, generation: int) -> Iterator[None]:
    """A process that carries a rank's marks."""
    marks = {"GLM_SPARK_CLUSTER": "glm", "GLM_SPARK_NODE": f"spark-{node}", "GLM_SPARK_GENERATION": str(generation)}
    process = cluster.sparks[node - 1].popen(["sleep", "60"], env=marks, start_new_session=True)
    try:
        yield
    finally:
        process.kill()
        process.wait()


async def sees(cluster: Cluster, words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        async with watched(cluster, LIMITS, restarts=False) as observer:
            await until(lambda: bool(observer.violations), 10.0, words)


async def test_two_generations_at_once_are_seen(cluster: Cluster) -> None:
    with rank(cluster, 1, 4), rank(cluster, 2, 5):
        await sees(cluster, "two generations alive at once")


async def test_two_ranks_on_one_spark_are_seen(cluster: Cluster) -> None:
    with rank(cluster, 1, 4), rank(cluster, 1, 4):
        await sees(cluster, "two ranks on spark-1")


async def test_a_rank_alone_for_too_long_is_seen(cluster: Cluster) -> None:
    with rank(cluster, 2, 4):
        await sees(cluster, "a lone rank for .* spark-2")


async def test_a_ready_without_a_set_is_seen(cluster: Cluster) -> None:
    async def ready(_request: web.BaseRequest) -> web.Response:
        return web.Response(text="yes")

    listener = cluster.sparks[0].socket()
    listener.bind(("127.0.0.1", FRONT))
    runner = web.ServerRunner(web.Server(ready))
    await runner.setup()
    await web.SockSite(runner, listener).start()
    try:
        with rank(cluster, 1, 4), rank(cluster, 2, 4):
            await sees(cluster, "says ready .* after dead: the daemon of spark-[12]")
    finally:
        await runner.cleanup()


async def test_a_daemons_own_fault_in_its_journal_is_seen(cluster: Cluster) -> None:
    cluster.leader.journal_file.write_text("<6>all is well\n<2>the daemon ends on a fault of its own\nTraceback (")
    await sees(cluster, "the journal of spark-1")


async def test_nothing_is_seen_in_a_live_set(cluster: Cluster) -> None:
    await cluster.live()
    async with watched(cluster, Limits(suspect=2, lease=15, kill=10)) as observer:
        await until(lambda: observer.answers > 30 and observer.whole(), 20.0, "some looks")
        assert observer.looks > 10


async def test_its_own_clock_leaves_out_what_it_was_held_up_for(cluster: Cluster) -> None:
    observer = Observer(cluster, LIMITS)
    observer.look()
    before = observer.time
    await asyncio.sleep(1.0)
    observer.look()
    assert observer.time - before < 0.5
