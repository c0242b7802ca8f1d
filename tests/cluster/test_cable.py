"""The cable while the set is live: a blip restarts nothing, a lost cable ends the set, a plugged one brings it back."""

from __future__ import annotations

from tests.cluster.conftest import Cluster, MakeCluster
from tests.cluster.test_losses import gone, live_again, not_ready
from tests.sparks.daemon import until

PATIENT = {"fabric": {"hold_seconds": 3}, "timeouts": {"suspect_seconds": 2, "lease_seconds": 15}}


async def ready_again(cluster: Cluster) -> None:
    async def seen() -> bool:
        return await cluster.leader.endpoint_ready() == 200

    await until(seen, 10.0, "ready again")


async def test_a_pulled_cable_is_news_at_once_and_a_blip_restarts_nothing(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(2, config=PATIENT)
    generation = int((await cluster.live())["generation"])
    cluster.sparks.cut_cable()
    await not_ready(cluster, timeout=1.5)
    status = await cluster.leader.status()
    assert status["reason"]["code"] == "fabric.carrier-lost"
    assert "enp1s0f0np0" in status["reason"]["subject"]
    assert cluster.leader.ranks(generation), "a blip ends no rank"
    cluster.sparks.plug_cable()
    await ready_again(cluster)
    assert int((await cluster.leader.status())["generation"]) == generation


async def test_a_cable_that_stays_out_ends_the_set_and_it_comes_back(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(2, config={"fabric": {"hold_seconds": 1}, "timeouts": {"lease_seconds": 5}})
    generation = int((await cluster.live())["generation"])
    cluster.sparks.cut_cable()
    await until(lambda: not cluster.leader.ranks(generation), 10.0, "the end of the leader's rank")
    await gone(cluster, generation, timeout=20)
    cluster.sparks.plug_cable()
    await live_again(cluster, generation)


async def test_no_spark_says_ready_while_its_own_cable_is_out(make_cluster: MakeCluster) -> None:
    """The leader's word, which a worker repeats, is seconds old by then."""
    cluster = make_cluster(2, config={"timeouts": {"suspect_seconds": 20, "lease_seconds": 60}})
    await cluster.live()
    worker = cluster.workers[0]

    async def says(code: int) -> bool:
        return (await worker.control("GET", "/readyz"))[0] == code

    await until(lambda: says(200), 10.0, "a worker that says ready")
    cluster.sparks.cut_cable()
    await until(lambda: says(503), 4.0, "a worker that says not ready")
    status = await worker.status()
    assert (status["ready"], status["reason"]["code"]) == (False, "fabric.carrier-lost")
    assert status["reason"]["node"] == "spark-2"
    cluster.sparks.plug_cable()
    await until(lambda: says(200), 30.0, "ready again")


async def test_a_worker_that_sees_its_cable_out_does_not_wait_for_its_lease(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(2, config={"fabric": {"hold_seconds": 1}, "timeouts": {"lease_seconds": 60}})
    generation = int((await cluster.live())["generation"])
    cluster.sparks.cut_cable()
    await gone(cluster, generation, timeout=20)
    cluster.sparks.plug_cable()
    await live_again(cluster, generation)


async def test_one_lost_rail_of_two_is_degraded_not_dead(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(2, config=PATIENT)
    generation = int((await cluster.live())["generation"])
    cluster.sparks.cut_cable(twin="b")

    async def degraded() -> bool:
        return "fabric.carrier-lost" in (await cluster.leader.status())["degraded"]

    await until(degraded, 5.0, "the lost rail said")
    status = await cluster.leader.status()
    assert status["ready"]
    assert int(status["generation"]) == generation
    cluster.sparks.plug_cable(twin="b")

    async def whole() -> bool:
        return not (await cluster.leader.status())["degraded"]

    await until(whole, 5.0, "whole again")


async def test_an_address_that_disappears_is_named_with_its_netdev(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(2, config=PATIENT)
    await cluster.live()
    cluster.sparks[1].remove_address("enP2p1s0f0np0")

    async def said() -> bool:
        return "fabric.address-gone" in (await cluster.leader.status())["degraded"]

    await until(said, 5.0, "the missing address said")


async def test_a_set_of_three_names_the_cable_that_was_cut(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(3, config=PATIENT)
    generation = int((await cluster.live())["generation"])
    cluster.sparks.cut_cable(2, 3)
    await not_ready(cluster)
    reason = (await cluster.leader.status())["reason"]
    assert reason["code"] == "fabric.carrier-lost"
    assert reason["node"] in ("spark-2", "spark-3")
    await gone(cluster, generation, timeout=20)
    cluster.sparks.plug_cable(2, 3)
    await live_again(cluster, generation)
