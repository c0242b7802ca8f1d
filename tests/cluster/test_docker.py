"""Ranks in containers of a real docker engine, which stand below containerd and not below the daemon.

The GPU is given as any other device: there is no NVIDIA runtime here.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

import pytest

from tests import enclosure
from tests.cluster import docker, podman
from tests.cluster.conftest import Cluster, MakeCluster
from tests.cluster.test_containers import engines, keepers, live, sweep
from tests.sparks import processes
from tests.sparks.daemon import Daemon, until

pytestmark = pytest.mark.full


@pytest.fixture
def contained(make_cluster: MakeCluster) -> Iterator[Cluster]:
    engine = enclosure.scratch() / f"engine-{os.urandom(4).hex()}"
    podman.make_engine(engine)
    told = podman.settings(enclosure.scratch(), engine)
    told["engine"] |= {"runtime": "docker", "runtime_options": [], "gpu_options": ["--device=/dev/null"]}
    cluster = make_cluster(2, config=told)
    with contextlib.ExitStack() as stack:
        for spark in cluster.sparks:
            podman.furnish(spark, image=False)
            stack.enter_context(docker.engine(spark))
            docker.load_image(spark)
        yield cluster
        for daemon in cluster.daemons:
            daemon.signal(signal.SIGKILL)  # before the engine that it would ask


async def nothing_left(daemon: Daemon) -> None:
    await until(lambda: not engines(daemon), 20.0, "the end of its containers")
    await until(lambda: not docker.containers(daemon.spark), 20.0, "docker's knowing of no container")


async def test_a_set_goes_live_and_stops_clean(contained: Cluster) -> None:
    generation = await live(contained)
    for rank, daemon in enumerate(contained.daemons):
        assert docker.containers(daemon.spark) == [f"glm-spark-glm-spark-{rank + 1}-{generation}-{rank}"]
        assert len(engines(daemon)) == 1
    assert any("rank 0: [tensorfold] serving" in line for line in contained.leader.journal())
    for daemon in contained.daemons:
        assert await daemon.stop() == 0
        await nothing_left(daemon)


async def test_a_killed_daemon_or_keeper_or_client_leaves_no_container(contained: Cluster) -> None:
    generation = await live(contained)
    worker = contained.workers[0]
    await worker.kill9()
    await nothing_left(worker)
    generation = await live(contained, generation)
    for pid in keepers(worker):
        os.kill(pid, signal.SIGKILL)
    generation = await live(contained, generation)
    assert len(docker.containers(worker.spark)) == 1
    clients = [pid for pid in worker.spark.pids() if processes.argv(pid)[:2] == ("docker", "run")]
    assert clients
    for pid in clients:
        os.kill(pid, signal.SIGKILL)
    await live(contained, generation)
    assert len(docker.containers(worker.spark)) == 1
    for pid in (worker.pid, *keepers(worker)):
        os.kill(pid, signal.SIGKILL)
    await worker.exit_status()
    await sweep(worker)
    await nothing_left(worker)


async def test_who_killed_a_rank_is_said(contained: Cluster) -> None:
    generation = await live(contained)
    os.kill(engines(contained.workers[0])[0], signal.SIGKILL)
    await live(contained, generation)
    assert "killed by somebody on this Spark" in "\n".join(contained.leader.journal())
