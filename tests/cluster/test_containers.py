"""Ranks in real podman containers: they go live, and nothing of them outlives what it should not.

What is asserted is seen from outside: the process table, podman's own list, the mounts.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests import enclosure
from tests.cluster import podman
from tests.cluster.conftest import Cluster, MakeCluster
from tests.sparks import processes
from tests.sparks.daemon import Daemon, until

MakeContained = Callable[..., Cluster]


@pytest.fixture
def contained(make_cluster: MakeCluster, tmp_path_factory: pytest.TempPathFactory) -> MakeContained:
    """Two Sparks whose ranks run in podman."""

    def make(*, config: dict[str, Any] | None = None, images: int = 2, **options: Any) -> Cluster:
        engine = enclosure.scratch() / f"engine-{os.urandom(4).hex()}"
        podman.make_engine(engine)
        told = podman.settings(enclosure.scratch(), engine)
        told["engine"] |= (config or {}).pop("engine", {})
        cluster = make_cluster(2, config={**told, **(config or {})}, **options)
        for number, spark in enumerate(cluster.sparks):
            podman.furnish(spark, image=number < images)
        return cluster

    return make


def engines(daemon: Daemon) -> list[int]:
    """The first processes of the containers on a Spark: what carries the rank's marks and a container's."""
    found = []
    for pid in daemon.spark.pids():
        try:
            told = processes.environment_of(pid)
        except OSError:
            continue
        if told.get("GLM_SPARK_NODE") == daemon.spark.name and "GLM_SPARK_CONTAINER" in told:
            found.append(pid)
    return [pid for pid in found if processes.parent(pid) not in found]


async def nothing_left(daemon: Daemon, timeout: float = 20.0) -> None:
    """No container, no process of one, no mount."""
    await until(lambda: not engines(daemon) and not podman.conmons(daemon.spark), timeout, "the end of its containers")
    await until(lambda: not podman.containers(daemon.spark), timeout, "podman's knowing of no container")
    assert podman.mounts(daemon.spark) == []


async def live(cluster: Cluster, after: int = 0) -> int:
    cluster.start()
    found: list[int] = []

    async def seen() -> bool:
        try:
            status = await cluster.leader.status()
        except OSError:
            return False
        found[:] = [int(status["generation"])]
        return bool(status["ready"]) and found[0] > after

    await until(seen, 60.0, f"live after generation {after}")
    return found[0]


async def test_a_set_in_containers_goes_live_and_stops_clean(contained: MakeContained) -> None:
    cluster = contained()
    generation = await live(cluster)
    for rank, daemon in enumerate(cluster.daemons):
        (name,) = podman.containers(daemon.spark)
        assert name == f"glm-spark-glm-spark-{rank + 1}-{generation}-{rank}"
        (engine,) = engines(daemon)
        status = await daemon.status()
        assert engine in {node["pid"] for node in status["nodes"]}
        environment = processes.environment_of(engine)
        assert environment["HF_HUB_OFFLINE"] == "1"
        assert not {"NOTIFY_SOCKET", "CREDENTIALS_DIRECTORY"} & set(environment)
    question = {"model": "GLM-5.3-Flash-EXL3", "messages": [{"role": "user", "content": "Are you there?"}]}
    reply = await cluster.leader.spark.http("POST", "http://127.0.0.1:8888/v1/chat/completions", json=question)
    assert reply.status == 200
    assert any("rank 0: [tensorfold] serving" in line for line in cluster.leader.journal())
    for daemon in (cluster.leader, *cluster.workers):
        assert await daemon.stop() == 0
        await nothing_left(daemon)
