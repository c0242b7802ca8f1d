"""How a daemon comes and goes: what systemd hears, the exit status, what is left, in whatever order the Sparks end."""

from __future__ import annotations

import asyncio
import itertools
import re
import signal

import pytest

from tests.cluster.conftest import Cluster, MakeCluster
from tests.cluster.test_losses import live_again
from tests.sparks import processes
from tests.sparks.daemon import Daemon, until

PROMPT = {"stop": {"drain_seconds": 3, "kill_seconds": 1}}
QUESTION = {"model": "GLM-5.3-Flash-EXL3", "messages": [{"role": "user", "content": "Tell me a story."}]}
CHAT = "http://127.0.0.1:8888/v1/chat/completions"


async def gentle(cluster: Cluster, who: list[Daemon], timeout: float = 15.0) -> None:
    """They end by themselves, with status 0, and nothing is left on their Sparks."""
    for daemon in who:
        assert await daemon.exit_status(timeout) == 0
        assert daemon.spark.pids() == []
        assert not daemon.spark.control_socket.exists()


async def under_way(cluster: Cluster) -> bool:
    reply = await cluster.leader.spark.http("GET", "http://127.0.0.1:8889/health")
    return bool(reply.json()["requests_running"])


# -- every order of ending ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)], ids=["leader-first", "leader-last", "leader-between"]
)
async def test_three_sparks_end_one_after_another(make_cluster: MakeCluster, order: tuple[int, ...]) -> None:
    cluster = make_cluster(3, config=PROMPT)
    await cluster.live()
    for rank in order:
        assert await cluster[rank].stop() == 0
        assert not processes.ranks(), "the set ends whole with its first Spark"
    await gentle(cluster, cluster.daemons)


