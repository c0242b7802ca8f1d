"""glm-spark restart looks before it stops anything: a set that could not be started again goes on."""

from __future__ import annotations

import shutil
import signal
from typing import Any

from tests.cluster.attendant import watched
from tests.cluster.conftest import Cluster, MakeCluster
from tests.cluster.observer import Limits
from tests.cluster.test_losses import live_again
from tests.sparks import processes
from tests.sparks.daemon import Daemon, until

LIMITS = Limits(suspect=2, lease=15, kill=10)


async def restart(cluster: Cluster) -> tuple[int, list[dict[str, Any]]]:
    code, body = await cluster.leader.control("POST", "/v1/restart")
    return code, body["findings"]


async def goes_on(cluster: Cluster, generation: int) -> None:
    assert await cluster.leader.endpoint_ready() == 200
    assert {rank.generation for rank in processes.ranks()} == {generation}
    status = await cluster.leader.status()
    assert (status["state"], status["generation"]) == ("live", generation)


def own_file(daemon: Daemon) -> None:
    """A file of its own, as every Spark has one."""
    copy = daemon.spark.directory / "config.toml"
    shutil.copy(daemon.config_file, copy)
    daemon.config_file = copy


async def test_a_running_set_is_started_anew_and_its_own_ranks_are_not_in_the_way(cluster: Cluster) -> None:
    generation = int((await cluster.live())["generation"])
    assert await restart(cluster) == (202, [])
    await live_again(cluster, generation)


async def test_a_file_that_cannot_be_used_stops_nothing(cluster: Cluster) -> None:
    generation = int((await cluster.live())["generation"])
    good = cluster.sparks.config_file.read_text()
    async with watched(cluster, LIMITS, restarts=False):
        cluster.sparks.config_file.write_text(good + "\n[engin]\ncontext = 5\n")
        code, findings = await restart(cluster)
        assert code == 409
        assert {finding["code"] for finding in findings} == {"config.unusable"}
        assert "engin" in findings[0]["measured"]
        assert findings[0]["node"] == "spark-1"
        await goes_on(cluster, generation)
    cluster.sparks.config_file.write_text(good)
    assert (await restart(cluster))[0] == 202
    await live_again(cluster, generation)


async def test_a_workers_file_that_cannot_be_used_stops_nothing(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(2)
    own_file(cluster.workers[0])
    generation = int((await cluster.live())["generation"])
    cluster.workers[0].config_file.write_text("[[node]]\nname = 5\n")
    code, findings = await restart(cluster)
    assert code == 409
    assert [(finding["code"], finding["node"]) for finding in findings] == [("config.unusable", "spark-2")]
    await goes_on(cluster, generation)


async def test_a_setting_changed_on_the_leader_alone_stops_nothing_until_all_have_it(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(2)
    worker = cluster.workers[0]
    own_file(worker)
    generation = int((await cluster.live())["generation"])
    cluster.sparks.set_config({"engine": {"context": 65_536}})
    code, findings = await restart(cluster)
    assert code == 409
    assert "engine.context" in findings[0]["subject"]
    assert findings[0]["node"] == "spark-2"
    assert "65536" in findings[0]["wanted"]
    assert "spark-2" in findings[0]["fix"]
    await goes_on(cluster, generation)
    shutil.copy(cluster.sparks.config_file, worker.config_file)
    before = len(worker.journal())
    worker.signal(signal.SIGHUP)
    await worker.wait_journal("engine.context changed", since=before)

    async def begun() -> bool:  # the leader hears of the worker's settings with its next word
        return (await restart(cluster))[0] == 202

    await until(begun, 5.0, "a restart once all Sparks have the same settings")
    await live_again(cluster, generation)
    for rank in processes.ranks():
        assert rank.argv[rank.argv.index("--context") + 1] == "65536"


async def test_a_spark_without_the_memory_for_another_start_stops_nothing(cluster: Cluster) -> None:
    generation = int((await cluster.live())["generation"])
    estimates = cluster.sparks[1].directory / "state" / "estimates.json"
    await until(estimates.exists, 10.0, "what the engine needs, kept on spark-2")
    cluster.sparks[1].set_memory(20.0)
    code, findings = await restart(cluster)
    assert code == 409
    assert [(finding["code"], finding["node"]) for finding in findings] == [("memory.below-estimate", "spark-2")]
    await goes_on(cluster, generation)


async def test_a_set_that_does_not_run_is_always_begun(cluster: Cluster) -> None:
    await cluster.live()
    code, _ = await cluster.leader.control("POST", "/v1/stop")
    assert code == 202
    await until(lambda: not processes.ranks(), 20.0, "the set stopped")
    await cluster.leader.wait_state("waiting")
    cluster.sparks[1].set_memory(20.0)
    cluster.sparks.config_file.write_text("nothing that could be used")
    assert (await restart(cluster))[0] == 202
    cluster.sparks[1].set_memory(118.0)
    await cluster.leader.wait_state("live")
