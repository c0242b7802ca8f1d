"""Ranks in real podman containers: they go live, and nothing of them outlives what it should not.

What is asserted is seen from outside: the process table, podman's own list, the mounts.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import random
import signal
from collections.abc import Callable
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
def contained(make_cluster: MakeCluster) -> MakeContained:
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


def keepers(daemon: Daemon) -> list[int]:
    """The processes that hold the ranks for a daemon."""
    return [pid for pid in daemon.spark.pids() if any(word.endswith("/keeper.py") for word in processes.argv(pid))]


def podmans(daemon: Daemon) -> list[int]:
    """The `podman run` of each rank."""
    return [pid for pid in daemon.spark.pids() if Path((*processes.argv(pid), "")[0]).name == "podman"]


VICTIMS: dict[str, Callable[[Daemon], list[int]]] = {
    "daemon": lambda daemon: [daemon.pid],
    "engine": engines,
    "conmon": lambda daemon: podman.conmons(daemon.spark),
    "podman": podmans,
    "keeper": keepers,
    "daemon and keeper": lambda daemon: [daemon.pid, *keepers(daemon)],
    "daemon and podman": lambda daemon: [daemon.pid, *podmans(daemon)],
}
# What kills the daemon and its keeper at once leaves the container to the next life, or to the unit's last command.
UNHELD = "daemon and keeper"


# The pairs that differ most are tried each time, the others with the long matrix.
@pytest.mark.parametrize(
    ("victim", "rank"),
    [
        ("daemon", 1),
        ("engine", 0),
        ("conmon", 1),
        ("keeper", 1),
        *(pytest.param(*pair, marks=pytest.mark.full) for pair in [("daemon", 0), ("engine", 1), ("podman", 1)]),
        *(pytest.param(f"daemon and {other}", 1, marks=pytest.mark.full) for other in ("keeper", "podman")),
    ],
)
async def test_whatever_is_killed_nothing_of_the_rank_is_left(contained: MakeContained, victim: str, rank: int) -> None:
    cluster = contained(config={"timeouts": {"suspect_seconds": 1, "lease_seconds": 4}})
    generation = await live(cluster)
    daemon = cluster[rank]
    before = set(engines(daemon))
    for pid in VICTIMS[victim](daemon):
        os.kill(pid, signal.SIGKILL)
    if "daemon" in victim:
        await daemon.exit_status()
    if victim == UNHELD:
        await sweep(daemon)
    if "daemon" in victim:
        await nothing_left(daemon)
    else:
        await until(lambda: not before & set(engines(daemon)), 15.0, "the end of the rank")
    after = await live(cluster, generation)
    assert after > generation
    for one in cluster.daemons:
        (name,) = podman.containers(one.spark)
        assert f"-{after}-" in name
        assert len(engines(one)) == len(podman.conmons(one.spark)) == len(podman.mounts(one.spark)) == 1


async def sweep(daemon: Daemon) -> None:
    """What the unit runs when the daemon has ended."""
    done = await asyncio.to_thread(
        daemon.spark.run, [str(podman.GLM_SPARK), "sweep", "--config", str(daemon.config_file)]
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.full
async def test_a_daemon_killed_at_any_moment_of_a_start_leaves_nothing(contained: MakeContained) -> None:
    cluster = contained(standin={"delay_s": {"loading": 0.3, "weights": 0.3}})
    moments = random.Random(4)
    worker = cluster.workers[0]
    cluster.start()
    for _ in range(6):
        await asyncio.sleep(moments.uniform(0.5, 3.0))
        await worker.kill9()
        await nothing_left(worker)
        worker.start()
    await live(cluster)


async def test_the_next_life_removes_what_an_unheld_one_left_and_nothing_else(contained: MakeContained) -> None:
    cluster = contained()
    generation = await live(cluster)
    worker = cluster.workers[0]
    foreign = ("run", "--detach", "--network=host", "--ulimit=nofile=20000:20000", "--ulimit=nproc=1000:1000")
    tool = ("--runtime=runc", "--cgroup-manager=cgroupfs", *foreign, "--log-driver=none", "--volume=/usr:/usr:ro")
    for cluster_name, node, name in (("other", "spark-2", "theirs"), ("glm", "spark-9", "elsewhere")):
        marks = (f"--label=io.glm-spark.cluster={cluster_name}", f"--label=io.glm-spark.node={node}")
        podman.podman(worker.spark, *tool, *marks, f"--name={name}", podman.IMAGE, "/usr/bin/sleep", "1000")
    for pid in (worker.pid, *keepers(worker)):
        os.kill(pid, signal.SIGKILL)
    await worker.exit_status()
    assert len(podman.containers(worker.spark)) == 3
    await live(cluster, generation)
    names = podman.containers(worker.spark)
    assert {"theirs", "elsewhere"} < set(names)
    assert len(names) == 3
    assert "ended a leftover of an earlier life" in "\n".join(worker.journal())
    podman.podman(worker.spark, *tool[:2], "rm", "--force", "--time=0", "theirs", "elsewhere")


async def test_nothing_is_swept_beside_a_living_daemon(contained: MakeContained) -> None:
    cluster = contained()
    generation = await live(cluster)
    done = await asyncio.to_thread(
        cluster.leader.spark.run, [str(podman.GLM_SPARK), "sweep", "--config", str(cluster.leader.config_file)]
    )
    assert done.returncode == 2
    assert "glm-spark stop" in done.stderr
    assert (await cluster.leader.status())["generation"] == generation
    assert engines(cluster.leader)


async def test_a_deaf_rank_with_a_family_ends_with_all_of_it(contained: MakeContained) -> None:
    """It ignores SIGTERM, a child of its own lives in another session, and another of its processes is stopped."""
    cluster = contained(
        standin={"deaf": True, "grandchild": True}, config={"stop": {"kill_seconds": 1.0, "drain_seconds": 0}}
    )
    await live(cluster)
    worker = cluster.workers[0]
    inside = [pid for pid in worker.spark.pids() if podman.in_container(pid)]
    family = [pid for pid in inside if pid not in engines(worker)]
    assert family
    os.kill(family[0], signal.SIGSTOP)
    for daemon in cluster.daemons:
        daemon.signal(signal.SIGTERM)
    for daemon in cluster.daemons:
        assert await daemon.exit_status() == 0
        await nothing_left(daemon)
    assert not [pid for pid in inside if processes.alive(pid)]


async def test_who_killed_a_rank_is_said(contained: MakeContained) -> None:
    cluster = contained()
    generation = await live(cluster)
    os.kill(engines(cluster.workers[0])[0], signal.SIGKILL)
    await live(cluster, generation)
    assert "killed by somebody on this Spark" in "\n".join(cluster.leader.journal())


async def test_a_missing_image_is_named_and_the_set_starts_when_it_is_there(contained: MakeContained) -> None:
    cluster = contained(images=1)
    cluster.start()
    line = await cluster.leader.wait_journal("image.missing")
    assert "spark-2" in line
    assert "localhost/engine" in line
    podman.load_image(cluster.workers[0].spark, cluster.workers[0].spark.directory / "rootfs")
    await live(cluster)


async def test_images_that_differ_do_not_start_together(contained: MakeContained) -> None:
    cluster = contained(images=1)
    spark = cluster.workers[0].spark
    root = spark.directory / "rootfs"
    root.mkdir()
    (root / "other").write_text("another build of the same name")
    podman.load_image(spark, root)
    cluster.start()
    line = await cluster.leader.wait_journal("image.content-differs")
    assert "spark-1" in line
    assert "spark-2" in line
    assert not any(engines(daemon) for daemon in cluster.daemons)


async def test_the_images_own_parser_is_asked_before_anything_is_started(contained: MakeContained) -> None:
    cluster = contained(config={"engine": {"command": ["tensorfold"], "reasoning_effort": "high"}})
    for one in enclosure.scratch().glob("engine-*"):
        (one / "tensorfold/cli.py").write_text(
            "import argparse\ndef build_parser():\n    parser = argparse.ArgumentParser('tensorfold serve')\n"
            "    parser.add_argument('words', nargs='*')\n    return parser\n"
        )
    cluster.start()
    line = await cluster.leader.wait_journal("engine.arguments-refused")
    assert "unrecognized arguments: --tp 2" in line
    assert not any(engines(daemon) for daemon in cluster.daemons)


async def test_compiled_kernels_are_kept_for_the_image_they_were_made_for(contained: MakeContained) -> None:
    cluster = contained()
    await live(cluster)
    for daemon in cluster.daemons:
        (engine,) = engines(daemon)
        mounted = Path(f"/proc/{engine}/mountinfo").read_text()
        assert f"/kernels/{podman.PATCHES} /cache rw" in mounted
        assert " /model ro" in mounted


async def test_a_restart_whose_command_line_the_engine_rejects_stops_nothing(contained: MakeContained) -> None:
    cluster = contained()
    generation = await live(cluster)
    for one in enclosure.scratch().glob("engine-*"):
        (one / "tensorfold/cli.py").write_text(
            "import argparse\ndef build_parser():\n    parser = argparse.ArgumentParser('tensorfold serve')\n"
            "    parser.add_argument('words', nargs='*')\n    return parser\n"
        )
    code, body = await cluster.leader.control("POST", "/v1/restart")
    assert code == 409
    assert [finding["code"] for finding in body["findings"]] == ["engine.arguments-refused"]
    status = await cluster.leader.status()
    assert status["ready"]
    assert status["generation"] == generation


async def test_a_missing_image_is_fetched_by_its_digest_where_that_is_allowed(contained: MakeContained) -> None:
    insecure = enclosure.scratch() / "registries.conf"
    insecure.write_text('[[registry]]\nlocation = "127.0.0.1:5000"\ninsecure = true\n')
    cluster = contained(images=1, env={"CONTAINERS_REGISTRIES_CONF": str(insecure)})
    folder = enclosure.scratch() / "pushed"
    podman.podman(cluster.leader.spark, "push", podman.IMAGE, f"dir:{folder}")
    podman.podman(cluster.leader.spark, "rmi", podman.IMAGE)
    digest = hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()
    image = f"127.0.0.1:5000/engine@sha256:{digest}"
    told = podman.settings(enclosure.scratch(), next(enclosure.scratch().glob("engine-*")))
    cluster.sparks.set_config({"engine": {**told["engine"], "image": image, "pull": True}})
    cluster.start()
    line = await cluster.leader.wait_journal("image.pull-failed")  # no registry answers yet
    assert "connection refused" in line

    async def told_why() -> bool:
        return bool((await cluster.leader.status())["reason"]["code"] == "image.pull-failed")

    await until(told_why, 10.0, "the set's reason to wait")
    serve = [str(podman.PYTHON), str(Path(__file__).with_name("registry.py")), str(folder), "5000"]
    with contextlib.ExitStack() as stack:
        for daemon in cluster.daemons:
            stack.callback(daemon.spark.popen(serve).kill)
        await live(cluster)
    for daemon in cluster.daemons:
        assert any(f"image {image} is here" in line for line in daemon.journal())


async def test_why_there_is_no_container_is_said_in_podmans_words_with_what_to_do(contained: MakeContained) -> None:
    cluster = contained(config={"engine": {"command": ["no-such-engine"]}})
    cluster.start()
    line = await cluster.leader.wait_journal("engine.container-refused")
    assert 'exec: "no-such-engine"' in line
    assert "Correct engine.command" in line
    for daemon in cluster.daemons:
        await nothing_left(daemon)