async def test_all_sparks_are_shut_down_at_once(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(3, config=PROMPT)
    await cluster.live()
    for daemon in cluster.daemons:
        daemon.signal(signal.SIGTERM)
    await gentle(cluster, cluster.daemons)
    assert not processes.ranks()


@pytest.mark.parametrize("who", [0, 1])
@pytest.mark.parametrize("state", ["waiting", "loading"])
async def test_a_daemon_ends_at_once_before_the_set_is_live(make_cluster: MakeCluster, who: int, state: str) -> None:
    cluster = make_cluster(2, config=PROMPT, standin={"delay_s": {"weights": 30}})
    if state == "waiting":
        cluster[who].start()
        await until(lambda: bool(cluster[who].notify.all("STATUS")), 10.0, "a first word")
    else:
        cluster.start()
        await until(lambda: len(processes.ranks()) == 2, 10.0, "both ranks")
    cluster[who].signal(signal.SIGTERM)
    await gentle(cluster, [cluster[who]], timeout=8.0)
    await until(lambda: not processes.ranks(), 5.0, "no rank anywhere")


# -- running requests --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("who", [0, 1], ids=["leader", "worker"])
async def test_a_stop_lets_the_running_reply_end(make_cluster: MakeCluster, who: int) -> None:
    """Also one that begins on a worker: it asks the leader, and its rank serves the reply to its end."""
    cluster = make_cluster(2, config=PROMPT, standin={"token_rate": 40, "reply_tokens": 60, "think_tokens": 0})
    generation = int((await cluster.live())["generation"])
    asked = asyncio.create_task(
        cluster.leader.spark.http("POST", CHAT, json={**QUESTION, "max_tokens": 60, "stream": True})
    )
    await until(lambda: under_way(cluster), 5.0, "the request in the engine")
    cluster[who].signal(signal.SIGTERM)
    await cluster.leader.wait_journal("stopping")
    assert await cluster.leader.endpoint_ready() in (503, None), "nothing new is let in"
    reply = await asked
    assert reply.status == 200
    assert reply.body.endswith(b"data: [DONE]\n\n")
    assert b"error" not in reply.body
    await gentle(cluster, [cluster[who]])
    if who == 1:  # the leader stays, and says whom it waits for
        status = await cluster.leader.wait_state("waiting")
        assert status["reason"]["node"] == "spark-2"
        cluster.workers[0].start()
        await live_again(cluster, generation)


@pytest.mark.parametrize("who", [0, 1], ids=["leader", "worker"])
async def test_a_reply_that_takes_too_long_is_cut_when_the_time_is_up(make_cluster: MakeCluster, who: int) -> None:
    config = {"stop": {"drain_seconds": 1, "kill_seconds": 1}}
    cluster = make_cluster(2, config=config, standin={"token_rate": 100, "reply_tokens": 4000, "think_tokens": 0})
    await cluster.live()
    asked = asyncio.create_task(
        cluster.leader.spark.http("POST", CHAT, json={**QUESTION, "max_tokens": 4000, "stream": True})
    )
    await until(lambda: under_way(cluster), 5.0, "the request in the engine")
    cluster[who].signal(signal.SIGTERM)
    reply = await asked
    assert b"not_ready" in reply.body or b"server_error" in reply.body
    assert reply.body.endswith(b"data: [DONE]\n\n")
    await gentle(cluster, [cluster[who]], timeout=8.0)


@pytest.mark.parametrize("who", [0, 1], ids=["leader", "worker"])
async def test_a_second_sigterm_does_not_wait_for_running_requests(make_cluster: MakeCluster, who: int) -> None:
    config = {"stop": {"drain_seconds": 600, "kill_seconds": 1}}
    cluster = make_cluster(2, config=config, standin={"token_rate": 100, "reply_tokens": 30000, "think_tokens": 0})
    await cluster.live()
    asked = asyncio.create_task(
        cluster.leader.spark.http("POST", CHAT, json={**QUESTION, "max_tokens": 30000, "stream": True})
    )
    await until(lambda: under_way(cluster), 5.0, "the request in the engine")
    cluster[who].signal(signal.SIGTERM)
    await cluster[who].wait_journal("asked to stop (SIGTERM)")
    await asyncio.sleep(0.5)
    assert cluster[who].running, "it waits for the reply"
    cluster[who].signal(signal.SIGTERM)
    await gentle(cluster, [cluster[who]], timeout=5.0)
    await asked
    await until(lambda: not processes.ranks(), 5.0, "no rank anywhere")


async def test_a_worker_does_not_wait_for_a_leader_that_stands_still(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(2, config={"stop": {"drain_seconds": 1, "kill_seconds": 1}})
    await cluster.live()
    cluster.leader.freeze()
    worker = cluster.workers[0]
    worker.signal(signal.SIGTERM)
    await gentle(cluster, [worker], timeout=8.0)
    cluster.leader.thaw()
    await until(lambda: not processes.ranks(), 20.0, "no rank anywhere")


# -- systemd -----------------------------------------------------------------------------------------------------


def names(daemon: Daemon) -> list[str]:
    return [notice.name for notice in daemon.notify.all()]


async def test_systemd_hears_of_readiness_when_it_is_true_and_of_life_all_along(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(2, watchdog_seconds=1.5)
    leader, worker = cluster.leader, cluster.workers[0]
    leader.start()
    await leader.wait_state("waiting")
    await until(lambda: "EXTEND_TIMEOUT_USEC" in names(leader), 5.0, "more time asked for while it waits")
    assert int(leader.notify.last("EXTEND_TIMEOUT_USEC") or 0) == 60_000_000
    assert "READY" not in names(leader), "a leader that waits for its peer is not ready"
    assert "WATCHDOG" not in names(leader), "systemd's watchdog begins with READY"
    worker.start()
    await until(lambda: "READY" in names(worker), 10.0, "a worker is ready when it is armed")
    await leader.wait_state("live")
    await until(lambda: "READY" in names(leader), 2.0, "READY at the first live")
    at = next(notice.at for notice in leader.notify.all("READY"))
    leader_seen = len(leader.notify.all("WATCHDOG"))
    for daemon in cluster.daemons:
        assert names(daemon).index("EXTEND_TIMEOUT_USEC") < names(daemon).index("READY")
        assert names(daemon).index("READY") < names(daemon).index("WATCHDOG")
        assert len(daemon.notify.all("READY")) == 1

    def beats() -> bool:
        return len(leader.notify.all("WATCHDOG")) >= leader_seen + 3

    await until(beats, 5.0, "three signs of life within the watchdog's time")
    barks = [notice.at for notice in leader.notify.all("WATCHDOG")]
    assert all(bark >= at for bark in barks)
    assert max(later - sooner for sooner, later in itertools.pairwise(barks)) < 1.5
    assert leader.notify.last("STATUS") == "live: GLM-5.3-Flash-EXL3 on port 8888"
    assert (worker.notify.last("STATUS") or "").endswith("the set is live")
    assert any(re.fullmatch(r"<6>GLM-5\.3-Flash-EXL3 is now LIVE! on port 8888", line) for line in leader.journal())


async def test_systemd_hears_that_a_daemon_ends_and_that_it_takes_time(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(2, config=PROMPT, watchdog_seconds=1.5)
    await cluster.live()
    for daemon in reversed(cluster.daemons):
        daemon.notify.clear()
        assert await daemon.stop() == 0
        heard = names(daemon)
        assert heard.index("STOPPING") < heard.index("EXTEND_TIMEOUT_USEC")
        assert "READY" not in heard


async def test_a_status_for_systemd_is_one_line(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(2, standin={"fail_with": "oom"}, config={"recovery": {"failures": 2}})
    cluster.start()
    await cluster.leader.wait_state("failed")
    await until(lambda: (cluster.leader.notify.last("STATUS") or "").startswith("failed"), 5.0, "the reason in STATUS")
    for daemon in cluster.daemons:
        # The listener splits datagrams at line ends: what is no assignment came from a second line.
        assert {notice.name for notice in daemon.notify.all()} <= KNOWN


KNOWN = {"STATUS", "READY", "EXTEND_TIMEOUT_USEC", "WATCHDOG", "STOPPING", "RELOADING", "MONOTONIC_USEC"}


async def test_a_reload_is_told_from_its_beginning_to_its_end(cluster: Cluster) -> None:
    await cluster.live()
    for daemon in cluster.daemons:
        daemon.notify.clear()
        daemon.signal(signal.SIGHUP)
        await until(lambda: "READY" in names(daemon), 5.0, "the end of the reload")  # noqa: B023
        heard = [name for name in names(daemon) if name in ("RELOADING", "MONOTONIC_USEC", "READY")]
        assert heard == ["RELOADING", "MONOTONIC_USEC", "READY"]


async def test_a_changed_file_that_cannot_be_used_stays_in_sight_until_it_is_right(cluster: Cluster) -> None:
    await cluster.live()
    good = cluster.sparks.config_file.read_text()
    leader = cluster.leader

    async def warned() -> bool:
        nodes = (await leader.status())["nodes"]
        return any(finding["code"] == "config.unusable" for finding in nodes[0]["findings"])

    cluster.sparks.config_file.write_text(good + "\n[engin]\n")
    leader.signal(signal.SIGHUP)
    await until(warned, 10.0, "a word on the file")
    assert (await leader.status())["ready"]
    cluster.sparks.config_file.write_text(good)
    leader.signal(signal.SIGHUP)

    async def right() -> bool:
        return not await warned()

    await until(right, 10.0, "no word on the file")


async def test_an_orderly_stop_shows_nothing_that_went_wrong(cluster: Cluster) -> None:
    await cluster.live()
    assert (await cluster.leader.control("POST", "/v1/stop"))[0] == 202
    await until(lambda: not processes.ranks(), 20.0, "the set stopped")
    status = await cluster.leader.wait_state("waiting")
    assert status["reason"]["code"] == "set.stopped"

    async def clean() -> bool:
        nodes = (await cluster.leader.status())["nodes"]
        return not [finding for node in nodes for finding in node["findings"] if finding["severity"] == "error"]

    await until(clean, 5.0, "a status without errors")


@pytest.mark.parametrize("bad", ["nothing", "[engine]\ncontext = -5\n", "[[node]]\nname = 'elsewhere'\n"])
async def test_a_file_that_cannot_be_used_is_exit_status_78(cluster: Cluster, bad: str) -> None:
    cluster.sparks.config_file.write_text(bad)
    cluster.leader.start()
    assert await cluster.leader.exit_status(10) == 78
    lines = cluster.leader.journal()
    assert lines
    assert all(line.startswith("<3>") for line in lines), lines
    assert "READY" not in names(cluster.leader)


async def test_every_line_has_its_severity(cluster: Cluster) -> None:
    generation = int((await cluster.live())["generation"])
    processes.send(cluster.workers[0].ranks()[0].pid, signal.SIGKILL)
    await live_again(cluster, generation)
    for daemon in cluster.daemons:
        for line in daemon.journal():
            assert re.match(r"<[2-7]>\S", line), line
    told = [line for line in cluster.leader.journal() if "rank-ended" in line and "recovering" in line]
    assert told
    assert told[0].startswith("<3>"), "the loss of a rank is an error"
