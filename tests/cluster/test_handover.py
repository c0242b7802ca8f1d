"""The engine's image from the leader's podman to a worker's that cannot pull it, over the cable, whatever breaks."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glm_spark.handover import place, record
from glm_spark.handover.chain import Recipe
from tests import enclosure
from tests.cluster import podman
from tests.cluster.conftest import Cluster, MakeCluster
from tests.cluster.test_containers import engines
from tests.cluster.test_weights import children, give_caches, status_of
from tests.sparks import Daemon, processes, until

BULK = 60_000_000  # bytes of the image, so that there is time to break its way
PACED = 8  # MiB a second
REGISTRY = "127.0.0.1:5000"

MakeUnequal = Callable[..., Cluster]


@pytest.fixture
def unequal(make_cluster: MakeCluster) -> MakeUnequal:
    """Two Sparks with caches and podmans of their own; the leader's has pulled the pinned image, the worker's has
    nothing, and no registry answers any more."""

    def make(*, engine: dict[str, Any] | None = None, bulk: int = 100_000, **weights: Any) -> Cluster:
        programs = enclosure.scratch() / f"engine-{os.urandom(4).hex()}"
        podman.make_engine(programs)
        told = podman.settings(enclosure.scratch(), programs)
        tables = {"model": {"cache": "/mnt"}, "weights": {"keep_free_gib": 0} | weights}
        cluster = make_cluster(2, config={**told, **tables})
        give_caches(cluster)
        for spark in cluster.sparks:
            podman.furnish(spark, image=False)
        told["engine"] |= {"image": _pulled(cluster.leader, bulk)} | (engine or {})
        cluster.sparks.set_config({**told, **tables})
        return cluster

    return make


def _pulled(leader: Daemon, bulk: int) -> str:
    """Makes an image, has the leader's podman pull it from a registry that ends then; the reference."""
    spark = leader.spark
    root = spark.directory / "rootfs"
    root.mkdir()
    (root / "bulk").write_bytes(random.Random(7).randbytes(bulk))
    podman.load_image(spark, root)
    folder = enclosure.scratch() / f"pushed-{os.urandom(4).hex()}"
    podman.podman(spark, "push", "--compress", podman.IMAGE, f"dir:{folder}")
    podman.podman(spark, "rmi", podman.IMAGE)
    digest = hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()
    reference = f"{REGISTRY}/engine@sha256:{digest}"
    program = str(Path(__file__).with_name("registry.py"))
    serving = spark.popen([str(podman.PYTHON), program, str(folder), REGISTRY.partition(":")[2]])
    try:
        pull = ["podman", "pull", "--quiet", "--tls-verify=false", reference]
        listens_by = time.monotonic() + 30.0
        while "refused" in (done := spark.run(pull)).stderr:
            assert time.monotonic() < listens_by, done.stderr
        assert done.returncode == 0, done.stderr
    finally:
        serving.kill()
        serving.wait()
    return reference


def image_folder(daemon: Daemon) -> Path:
    return place.top(str(daemon.spark.directory / "huggingface"))


def image_of(daemon: Daemon) -> list[str]:
    """The Ids of the images in a Spark's podman."""
    return podman.podman(daemon.spark, "images", "--quiet", "--no-trunc").split()


async def handover_of(cluster: Cluster, rank: int = 1) -> dict[str, Any]:
    nodes = (await status_of(cluster)).get("nodes") or []
    return dict(nodes[rank]["handover"] or {}) if nodes else {}


async def receiving(cluster: Cluster, at_least: int) -> None:
    async def seen() -> bool:
        told = await handover_of(cluster)
        return told.get("phase") == "receiving" and told["done"] >= at_least

    await until(seen, 60.0, f"{at_least} bytes of the image received")


def runs_that_image(cluster: Cluster) -> None:
    (image,) = set(image_of(cluster.leader))
    assert set(image_of(cluster.workers[0])) == {image}
    for daemon in cluster.daemons:
        assert len(engines(daemon)) == 1
        assert podman.podman(daemon.spark, "ps", "--no-trunc", "--format={{.ImageID}}").split() == [
            image.removeprefix("sha256:")
        ]


async def test_a_worker_that_must_not_pull_is_handed_the_image_and_goes_live(unequal: MakeUnequal) -> None:
    cluster = unequal(bulk=BULK)
    cluster.start()
    line = await cluster.leader.wait_journal("image.handing-over", timeout=60)
    assert "spark-2" in line
    await cluster.leader.wait_state("live", timeout=90)
    runs_that_image(cluster)
    assert not image_folder(cluster.workers[0]).exists()
    (tag,) = podman.podman(cluster.workers[0].spark, "images", "--format={{.Repository}}").split()
    assert tag == "localhost/glm-spark/engine"
    journal = "\n".join((*cluster.leader.journal(), *cluster.workers[0].journal()))
    assert "is here, from spark-1" in journal
    assert not [word for word in ("suspect", "lapsed", "session-lost") if word in journal]
    # The next life finds it by its record.
    worker = cluster.workers[0]
    generation, lines = (await cluster.leader.status())["generation"], len(worker.journal())
    assert await worker.stop() == 0
    worker.start()

    async def again() -> bool:
        status = await status_of(cluster)
        return bool(status.get("ready")) and status["generation"] > generation

    await until(again, 60.0, "live with what was handed over before")
    assert "image.handing-over" not in "\n".join(worker.journal()[lines:])


