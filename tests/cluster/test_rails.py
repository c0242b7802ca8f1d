"""A start over two rails of which one does not carry: the set runs over the other and says so."""

from __future__ import annotations

from tests.cluster.conftest import MakeCluster
from tests.cluster.test_losses import live_again


async def test_a_rail_that_loses_everything_is_left_out_and_the_set_goes_live_over_the_other(
    make_cluster: MakeCluster,
) -> None:
    cluster = make_cluster(2)
    cluster.sparks.lose_silently(twin="b")
    status = await cluster.live()
    (link,) = status["links"]
    (rail,) = link["rails"]
    assert rail["a"]["netdev"] == "enp1s0f0np0"
    assert "fabric.path-silent" in status["degraded"]
    told = [finding for node in status["nodes"] for finding in node["findings"]]
    (silent,) = [finding for finding in told if finding["code"] == "fabric.path-silent"]
    assert silent["severity"] == "warning"
    assert "enP2p1s0f0np0" in silent["subject"]
    assert "the set runs without this rail" in silent["fix"]


async def test_the_rail_is_taken_in_again_at_the_next_start(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(2)
    cluster.sparks.lose_silently(twin="b")
    generation = int((await cluster.live())["generation"])
    cluster.sparks.find_again(twin="b")
    assert (await cluster.leader.control("POST", "/v1/restart"))[0] == 202
    await live_again(cluster, generation)
    status = await cluster.leader.status()
    assert len(status["links"][0]["rails"]) == 2
    assert status["degraded"] == []
