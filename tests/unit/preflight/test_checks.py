"""Each check names what is wrong, with what was measured and what to do, and is silent when all is well."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from glm_spark.config.model import Cluster, Config, Engine, Memory
from glm_spark.fabric.inventory import Inventory, Route
from glm_spark.fabric.links import find
from glm_spark.finding import Finding, Severity
from glm_spark.host.memory import look
from glm_spark.preflight.checks import (
    ALL,
    address,
    configuration,
    link,
    memory,
    mtu,
    path,
    program,
    reading,
    roce,
    route,
    token,
)
from glm_spark.preflight.context import Check, Context
from tests.unit.fabric.sparks import OTHERS, Twin, config, inventory, pair, port

TO_PEER = Route(destination="192.168.100.2", netdev="enp1s0f0np0", source="192.168.100.1")


def context(own: Inventory | None = None, settings: Config | None = None, **more: object) -> Context:
    made = Context(config=settings or config(), me="spark-1", inventory=own)
    return replace(made, **more)  # type: ignore[arg-type]


def found(check: Check, at: Context) -> list[Finding]:
    said = check.run(at)
    assert isinstance(said, Iterable)
    findings = list(said)
    for finding in findings:
        assert finding.measured
        assert finding.wanted
        assert finding.fix
    return findings


def codes(check: Check, at: Context) -> list[tuple[str, Severity]]:
    return [(finding.code, finding.severity) for finding in found(check, at)]


def test_a_sound_spark_has_nothing_to_say() -> None:
    own = inventory(*port(0, (100, 101), 1), Twin(1, False, carrier=False), routes=(TO_PEER,))
    at = context(own, peers={"spark-2": pair()["spark-2"]})
    for check in (configuration.CHECK, reading.CHECK, roce.CHECK, link.CHECK, address.CHECK, route.CHECK, mtu.CHECK):
        assert found(check, at) == []


def test_every_check_says_what_it_is() -> None:
    assert len({check.id for check in ALL}) == len(ALL)
    for check in ALL:
        assert check.measures
        assert check.wants
        assert check.advice


def test_this_host_is_listed() -> None:
    (finding,) = found(configuration.CHECK, context(me="laptop"))
    assert (finding.code, finding.node) == ("config.not-listed", "laptop")
    assert "spark-1, spark-2" in finding.measured


def test_the_keys_file_is_private(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    at = context(settings=config().model_copy(update={"api": config().api.model_copy(update={"keys_file": str(keys)})}))
    assert codes(configuration.CHECK, at) == [("config.keys-file", Severity.ERROR)]
    keys.write_text("sk-secret-of-mine\n")
    keys.chmod(0o644)
    (finding,) = found(configuration.CHECK, at)
    assert "0644" in finding.measured
    assert "secret" not in str(finding)
    keys.chmod(0o600)
    assert found(configuration.CHECK, at) == []


def _with_token(file: Path) -> Config:
    return config().model_copy(update={"cluster": Cluster(token_file=str(file))})


@pytest.mark.parametrize(
    ("content", "mode", "code"),
    [
        (None, 0o600, "token.missing"),
        ("hunter" * 5, 0o600, "token.too-short"),
        ("hunter" * 6, 0o640, "token.readable-by-others"),
        ("hunter" * 6, 0o600, ""),
        ("hunter" * 6, 0o400, ""),
    ],
)
def test_the_token_is_there_long_enough_and_private(tmp_path: Path, content: str | None, mode: int, code: str) -> None:
    file = tmp_path / "key"
    if content is not None:
        file.write_text(content)
        file.chmod(mode)
    findings = found(token.CHECK, context(settings=_with_token(file), environ={}))
    assert [finding.code for finding in findings] == ([code] if code else [])
    assert "hunter" not in "".join(map(str, findings))


def test_a_token_that_the_daemon_holds_is_not_read_again_for_a_start(tmp_path: Path) -> None:
    at = context(settings=_with_token(tmp_path / "gone"), environ={}, token=b"t" * 32)
    assert found(token.CHECK, replace(at, moment="start")) == []
    assert codes(token.CHECK, at) == [("token.missing", Severity.ERROR)]


def test_a_network_that_was_not_read_is_unknown() -> None:
    assert codes(reading.CHECK, context()) == [("fabric.not-read", Severity.UNKNOWN)]
    stuck = Finding(
        code="fabric.reader-stuck",
        severity=Severity.UNKNOWN,
        node="spark-1",
        subject="reading",
        measured="no reading for 5.0 s",
        wanted="an answer",
        fix="See journalctl -k.",
    )
    assert found(reading.CHECK, context(reader=(stuck,))) == [stuck]
    for check in (roce.CHECK, link.CHECK, address.CHECK, route.CHECK, mtu.CHECK):
        assert found(check, context()) == []


def test_no_roce_device() -> None:
    bare = inventory(*port(0, (100, 101), 1, device=False))
    (finding,) = found(roce.CHECK, context(bare))
    assert (finding.severity, finding.measured) == (Severity.ERROR, "no RoCE device")
    assert 'transport = "socket"' in finding.fix
    assert found(roce.CHECK, context(bare, config(transport="socket"))) == []


def test_a_device_that_does_not_answer_is_not_called_absent() -> None:
    silent = Finding(
        code="fabric.verbs-failed",
        severity=Severity.UNKNOWN,
        node="spark-1",
        subject="RoCE device rocep1s0f0",
        measured="Permission denied",
        wanted="a device that answers",
        fix="See the kernel's log.",
    )
    own = inventory().model_copy(update={"findings": (silent,)})
    assert found(roce.CHECK, context(own)) == []
    assert found(reading.CHECK, context(own)) == [silent]


def test_no_active_port() -> None:
    (finding,) = found(roce.CHECK, context(inventory(Twin(0, False, state="DOWN"))))
    assert finding.code == "fabric.port-not-active"
    assert "rocep1s0f0 DOWN" in finding.measured


def test_no_cable_in() -> None:
    own = inventory(*port(0, (100, 101), 1, carrier=False), Twin(1, False, carrier=False))
    (finding,) = found(link.CHECK, context(own))
    assert (finding.code, finding.severity) == ("fabric.link-down", Severity.ERROR)
    assert "enp1s0f0np0, enP2p1s0f0np0, enp1s0f1np1" in finding.subject


def test_a_twin_that_is_down_costs_half_the_bandwidth_but_an_empty_port_is_normal() -> None:
    first, second = port(0, (100, 101), 1)
    own = inventory(first, replace(second, carrier=False), Twin(1, False, carrier=False))
    (finding,) = found(link.CHECK, context(own))
    assert (finding.code, finding.severity, finding.subject) == ("fabric.twin-down", Severity.WARNING, "enP2p1s0f0np0")


def test_no_netdev_that_could_be_the_cable() -> None:
    lone = Inventory(netdevs=OTHERS)
    assert codes(link.CHECK, context(lone, config(transport="socket"))) == [("fabric.no-netdev", Severity.ERROR)]
    (finding,) = found(link.CHECK, context(lone, config(netdevs=("enp1*",))))
    assert "enp1*" in finding.measured
    assert "tailscale0" in finding.fix


def test_carrier_but_no_address_says_exactly_that() -> None:
    own = inventory(Twin(0, False), Twin(0, True))
    findings = found(address.CHECK, context(own))
    assert [finding.subject for finding in findings] == ["enp1s0f0np0", "enP2p1s0f0np0"]
    assert {(finding.code, finding.severity) for finding in findings} == {("fabric.no-address", Severity.ERROR)}
    assert findings[0].measured == "carrier is up, but there is no IPv4 address"
    assert "ipv4.method manual" in findings[0].fix
    first, second = port(0, (100, 101), 1)
    half = inventory(first, replace(second, at=""))
    assert codes(address.CHECK, context(half)) == [("fabric.no-address", Severity.WARNING)]


def test_addresses_that_change_at_reboots() -> None:
    own = inventory(Twin(0, False, at="169.254.3.4/16"))
    assert codes(address.CHECK, context(own)) == [("fabric.link-local", Severity.ERROR)]
    assert found(address.CHECK, context(own, config(allow_link_local=True))) == []


def test_the_way_to_the_worker_leaves_on_the_lan() -> None:
    lan = Route(destination="10.0.0.12", netdev="enP7s7", source="10.0.0.11")
    own = inventory(*port(0, (100, 101), 1), routes=(lan,))
    (finding,) = found(route.CHECK, context(own, config(addresses=("", "10.0.0.12"))))
    assert finding.code == "fabric.route-on-lan"
    assert "192.168.100.0/24" in finding.fix


def test_no_route_to_the_worker() -> None:
    own = inventory(*port(0, (101, 102), 1), routes=(Route(destination="192.168.100.2"),))
    assert codes(route.CHECK, context(own)) == [("fabric.no-route", Severity.ERROR)]


def test_a_worker_of_three_is_not_judged_by_the_other_workers_address() -> None:
    own = inventory(*port(0, (100, 101), 2), routes=())
    assert found(route.CHECK, context(own, config(3), me="spark-2")) == []


def test_the_mtu_here_and_at_the_other_end() -> None:
    small = inventory(*port(0, (100, 101), 1, mtu=1500))
    findings = found(mtu.CHECK, context(small, peers={"spark-2": pair()["spark-2"]}))
    assert {(finding.code, finding.severity) for finding in findings} == {
        ("fabric.mtu-low", Severity.WARNING),
        ("fabric.mtu-differs", Severity.ERROR),
    }
    (differs, *_) = [finding for finding in findings if finding.code == "fabric.mtu-differs"]
    assert "MTU 1500, while spark-2 has 9000" in differs.measured
    assert {code for code, _ in codes(mtu.CHECK, context(small))} == {"fabric.mtu-low"}
    assert found(mtu.CHECK, context(small, config(mtu=1500))) == []


def test_the_ways_to_prove_are_the_rails_or_else_the_routes() -> None:
    own = inventory(*port(0, (100, 101), 1), routes=(TO_PEER,))
    (way,) = path.ways(context(own))
    assert way == path.Way("spark-2", "enp1s0f0np0", "192.168.100.1", "192.168.100.2", 9000)
    rails = find(config(), {"spark-1": own, "spark-2": pair()["spark-2"]}).links
    assert [way.netdev for way in path.ways(context(own, links=rails))] == ["enp1s0f0np0", "enP2p1s0f0np0"]
    assert path.ways(context()) == ()


def _engine(**settings: object) -> Config:
    return config().model_copy(update={"engine": Engine.model_validate(settings)})


def test_the_engine_program_is_there(tmp_path: Path) -> None:
    there = tmp_path / "tensorfold"
    by_name = context(settings=_engine(runtime="process", command=("tensorfold",)), environ={"PATH": str(tmp_path)})
    by_path = context(settings=_engine(runtime="process", command=(str(there),)), environ={"PATH": ""})
    for at in (by_name, by_path):
        assert codes(program.CHECK, at) == [("engine.program-missing", Severity.ERROR)]
    there.write_text("#!/bin/sh\n")
    there.chmod(0o644)
    if os.geteuid():
        assert "cannot be executed" in found(program.CHECK, by_path)[0].measured
    there.chmod(0o755)
    for at in (by_name, by_path):
        assert found(program.CHECK, at) == []


def test_a_file_that_is_no_program_says_so(tmp_path: Path) -> None:
    there = tmp_path / "tensorfold"
    there.write_text("#!/bin/sh\n")
    there.chmod(0o644)
    (finding,) = found(program.CHECK, context(settings=_engine(runtime="process", command=(str(there),)), environ={}))
    assert "cannot be executed" in finding.measured
    assert finding.fix == f"Run chmod +x {there}."


def test_the_container_runtime_that_is_there_is_named(tmp_path: Path) -> None:
    at = context(settings=_engine(runtime="podman"), environ={"PATH": str(tmp_path)})
    (finding,) = found(program.CHECK, at)
    assert (finding.code, finding.fix) == ("engine.no-runtime", "Install podman.")
    docker = tmp_path / "docker"
    docker.write_text("#!/bin/sh\n")
    docker.chmod(0o755)
    assert 'docker is there: set engine.runtime = "docker"' in found(program.CHECK, at)[0].fix
    docker.rename(tmp_path / "podman")
    assert found(program.CHECK, at) == []


def test_too_little_memory_is_said_in_the_words_people_know() -> None:
    now = look()
    assert now is not None
    total = now.total
    assert 0 < now.available <= total
    at = context(settings=config().model_copy(update={"memory": Memory(want_available_gib=total + 1)}))
    (finding,) = found(memory.CHECK, at)
    assert (finding.code, finding.severity) == ("memory.low", Severity.WARNING)
    assert finding.measured.startswith("only ")
    assert " GiB memory available" in finding.measured
    enough = config().model_copy(update={"memory": Memory(want_available_gib=0)})
    assert found(memory.CHECK, context(settings=enough)) == []