async def test_a_worker_whose_pull_fails_is_handed_the_image(unequal: MakeUnequal) -> None:
    cluster = unequal(engine={"pull": True})
    cluster.start()
    line = await cluster.workers[0].wait_journal("image.pull-failed", timeout=60)
    assert "it is asked for from the leader" in line
    await cluster.leader.wait_state("live", timeout=90)
    runs_that_image(cluster)


@pytest.mark.parametrize(
    "victim",
    [
        "worker",
        "sender",
        pytest.param("receiver", marks=pytest.mark.full),
        pytest.param("leader", marks=pytest.mark.full),
    ],
)
async def test_a_kill_in_the_middle_is_taken_up(unequal: MakeUnequal, victim: str) -> None:
    cluster = unequal(bulk=BULK, rate_mib=PACED)
    cluster.start()
    await receiving(cluster, 25_000_000)
    struck = cluster.leader if victim in ("leader", "sender") else cluster.workers[0]
    left = children(struck)
    assert left
    if victim in ("sender", "receiver"):
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    else:
        await struck.kill9()
        await until(lambda: not any(map(processes.alive, left)), 5.0, "the end of its transfer")
        struck.start()
    assert await _first_seen(cluster) > 20_000_000  # what had come was not asked for again
    assert sum(512 * file.stat().st_blocks for file in image_folder(cluster.workers[0]).rglob("*.glm-part")) > 20e6
    await cluster.leader.wait_state("live", timeout=120)
    runs_that_image(cluster)
    assert not image_folder(cluster.workers[0]).exists()


async def _first_seen(cluster: Cluster) -> int:
    """How many bytes the worker counts when it is first seen at it again; a moment later than its first look."""
    found: list[int] = []

    async def seen() -> bool:
        told = await handover_of(cluster)
        if told.get("phase") == "receiving" and told["done"] > 1_000_000:
            found.append(told["done"])
        return bool(found)

    await until(seen, 60.0, "the image received again")
    return found[0]


async def test_a_kill_while_podman_loads_leaves_nothing(unequal: MakeUnequal) -> None:
    cluster = unequal(bulk=3 * BULK)
    cluster.start()
    worker = cluster.workers[0]

    async def loading() -> bool:
        return (await handover_of(cluster)).get("phase") == "loading"

    await until(loading, 90.0, "the loading of the image")
    await worker.kill9()
    worker.start()
    await cluster.leader.wait_state("live", timeout=120)
    runs_that_image(cluster)
    await until(lambda: not image_folder(worker).exists(), 10.0, "the end of what was on its way")


async def test_a_leader_with_another_image_under_the_name_is_refused(unequal: MakeUnequal) -> None:
    """Its own record says that it is the pinned one: it would run it, and nobody takes it from it."""
    cluster = unequal()
    leader, worker = cluster.daemons
    (image,) = image_of(leader)
    (told,) = json.loads(podman.podman(leader.spark, "image", "inspect", image))
    layers = tuple(layer.removeprefix("sha256:") for layer in told["RootFS"]["Layers"])
    forged = Recipe(pin="ab" * 32, config=told["Id"], layers=layers, docker=False, documents={})
    record.keep(record.below(leader.spark.directory / "state"), forged)
    settings = podman.settings(enclosure.scratch(), next(enclosure.scratch().glob("engine-*")))
    settings["engine"]["image"] = f"{REGISTRY}/engine@sha256:{'ab' * 32}"
    cluster.sparks.set_config({**settings, "model": {"cache": "/mnt"}, "weights": {"keep_free_gib": 0}})
    cluster.start()
    line = await leader.wait_journal("image.not-handed-over", timeout=60)
    assert "spark-2" in line
    assert "no document abababababab... that proves it" in line
    assert image_of(worker) == []
    assert not any(engines(daemon) for daemon in cluster.daemons)


async def test_where_it_is_not_allowed_a_missing_image_stays_missing(unequal: MakeUnequal) -> None:
    cluster = unequal(engine={"hand_over": False})
    cluster.start()
    line = await cluster.leader.wait_journal("image.missing", timeout=60)
    assert "spark-2" in line
    with contextlib.suppress(OSError):
        assert (await handover_of(cluster)) == {}
    assert image_of(cluster.workers[0]) == []
