"""From empty disks to LIVE: the leader fetches, the workers are fed over the cable, whatever breaks meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from glm_spark.config.model import Model
from glm_spark.weights.pins import Pin
from tests.cluster.conftest import Cluster, MakeCluster
from tests.sparks import Daemon, processes, until
from tests.unit.weights.repositories import content, fill, some_files

HUB_PORT = 9700
DEFAULTS = Model()
PIN = Pin(kind="checkpoint", repository=DEFAULTS.repository, revision=DEFAULTS.revision)
SMALL = {"model-1.safetensors": 9_000_000, "model-2.safetensors": 6_000_000, "notes/readme.txt": 500}


def weights(**settings: Any) -> dict[str, Any]:
    """Settings of a set that has no checkpoint of its own yet."""
    hub = {"endpoint": f"http://127.0.0.1:{HUB_PORT}", "keep_free_gib": 0}
    return {"model": {"path": None, "cache": "/mnt"}, "weights": hub | settings}


def cache_of(daemon: Daemon) -> Path:
    return daemon.spark.directory / "huggingface"


def give_caches(cluster: Cluster) -> None:
    """Each Spark sees a cache of its own at the one path that the shared file names."""
    for daemon in cluster.daemons:
        cache_of(daemon).mkdir()
        done = daemon.spark.run(["mount", "--bind", str(cache_of(daemon)), "/mnt"])
        assert done.returncode == 0, done.stderr


@contextlib.contextmanager
def hub(cluster: Cluster, files: dict[str, bytes]) -> Iterator[None]:
    """The Hub, as the leader reaches it."""
    top = cluster.leader.spark.directory / "hub-of-the-test"
    for path, body in files.items():
        file = top / PIN.repository / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(body)
    argv = [sys.executable, "-m", "tests.unit.weights.hub_server", str(HUB_PORT), str(top)]
    process = cluster.leader.spark.popen(argv, stdout=-1, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    try:
        yield
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def children(daemon: Daemon) -> list[int]:
    """The transfers' processes of a daemon."""
    return [
        pid
        for pid in processes.pids()
        if processes.parent(pid) == daemon.pid and "glm_spark.weights.child" in processes.argv(pid)
    ]


async def weights_of(cluster: Cluster, rank: int) -> dict[str, Any]:
    nodes = (await cluster.leader.status())["nodes"]
    return dict(nodes[rank]["weights"] or {})


async def receiving(cluster: Cluster, at_least: int, rank: int = 1, timeout: float = 30.0) -> None:
    async def seen() -> bool:
        told = await weights_of(cluster, rank)
        return told.get("phase") == "receiving" and told["done"] >= at_least

    await until(seen, timeout, f"{at_least} bytes received by rank {rank}")


@pytest.mark.parametrize("count", [2, 3])
async def test_from_empty_disks_to_live(make_cluster: MakeCluster, count: int) -> None:
    cluster = make_cluster(count, config=weights())
    give_caches(cluster)
    files = some_files(SMALL)
    with hub(cluster, files):
        status = await cluster.live(60)
    assert status["served"]["checkpoint"] == f"{PIN.repository}@{PIN.revision}"
    for daemon in cluster.daemons:
        assert content(cache_of(daemon), PIN) == files
        assert children(daemon) == []
    assert [node["weights"]["phase"] for node in status["nodes"]] == ["complete"] * count


async def test_a_start_with_complete_weights_costs_less_than_a_second(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(2, config=weights(fetch=False))
    give_caches(cluster)
    files = some_files({f"model-{n:03}.safetensors": 20_000 for n in range(199)})
    for daemon in cluster.daemons:
        fill(cache_of(daemon), files, PIN)
    status = await cluster.live()
    generation = status["generation"]
    lines = len(cluster.leader.journal())
    began = time.monotonic()
    await cluster.leader.control("POST", "/v1/restart")
    await cluster.leader.wait_journal("loading", since=lines)
    preparing = time.monotonic() - began
    again = await cluster.leader.wait_state("live")
    assert again["generation"] > generation
    assert preparing < 5.0  # the drain and the checks of a start are in this; the weights' share is in the bench
    assert not any("verify begins" in line for line in cluster.leader.journal()[lines:])
