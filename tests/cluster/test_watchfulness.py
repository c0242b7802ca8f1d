"""What threatens a Spark ends the set before it hangs; what happened is kept, whatever ends the daemon.

What is asserted is seen from outside the daemons: in /proc, on sockets, in files, by a program of the owner.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import Cluster, MakeCluster
from tests.cluster.test_losses import generation_of, gone, live_again, not_ready
from tests.sparks import settings
from tests.sparks.daemon import until

XID = "NVRM: Xid (PCI:000f:01:00): 79, GPU has fallen off the bus."


async def incidents(cluster: Cluster) -> list[dict[str, Any]]:
    code, body = await cluster.leader.control("GET", "/v1/incidents")
    assert code == 200
    assert isinstance(body, list)
    return body


def kept(cluster: Cluster) -> dict[str, Any]:
    """The history as it lies on the leader's disk."""
    told = json.loads((cluster.leader.spark.directory / "state" / "history.json").read_text())
    assert isinstance(told, dict)
    return told


@pytest.mark.parametrize("rank", [0, 1])
async def test_a_rank_is_ended_before_its_spark_freezes(cluster: Cluster, rank: int) -> None:
    generation = generation_of(await cluster.live())
    spark = cluster[rank].spark
    spark.set_memory(0.8)
    await gone(cluster, generation)
    spark.set_memory(118.0)
    await live_again(cluster, generation)
    (incident,) = await incidents(cluster)
    assert incident["reason"]["code"] == "memory.exhausted"
    assert incident["reason"]["node"] == spark.name
    assert "0.8 GiB of 121.7 available" in incident["reason"]["measured"]


async def test_memory_that_runs_low_is_said_while_the_set_goes_on(
    cluster: Cluster,
) -> None:
    generation = generation_of(await cluster.live())
    cluster.workers[0].spark.set_memory(3.5)

    async def told() -> bool:
        return "memory.running-out" in (await cluster.leader.status())["degraded"]

    await until(told, 10.0, "memory.running-out in the status")
    cluster.workers[0].spark.set_memory(20.0)

    async def over() -> bool:
        return "memory.running-out" not in (await cluster.leader.status())["degraded"]

    await until(over, 10.0, "the end of the warning")
    status = await cluster.leader.status()
    assert status["ready"]
    assert generation_of(status) == generation


async def test_what_the_engine_needs_is_asked_for_before_the_next_start(
    cluster: Cluster,
) -> None:
    generation = generation_of(await cluster.live())
    worker = cluster.workers[0]
    estimates = worker.spark.directory / "state" / "estimates.json"
    await until(estimates.exists, 10.0, "the kept estimate")
    needed = next(iter(json.loads(estimates.read_text()).values()))
    worker.spark.set_memory(needed - 1)
    os.kill(worker.ranks(generation)[0].pid, signal.SIGKILL)

    async def refused() -> bool:
        reason = (await cluster.leader.status())["reason"]
        return reason is not None and reason["code"] == "memory.below-estimate"

    await until(refused, 20.0, "the refusal")
    assert not any(daemon.ranks() for daemon in cluster.daemons)
    worker.spark.set_memory(118.0)
    await live_again(cluster, generation)


async def test_a_full_page_cache_is_given_back_and_said(cluster: Cluster) -> None:
    for daemon in cluster.daemons:
        daemon.spark.set_memory(118.0, free_gib=20.0)
    status = await cluster.live()
    assert "memory.page-cache" in status["degraded"]
    await cluster.leader.wait_journal("gave back the page cache")


@pytest.mark.parametrize("rank", [0, 1])
async def test_a_failed_gpu_stops_the_set_at_once_and_no_retry_begins(cluster: Cluster, rank: int) -> None:
    generation = generation_of(await cluster.live())
    cluster[rank].spark.kernel_says(XID)
    await gone(cluster, generation, timeout=5.0)
    status = await cluster.leader.wait_state("failed", timeout=5.0)
    assert status["reason"]["code"] == "hardware.gpu-reset-needed"
    assert status["reason"]["node"] == cluster[rank].spark.name
    assert XID in status["reason"]["measured"]
    assert generation_of(status) == generation
    code, _ = await cluster.leader.control("POST", "/v1/restart")
    assert code in (200, 202)
    await live_again(cluster, generation)


async def test_a_gpu_that_fails_before_the_start_is_told_once(cluster: Cluster) -> None:
    cluster.workers[0].start()
    await cluster.workers[0].wait_journal("no session yet")
    worker = cluster.workers[0]

    async def heard() -> bool:
        worker.spark.kernel_says(XID)
        return any("gpu-reset-needed" in line for line in worker.journal())

    await until(heard, 10.0, "the kernel's word in the journal")
    cluster.start()
    status = await cluster.leader.wait_state("failed")
    assert status["reason"]["code"] == "hardware.gpu-reset-needed"
    await cluster.leader.control("POST", "/v1/restart")
    await live_again(cluster, 0)


