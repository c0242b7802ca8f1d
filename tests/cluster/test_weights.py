"""From empty disks to LIVE: the leader fetches, the workers are fed over the cable, whatever breaks meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from glm_spark.config.model import Model
from glm_spark.weights.pins import Pin
from tests.cluster.conftest import Cluster, MakeCluster
from tests.sparks import Daemon, processes, until
from tests.sparks.settings import DAEMON as GLM_SPARK
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


async def status_of(cluster: Cluster) -> dict[str, Any]:
    """The leader's, {} while it does not answer."""
    try:
        return await cluster.leader.status()
    except (aiohttp.ClientError, OSError, TimeoutError):
        return {}


async def weights_of(cluster: Cluster, rank: int) -> dict[str, Any]:
    nodes = (await status_of(cluster)).get("nodes") or []
    return dict(nodes[rank]["weights"] or {}) if nodes else {}


async def refused(cluster: Cluster, node: str, *codes: str) -> None:
    """Waits until the set's reason is one of these of that Spark."""

    async def told() -> bool:
        reason = (await status_of(cluster)).get("reason") or {}
        return reason.get("code") in codes and reason["node"] == node

    await until(told, 30.0, f"{codes} of {node}")


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
    files = some_files({"model.safetensors": 50_000} | {f"more-{n:03}.safetensors": 20_000 for n in range(198)})
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


LARGE = {"model.safetensors": 160_000_000, "other.safetensors": 30_000_000, "notes.txt": 100}
PACED = 30  # MiB a second, so that there is time to break it


def with_weights(cluster: Cluster, files: dict[str, bytes]) -> None:
    """The leader has everything, the workers nothing."""
    give_caches(cluster)
    fill(cache_of(cluster.leader), files, PIN)


def parts(daemon: Daemon) -> int:
    """Bytes that a worker has on its disk of files under way."""
    return sum(512 * file.stat().st_blocks for file in cache_of(daemon).rglob("*.glm-part"))


