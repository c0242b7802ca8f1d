"""What goes wrong with cables, as people reported it, and what the daemons say to it. Each ends in a finding, none in
a hang; where a sound rail is left the set runs over it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from typing import Any

import pytest

from tests.sparks.settings import text

from . import product
from .conftest import Labs
from .lab import Lab
from .spark import Spark
from .test_gate import _rank_environment
from .topology import Function
from .waiting import until

pytestmark = pytest.mark.lab

LIVE = "GLM-5.3-Flash-EXL3 is now LIVE! on port 8888"
LIVE_SECONDS = 180.0
READER = "glm_spark.fabric.chil[d] watch"  # in brackets, so that the pattern does not match its own command line
SOCKET = "/run/glm-spark/control.sock"


def _armed(lab: Lab) -> None:
    """The set was live over RoCE and is stopped by its owner: daemons and sessions are up, nothing runs."""
    product.install(lab, product.settings(lab, {"fabric": {"transport": "roce"}}))
    product.start(lab)
    lab[1].await_journal(product.UNIT, LIVE, LIVE_SECONDS)
    _ask(lab[1], "/v1/stop", "POST")
    until(lambda: _status(lab[1])["reason"]["code"], "set.stopped", LIVE_SECONDS, "the leader's reason")


def _ask(spark: Spark, path: str, method: str = "GET") -> Any:
    return json.loads(spark.out(f"curl -s -m 90 -X {method} --unix-socket {SOCKET} http://localhost{path}"))


def _status(spark: Spark) -> dict[str, Any]:
    return dict(_ask(spark, "/v1/status"))


def _check(lab: Lab) -> dict[str, Any]:
    """What `glm-spark check --cluster --json` prints."""
    return dict(_ask(lab[1], "/v1/check"))


def _check_alone(spark: Spark) -> list[dict[str, Any]]:
    return list(json.loads(spark.run("glm-spark check --json", 120.0, check=False).stdout)["findings"])


def _found(findings: list[dict[str, Any]], code: str, *words: str) -> dict[str, Any]:
    """The finding with this code and all these words in it."""
    found = [one for one in findings if one["code"] == code and all(word in json.dumps(one) for word in words)]
    assert found, f"no {code} with {words} among {json.dumps(findings, indent=1)}"
    return found[0]


def _live_again(lab: Lab) -> dict[str, Any]:
    _ask(lab[1], "/v1/restart", "POST")
    until(lambda: _status(lab[1])["state"], "live", LIVE_SECONDS, "state of the set")
    return _status(lab[1])


def _rails(lab: Lab) -> list[tuple[Function, Function]]:
    return lab.topology.rails(lab.cable())


def _ranks_devices(spark: Spark) -> str:
    pid = spark.out(f"pgrep -f '^/usr/bin/python3 {product.STANDIN} serve' | head -1")
    return spark.out(f"tr '\\0' '\\n' < /proc/{pid}/environ | grep ^NCCL_IB_HCA=").partition("=")[2].lstrip("=")


@pytest.fixture
def two_armed(labs: Labs) -> Lab:
    return labs.restore("two", "armed-roce", _armed)


def test_a_sound_cable_is_drawn_with_a_verdict_a_rail(two_armed: Lab) -> None:
    said = two_armed[1].run("NO_COLOR=1 glm-spark check --cluster", 120.0, check=False).stdout
    drawn = [line for line in said.splitlines() if " --- " in line]
    assert len(drawn) == 2, said
    for line, (a, b) in zip(drawn, _rails(two_armed), strict=True):
        assert a.device in line
        assert b.device in line
        assert " fine, round trip " in line
        assert "Gb/s there" in line
        assert "Gb/s back" in line
    assert "fabric.rail-slow" not in said, "soft-RoCE is as fast as the processor, which is no fault of the rail"


def _address_gone(lab: Lab) -> None:
    lab[2].remove_address(_rails(lab)[1][1].netdev)


def _mtu_lowered(lab: Lab) -> None:
    lab[2].set_mtu(_rails(lab)[1][1].netdev, 1500)


def _other_subnet(lab: Lab) -> None:
    netdev = _rails(lab)[1][1].netdev
    lab[2].remove_address(netdev)
    lab[2].add_address(netdev, "192.168.222.2")


def _link_local(lab: Lab) -> None:
    netdev = _rails(lab)[1][1].netdev
    lab[2].remove_address(netdev)
    lab[2].add_address(netdev, "169.254.17.4", 16)


def _device_gone(lab: Lab) -> None:
    lab[2].delete_device(_rails(lab)[1][1].device)


def _lost_one_way(lab: Lab) -> None:
    lab[2].lose_outgoing(_rails(lab)[1][1].netdev)


def _roce_filtered(lab: Lab) -> None:
    lab[2].firewall(f"iifname {_rails(lab)[1][1].netdev} udp dport 4791 drop")


def _large_lost(lab: Lab) -> None:
    """Both ends say MTU 9000, and something between drops what is longer than 1500."""
    netdev = _rails(lab)[1][1].netdev
    lab[2].set_mtu(netdev, 1500)
    lab[2].run(f"ip link set {netdev} mtu 9000")


REPORTS: dict[str, tuple[Callable[[Lab], None], str, tuple[str, ...]]] = {
    "the second twin's address is gone after a reboot": (
        _address_gone, "fabric.no-address", ("spark-2", "enP2p1s0f0np0", "no IPv4 address"),
    ),
    "one end is back at MTU 1500": (
        _mtu_lowered, "fabric.mtu-differs", ("spark-2", "enP2p1s0f0np0", "1500", "9000"),
    ),
    "large packets are lost though both MTUs are the same": (
        _large_lost, "fabric.path-mtu", ("enP2p1s0f0np0", "9000"),
    ),
    "the twin is in another subnet": (
        _other_subnet, "fabric.netdev-unused", ("spark-2", "enP2p1s0f0np0", "192.168.222.2"),
    ),
    "the twin has an address that it took by itself": (
        _link_local, "fabric.link-local", ("spark-2", "enP2p1s0f0np0", "169.254.17.4"),
    ),
    "the device is gone while its netdev is there": (
        _device_gone, "fabric.no-roce-device", ("spark-2", "enP2p1s0f0np0"),
    ),
    "what one end sends is lost": (
        _lost_one_way, "fabric.rdma-broken", ("spark-2", "enP2p1s0f0np0"),
    ),
    "a firewall drops RoCE and lets the rest through": (
        _roce_filtered, "fabric.rdma-broken", ("4791", "192.168.101.1"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("report", REPORTS)
def test_half_a_cable_that_is_wrong_is_named_and_the_set_runs_over_the_other_half(two_armed: Lab, report: str) -> None:
    break_it, code, words = REPORTS[report]
    break_it(two_armed)
    _found(_check(two_armed)["findings"], code, *words)
    status = _live_again(two_armed)
    first = _rails(two_armed)[0]
    for number in (1, 2):
        assert _ranks_devices(two_armed[number]) == first[number - 1].device
    assert status["degraded"], status
    if break_it is _lost_one_way:
        # Both ends probe before a start: the one whose packets are lost still hears the other.
        assert "fabric.one-way" in status["degraded"]


@pytest.mark.full
def test_a_cable_without_any_address_is_said_at_the_spark_that_lacks_them(two_armed: Lab) -> None:
    for _, far in _rails(two_armed):
        two_armed[2].remove_address(far.netdev)
    finding = _found(_check_alone(two_armed[2]), "fabric.no-address")
    assert finding["severity"] == "error"
    assert "carrier is up" in finding["measured"]
    assert "fixed" in finding["fix"]
    until(lambda: _status(two_armed[1])["nodes"][1]["session"], "down", LIVE_SECONDS, "session of the worker")


def test_a_worker_named_by_its_lan_address_is_told_which_one_to_name(two_armed: Lab) -> None:
    tables = product.settings(two_armed, {"fabric": {"transport": "roce"}})
    tables["node"][1]["address"] = "10.77.0.2"
    leader = two_armed[1]
    leader.write(product.CONFIG, text(tables))
    finding = _found(_check_alone(leader), "fabric.route-on-lan")
    assert "enP7s7" in finding["measured"]
    assert any(two_armed[2].address(far) in finding["fix"] for _, far in _rails(two_armed)), finding


@pytest.mark.full
def test_twins_that_answer_for_each_other_are_named(labs: Labs) -> None:
    lab = labs.restore("two-one-subnet", "armed-roce", _armed)
    far, near, wrong = _rails(lab)[1][1], _rails(lab)[1][0], _rails(lab)[0][1]
    # What an end learns when the first twin answers for the second one's address.
    lab[1].run(f"ip neigh replace {lab[2].address(far)} lladdr {wrong.mac} dev {near.netdev} nud permanent")
    finding = _found(_check(lab)["findings"], "fabric.wrong-netdev")
    assert "arp_ignore" in finding["fix"]


def test_a_memlock_limit_is_named_before_the_start(two_armed: Lab) -> None:
    worker = two_armed[2]
    worker.push({"memlock.conf": b"[Service]\nLimitMEMLOCK=8M\n"}, f"/etc/systemd/system/{product.UNIT}.service.d")
    worker.run(f"systemctl daemon-reload && systemctl restart {product.UNIT}")
    until(lambda: _status(two_armed[1])["nodes"][1]["session"], "up", LIVE_SECONDS, "session of the worker")
    finding = _found(_check(two_armed)["findings"], "verbs.memory-registration")
    assert finding["node"] == "spark-2"
    assert "memlock limit is 8 MiB" in finding["measured"]
    assert "LimitMEMLOCK=infinity" in finding["fix"]


def test_rules_that_drop_the_ranks_first_connection_are_named_with_the_line_that_lets_it_in(two_armed: Lab) -> None:
    netdev = _rails(two_armed)[0][0].netdev
    two_armed[1].firewall(f"iifname {netdev} tcp dport 29551 drop")
    finding = _found(_check_alone(two_armed[1]), "fabric.firewall")
    assert "TCP 29551" in finding["measured"]
    assert f'iifname "{netdev}" accept' in finding["fix"]


def test_a_call_into_the_kernel_that_never_returns_is_said_and_ends_nothing(two_armed: Lab) -> None:
    _live_again(two_armed)
    worker = two_armed[2]
    hold = f"for i in $(seq 3000); do pkill -STOP -f '{READER}'; sleep 0.1; done"
    worker.run(f"systemd-run -q --unit hold sh -c {shlex.quote(hold)}")
    until(lambda: "fabric.reader-stuck" in _said(worker), True, LIVE_SECONDS, "the worker's findings")
    assert _status(two_armed[1])["state"] == "live"
    worker.run(f"systemctl stop hold; pkill -CONT -f '{READER}'; true")
    until(lambda: "fabric.reader-stuck" in _said(worker), False, LIVE_SECONDS, "the worker's findings")


def _said(spark: Spark) -> str:
    return json.dumps(_status(spark)["nodes"])


def test_devices_that_vanish_are_named_and_the_set_starts_by_itself_when_they_are_back(two_armed: Lab) -> None:
    both = [far for _, far in _rails(two_armed)]
    for function in both:
        two_armed[2].delete_device(function.device)
    _ask(two_armed[1], "/v1/restart", "POST")
    until(lambda: _reason(two_armed[1]).startswith("fabric."), True, LIVE_SECONDS, "a reason of the fabric")
    assert _found(_check_alone(two_armed[2]), "fabric.port-not-active")["severity"] == "error"
    for function in both:
        two_armed[2].add_device(function.device, function.netdev)
    until(lambda: _status(two_armed[1])["state"], "live", LIVE_SECONDS, "state of the set")


def test_an_index_that_moves_under_a_live_set_is_said_and_used_at_the_next_start(two_armed: Lab) -> None:
    _live_again(two_armed)
    moved = [two_armed[2].move_gid(far) for _, far in _rails(two_armed)]
    until(lambda: "fabric.gid-moved" in _status(two_armed[1])["degraded"], True, LIVE_SECONDS, "a word on the index")
    status = _status(two_armed[1])
    assert (status["state"], status["ready"]) == ("live", True)
    generation = status["generation"]
    _ask(two_armed[1], "/v1/restart", "POST")
    until(lambda: _lives_after(two_armed[1], generation), True, LIVE_SECONDS, "the next generation")
    assert _rank_environment(two_armed[2])["NCCL_IB_GID_INDEX"] == str(moved[0][1])
    assert "fabric.gid-moved" not in _status(two_armed[1])["degraded"]


def _lives_after(spark: Spark, generation: int) -> bool:
    status = _status(spark)
    return bool(status["state"] == "live" and status["generation"] > generation)


def test_twins_in_a_subnet_each_are_two_rails_and_listed_once(two_armed: Lab) -> None:
    status = _live_again(two_armed)
    (link,) = status["links"]
    assert [rail["state"] for rail in link["rails"]] == ["ok", "ok"]
    for number in (1, 2):
        wanted = [rail[number - 1].device for rail in _rails(two_armed)]
        assert _ranks_devices(two_armed[number]).split(",") == wanted


def test_a_silent_fall_to_sockets_is_degraded_and_said(two_armed: Lab) -> None:
    two_armed.together(
        lambda spark: spark.write(product.STANDIN_SCRIPT, '{"estimate_gib": 0.1, "nccl_fallback": true}')
    )
    status = _live_again(two_armed)
    assert "engine.transport-socket" in status["degraded"]
    said = two_armed[1].run("glm-spark status", 60.0, check=False).stdout
    assert "the ranks talk over TCP sockets instead of RoCE, about half as fast" in said


@pytest.mark.full
def test_three_sparks_get_the_rails_of_the_triangle_as_it_is_cabled(three: Lab) -> None:
    product.install(three, product.settings(three, {"fabric": {"transport": "roce"}}))
    product.start(three)
    three[1].await_journal(product.UNIT, LIVE, LIVE_SECONDS)
    for spark in three.sparks.values():
        own = {function.device for function in spark.functions()}
        assert set(_ranks_devices(spark).split(",")) == own, spark.name
    drawn = three[1].run("NO_COLOR=1 glm-spark check --cluster", 180.0, check=False).stdout
    for cable in three.topology.cables:
        for a, b in three.topology.rails(cable):
            assert any(a.device in line and b.device in line for line in drawn.splitlines()), drawn


def test_a_missing_edge_of_the_triangle_is_named(three: Lab) -> None:
    for a, b in three.topology.rails(three.cable(2, 3)):
        three[2].remove_address(a.netdev)
        three[3].remove_address(b.netdev)
    product.install(three, product.settings(three, {"fabric": {"transport": "roce"}}))
    product.start(three)
    until(lambda: _reason(three[1]), "fabric.no-link", LIVE_SECONDS, "the leader's reason")
    assert _status(three[1])["reason"]["subject"] == "cable between spark-2 and spark-3"


def _reason(spark: Spark) -> str:
    said = spark.run(f"curl -s -m 20 --unix-socket {SOCKET} http://localhost/v1/status", check=False).stdout
    return str((json.loads(said)["reason"] or {}).get("code")) if said else ""