async def test_a_word_of_the_kernel_that_is_not_fatal_is_shown_beside_live(
    cluster: Cluster,
) -> None:
    generation = generation_of(await cluster.live())
    cluster.workers[0].spark.kernel_says("watchdog: BUG: soft lockup - CPU#3 stuck for 26s! [kworker/u40:1:88]")

    async def told() -> bool:
        return "hardware.lockup" in (await cluster.leader.status())["degraded"]

    await until(told, 10.0, "hardware.lockup in the status")
    assert generation_of(await cluster.leader.status()) == generation


async def test_a_rank_is_the_kernels_first_choice_when_memory_runs_out(
    cluster: Cluster,
) -> None:
    await cluster.live()
    for daemon in cluster.daemons:
        mine = int(Path(f"/proc/{daemon.pid}/oom_score_adj").read_text())
        for rank in daemon.ranks():
            assert int(Path(f"/proc/{rank.pid}/oom_score_adj").read_text()) >= 500 > mine


async def test_the_history_survives_the_daemons(cluster: Cluster) -> None:
    first = generation_of(await cluster.live())
    os.kill(cluster.workers[0].ranks(first)[0].pid, signal.SIGKILL)
    second = generation_of(await live_again(cluster, first))
    await until(
        lambda: kept(cluster)["incidents"][-1]["seconds_to_live"] is not None,
        5.0,
        "the incident's end",
    )
    await cluster.leader.kill9()
    path = cluster.leader.spark.directory / "state" / "history.json"
    assert path.stat().st_mode & 0o777 == 0o600
    cluster.leader.start()
    await live_again(cluster, second)
    lost, killed = await incidents(cluster)
    assert (lost["state"], lost["generation"]) == ("live", first)
    assert lost["reason"]["node"] == "spark-2"
    assert lost["seconds_to_live"] > 0
    assert {"rank 0 on spark-1", "rank 1 on spark-2"} == set(lost["tails"])
    assert all(lost["tails"].values())
    assert "starts all ranks" in [step["what"] for step in lost["done"]]
    assert (killed["reason"]["code"], killed["generation"]) == ("daemon.killed", second)
    assert killed["seconds_to_live"] > 0
    shown = cluster.leader.spark.run([str(settings.DAEMON), "status", "--history"])
    assert shown.returncode == 0, shown.stderr
    assert "rank 1 on spark-2:" in shown.stdout
    assert "live again after" in shown.stdout


async def test_a_stop_is_in_the_history_before_the_daemon_ends(
    cluster: Cluster,
) -> None:
    await cluster.live()
    assert await cluster.leader.stop() == 0
    told = kept(cluster)
    assert told["incidents"][-1]["reason"]["code"] == "set.stopped"
    assert not told.get("live")


async def test_the_owners_program_hears_of_a_loss_and_of_its_end(make_cluster: MakeCluster, tmp_path: Path) -> None:
    heard, program = tmp_path / "heard", tmp_path / "hook"
    program.write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        f"event = json.load(sys.stdin)\nevent['environment'] = sorted(os.environ)\n"
        f"open({str(heard)!r}, 'a').write(json.dumps(event) + '\\n')\n"
    )
    program.chmod(0o755)
    cluster = make_cluster(2, config={"hook": {"command": [str(program)]}})
    generation = generation_of(await cluster.live())

    def events() -> list[dict[str, Any]]:
        return [json.loads(line) for line in heard.read_text().splitlines()] if heard.exists() else []

    os.kill(cluster.workers[0].ranks(generation)[0].pid, signal.SIGKILL)
    await until(
        lambda: [one["event"] for one in events()][-1:] == ["cleared"],
        30.0,
        "the event cleared",
    )
    assert events()[0]["event"] == "not-ready"
    assert events()[0]["reason"]["node"] == "spark-2"
    assert "NOTIFY_SOCKET" not in events()[0]["environment"]
    token = cluster.sparks.token_file.read_text().strip()
    assert token not in heard.read_text()


async def test_a_worker_that_was_reset_is_told_from_one_whose_session_broke(cluster: Cluster) -> None:
    before = int((await cluster.live())["generation"])
    worker = cluster.workers[0]
    cluster.sparks.reset_host(2)
    await not_ready(cluster)
    worker.start()
    await live_again(cluster, before)
    (incident,) = await incidents(cluster)
    told = [finding for finding in incident["evidence"] if finding["code"] == "host.rebooted"]
    assert [finding["node"] for finding in told] == ["spark-2"]
    assert incident["seconds_to_live"] is not None
    # a daemon that is started anew on the same boot is no reboot
    since = len(cluster.leader.journal())
    await worker.stop()
    worker.start()
    await live_again(cluster, before + 1)
    assert "host.rebooted" not in "\n".join(cluster.leader.journal()[since:])
