"""The set goes live, answers, and says so."""

from __future__ import annotations

import pytest

from tests.cluster.conftest import MakeCluster


@pytest.mark.parametrize("count", [2, 3])
async def test_the_set_goes_live_and_answers(make_cluster: MakeCluster, count: int) -> None:
    cluster = make_cluster(count)
    status = await cluster.live()
    assert status["ready"] is True
    assert [node["rank_state"] for node in status["nodes"]] == ["ready"] * count
    await cluster.leader.wait_journal("GLM-5.3-Flash-EXL3 is now LIVE! on port 8888")