async def test_a_worker_that_is_reset_in_the_middle_goes_on_where_it_was(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(2, config=weights(fetch=False, rate_mib=PACED))
    files = some_files(LARGE)
    with_weights(cluster, files)
    worker = cluster.workers[0]
    cluster.start()
    await receiving(cluster, 60_000_000)
    cluster.sparks.reset_host(2)
    await worker.exit_status()
    assert children(worker) == []
    had = parts(worker)
    assert had > 40_000_000
    worker.start()
    await receiving(cluster, had - 12 * (4 << 20))
    cluster.sparks.set_config(weights(fetch=False))
    await cluster.leader.wait_state("live", timeout=60)
    assert content(cache_of(worker), PIN) == files


@pytest.mark.parametrize(
    "victim",
    [
        "leader",
        "receiver",
        pytest.param("worker", marks=pytest.mark.full),
        pytest.param("sender", marks=pytest.mark.full),
    ],
)
async def test_a_kill_in_the_middle_ends_live(make_cluster: MakeCluster, victim: str) -> None:
    cluster = make_cluster(2, config=weights(fetch=False, rate_mib=60))
    files = some_files(LARGE)
    with_weights(cluster, files)
    cluster.start()
    await receiving(cluster, 50_000_000)
    struck = cluster.leader if victim in ("leader", "sender") else cluster.workers[0]
    if victim in ("sender", "receiver"):
        for pid in children(struck):
            os.kill(pid, signal.SIGKILL)
    else:
        left = children(struck)
        await struck.kill9()
        await until(lambda: not any(map(processes.alive, left)), 5.0, "the end of its transfer")
        struck.start()
    await cluster.leader.wait_state("live", timeout=60)
    assert content(cache_of(cluster.workers[0]), PIN) == files


async def test_a_cut_cable_in_the_middle_heals(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(2, config=weights(fetch=False, rate_mib=60) | {"timeouts": SHORT})
    files = some_files(LARGE)
    with_weights(cluster, files)
    cluster.start()
    await receiving(cluster, 50_000_000)
    cluster.sparks.lose_silently()
    await cluster.leader.wait_state("waiting", "recovering", timeout=20)
    cluster.sparks.find_again()
    await cluster.leader.wait_state("live", timeout=60)
    assert content(cache_of(cluster.workers[0]), PIN) == files


SHORT = {"suspect_seconds": 0.8, "lease_seconds": 3}


async def test_beats_stay_fresh_and_memory_small_while_two_workers_are_fed(make_cluster: MakeCluster) -> None:
    """At full speed on one machine: no session is suspected, no daemon with its transfers passes 200 MB."""
    cluster = make_cluster(3, config=weights(fetch=False) | {"timeouts": SHORT})
    files = some_files({"model.safetensors": 300_000_000})
    with_weights(cluster, files)
    cluster.start()
    await receiving(cluster, 1)
    most = 0
    for _ in itertools.count():
        status = await cluster.leader.status()
        phases = [node["weights"]["phase"] for node in status["nodes"]]
        if "receiving" not in phases and "waiting" not in phases:
            break
        assert [node["session"] for node in status["nodes"]] == ["up"] * 3
        for daemon in cluster.daemons:
            tree = [daemon.pid, *children(daemon)]
            most = max(most, sum(_resident(pid) for pid in tree))
        await asyncio.sleep(0.05)
    assert most < 200e6
    await cluster.leader.wait_state("live", timeout=60)
    lapsed = [
        line for line in cluster.leader.journal() if "suspect" in line or "lapsed" in line or "session-lost" in line
    ]
    assert lapsed == []
    for worker in cluster.workers:
        assert content(cache_of(worker), PIN) == files


async def _up(daemon: Daemon) -> bool:
    return await daemon.state() is not None


def _resident(pid: int) -> int:
    try:
        return processes.memory(pid).pss
    except (FileNotFoundError, ProcessLookupError, KeyError):
        return 0


async def test_a_read_only_mount_is_used_as_it_is(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(2, config=weights(fetch=False))
    give_caches(cluster)
    files = some_files({"model.safetensors": 1_000_000})
    shared = cluster.leader.spark.directory / "shared"
    fill(shared, files, PIN)
    before = sorted(str(file) for file in shared.rglob("*"))
    for daemon in cluster.daemons:
        for command in (["mount", "--bind", str(shared), "/mnt"], ["mount", "-o", "remount,bind,ro", "/mnt"]):
            assert daemon.spark.run(command).returncode == 0
    await cluster.live(60)
    assert sorted(str(file) for file in shared.rglob("*")) == before


async def test_a_worker_with_a_read_only_cache_that_lacks_a_file_says_so(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(2, config=weights(fetch=False))
    with_weights(cluster, some_files({"model.safetensors": 1_000_000}))
    worker = cluster.workers[0]
    assert worker.spark.run(["mount", "-o", "remount,bind,ro", "/mnt"]).returncode == 0
    cluster.start()

    await refused(cluster, "spark-2", "weights.read-only")


async def test_a_full_disk_is_a_message_and_goes_on_once_there_is_room(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(2, config=weights(fetch=False))
    files = some_files({"model.safetensors": 30_000_000})
    with_weights(cluster, files)
    worker = cluster.workers[0]
    small = ["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", "/mnt"]
    assert worker.spark.run(small).returncode == 0
    cluster.start()

    await refused(cluster, "spark-2", "weights.no-room", "weights.disk-full")
    assert worker.spark.run(["mount", "-o", "remount,size=100m", "/mnt"]).returncode == 0
    await cluster.leader.wait_state("live", timeout=60)


async def test_the_command_line_tells_and_syncs_a_stopped_set(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(2, config=weights(fetch=False))
    files = some_files({"model.safetensors": 5_000_000})
    with_weights(cluster, files)
    cluster.start()
    leader, worker = cluster.daemons
    await until(lambda: _up(leader), 10.0, "the leader's answer")
    await leader.control("POST", "/v1/stop")
    sync = await asyncio.to_thread(leader.spark.run, [str(GLM_SPARK), "weights", "sync"])
    assert sync.returncode == 0, sync.stdout + sync.stderr
    assert "spark-2: complete" in sync.stdout
    assert content(cache_of(worker), PIN) == files
    told = worker.spark.run([str(GLM_SPARK), "weights", "status", "--config", str(cluster.sparks.config_file)])
    assert told.returncode == 0, told.stdout + told.stderr
    assert "complete and verified" in told.stdout
    refused = worker.spark.run([str(GLM_SPARK), "weights", "sync"])
    assert refused.returncode == 2
    assert "On spark-1: glm-spark weights sync" in refused.stderr
    verified = worker.spark.run(
        [str(GLM_SPARK), "weights", "verify", "--again", "--config", str(cluster.sparks.config_file)]
    )
    assert verified.returncode == 0, verified.stderr
