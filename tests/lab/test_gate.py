"""The daemon as in life: its own unit under systemd as PID 1, journald, Type=notify, the watchdog."""

from __future__ import annotations

import json
from typing import Any

import pytest

from . import product
from .conftest import Labs
from .lab import Lab
from .spark import Spark
from .waiting import until

pytestmark = pytest.mark.lab

LIVE = "GLM-5.3-Flash-EXL3 is now LIVE! on port 8888"
# measured 13 s for two and about 20 s for three on an idle machine
LIVE_SECONDS = 180.0


def _started(lab: Lab, transport: str) -> None:
    product.install(lab, product.settings(lab, {"fabric": {"transport": transport}}))
    product.start(lab)
    lab[1].await_journal(product.UNIT, LIVE, LIVE_SECONDS)


@pytest.fixture
def live_two(labs: Labs) -> Lab:
    return labs.restore("two", "live-socket", lambda lab: _started(lab, "socket"))


def _reply(spark: Spark) -> str:
    """What a client of the endpoint gets."""
    body = {"model": "GLM-5.3-Flash-EXL3", "max_tokens": 16, "messages": [{"role": "user", "content": "Hello"}]}
    said = json.loads(
        spark.run(
            "curl -s -m 60 -H 'content-type: application/json' -d @- http://127.0.0.1:8888/v1/chat/completions",
            stdin=json.dumps(body).encode(),
        ).stdout
    )
    return str(said["choices"][0]["message"]["content"])


def _rank_environment(spark: Spark) -> dict[str, str]:
    found = spark.out(f"pgrep -f '^/usr/bin/python3 {product.STANDIN} serve'").split()
    assert len(found) == 1, f"{spark.name} runs {len(found)} ranks, wanted one"
    text = spark.out(f"tr '\\0' '\\n' < /proc/{found[0]}/environ")
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def _unit(spark: Spark, *properties: str) -> dict[str, str]:
    names = ",".join(properties)
    lines = spark.out(f"systemctl show {product.UNIT} -p {names}").splitlines()
    return dict(line.split("=", 1) for line in lines)


def _until_active(spark: Spark) -> None:
    until(lambda: _unit(spark, "ActiveState")["ActiveState"], "active", 30.0, f"the unit of {spark.name}")


def _ready(lab: Lab) -> str:
    return product.control(lab[1], "/readyz").splitlines()[-1]


@pytest.mark.parametrize(
    ("topology", "transport"),
    [("two", "socket"), ("two", "roce"), ("three", "roce"), pytest.param("three", "socket", marks=pytest.mark.full)],
)
def test_the_sparks_go_live_under_systemd(labs: Labs, topology: str, transport: str) -> None:
    lab = labs.restore(topology)
    _started(lab, transport)
    for spark in lab.sparks.values():
        _until_active(spark)
        assert _unit(spark, "NRestarts", "Type", "WatchdogUSec") == {
            "NRestarts": "0",
            "Type": "notify",
            "WatchdogUSec": "30s",
        }
    assert _reply(lab[1])
    assert _ready(lab) == "200"
    said = "\n".join(lab[1].journal_lines(product.UNIT))
    assert ("NET/IB" if transport == "roce" else "NET/Socket") in said


def test_each_rank_gets_its_own_devices_and_the_index_that_holds_its_own_address(labs: Labs) -> None:
    lab = labs.restore("two-crossed")
    rails = lab.topology.rails(lab.cable())
    for _, far in rails:
        lab[2].move_gid(far)
    _started(lab, "roce")
    indexes = []
    for spark in lab.sparks.values():
        environment = _rank_environment(spark)
        own = [rail[spark.number - 1] for rail in rails]
        assert environment["NCCL_IB_HCA"].lstrip("=").split(",") == [function.device for function in own]
        assert environment["NCCL_SOCKET_IFNAME"].lstrip("=") == own[0].netdev
        index = int(environment["NCCL_IB_GID_INDEX"])
        assert [spark.gid_index(function.device, spark.address(function)) for function in own] == [index, index]
        indexes.append(index)
    assert indexes[0] != indexes[1]


@pytest.mark.full
def test_a_worker_that_loses_power_takes_readiness_with_it_and_the_set_comes_back_by_itself(live_two: Lab) -> None:
    for spark in live_two.sparks.values():
        spark.run("systemctl enable -q glm-spark-boot.service && sync")
    live_two.kill(live_two[2])
    until(lambda: _ready(live_two), "503", 30.0, "readyz of the leader")
    live_two.power_on(live_two[2])
    until(lambda: _ready(live_two), "200", LIVE_SECONDS, "readyz of the leader")
    assert _reply(live_two[1])
    assert sum(LIVE in line for line in live_two[1].journal_lines(product.UNIT)) == 2


@pytest.mark.full
def test_a_daemon_that_hangs_is_ended_by_the_watchdog_and_started_again(live_two: Lab) -> None:
    old = _unit(live_two[2], "MainPID")["MainPID"]
    live_two[2].run(f"kill -STOP {old}")
    until(lambda: _ready(live_two), "503", 30.0, "readyz of the leader")
    until(lambda: _unit(live_two[2], "NRestarts")["NRestarts"], "1", 90.0, "restarts of the worker's unit")
    assert _unit(live_two[2], "MainPID")["MainPID"] != old
    until(lambda: _ready(live_two), "200", LIVE_SECONDS, "readyz of the leader")


def test_a_cable_pulled_while_live_ends_readiness_and_plugging_it_brings_the_set_back(live_two: Lab) -> None:
    live_two.pull(live_two.cable())
    until(lambda: _ready(live_two), "503", 30.0, "readyz of the leader")
    live_two.plug(live_two.cable())
    until(lambda: _ready(live_two), "200", LIVE_SECONDS, "readyz of the leader")
    assert _reply(live_two[1])


def test_the_journal_names_spark_and_rank_in_fields_of_its_own(live_two: Lab) -> None:
    entries: list[dict[str, Any]] = live_two[1].journal(product.UNIT)
    live = next(entry for entry in entries if LIVE in str(entry.get("MESSAGE")))
    assert live["GLM_SPARK_NODE"] == "spark-1"
    ranked = next(entry for entry in entries if "startup estimate" in str(entry.get("MESSAGE")))
    assert ranked["GLM_SPARK_RANK"] == "0"
