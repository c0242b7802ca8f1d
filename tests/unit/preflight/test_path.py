"""What the path check makes of its probes: one rail is judged by what the same peer says on another."""

from __future__ import annotations

from dataclasses import replace

import pytest

from glm_spark.fabric.links import find
from glm_spark.fabric.probe import ProbeResult, probe_key
from glm_spark.fabric.rails import RailFault
from glm_spark.finding import Severity
from glm_spark.preflight.checks import path
from glm_spark.preflight.context import Context
from tests.unit.fabric.sparks import config, pair

FINE = ProbeResult(mtu=9000, port=8899, sent=3, received=3, largest_ok=9000, rtt=0.0001)
SILENT = ProbeResult(mtu=9000, port=8899, sent=3, received=0, largest_ok=0)
REFUSED = replace(SILENT, sent=1, refused=True)
SMALL = replace(SILENT, largest_ok=1500)


async def told(monkeypatch: pytest.MonkeyPatch, *results: ProbeResult, **more: object) -> list[tuple[str, Severity]]:
    """The codes for the two rails of two Sparks, whose probes end so."""
    inventories = pair()
    asked: list[tuple[object, ...]] = []

    async def probe(*arguments: object) -> ProbeResult:
        asked.append(arguments)
        return results[{"enp1s0f0np0": 0, "enP2p1s0f0np0": 1}[str(arguments[0])]]

    monkeypatch.setattr(path, "probe", probe)
    rails = find(config(), inventories).links
    settings = {"inventory": inventories["spark-1"], "links": rails, "token": b"t" * 32, **more}
    at = replace(Context(config=config(), me="spark-1"), **settings)  # type: ignore[arg-type]
    findings = [(finding.code, finding.severity) for finding in await path.run(at)]
    key = probe_key(b"t" * 32)
    hurried = [arguments for arguments in asked if len(arguments) == 6]
    assert hurried == [
        ("enp1s0f0np0", "192.168.100.1", "192.168.100.2", 8899, 9000, key),
        ("enP2p1s0f0np0", "192.168.101.1", "192.168.101.2", 8899, 9000, key),
    ]
    return findings


async def test_sound_rails_have_nothing_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await told(monkeypatch, FINE, FINE) == []


async def test_a_peer_that_answers_nowhere_may_just_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for result in (SILENT, REFUSED):
        assert await told(monkeypatch, result, result) == [("fabric.path-silent", Severity.UNKNOWN)] * 2


async def test_silence_on_one_rail_of_two_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await told(monkeypatch, FINE, SILENT) == [("fabric.path-silent", Severity.ERROR)]


async def test_silence_before_a_start_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    findings = await told(monkeypatch, SILENT, SILENT, moment="start")
    assert findings == [("fabric.path-silent", Severity.ERROR)] * 2


async def test_a_refused_twin_is_reached_on_the_wrong_netdev(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await told(monkeypatch, FINE, REFUSED) == [("fabric.wrong-netdev", Severity.ERROR)]
    plain = {"config": config(transport="socket")}
    assert await told(monkeypatch, FINE, REFUSED, **plain) == [("fabric.wrong-netdev", Severity.WARNING)]


async def test_large_packets_lost_on_one_rail(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await told(monkeypatch, FINE, SMALL) == [("fabric.path-mtu", Severity.ERROR)]


async def test_without_a_token_nothing_is_probed(tmp_path: object) -> None:
    settings = config().model_copy(
        update={"cluster": config().cluster.model_copy(update={"token_file": f"{tmp_path}/no"})}
    )
    at = Context(config=settings, me="spark-1", inventory=pair()["spark-1"], environ={})
    assert list(await path.run(at)) == []


async def test_what_does_not_come_back_at_once_is_asked_for_again_before_it_counts_as_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def probe(*arguments: object) -> ProbeResult:
        return FINE if len(arguments) > 6 else SMALL

    monkeypatch.setattr(path, "probe", probe)
    inventories = pair()
    rails = find(config(), inventories).links
    at = Context(config=config(), me="spark-1", inventory=inventories["spark-1"], token=b"t" * 32, links=rails)
    assert list(await path.run(at)) == []


async def test_a_peer_whose_own_probes_come_in_does_not_get_this_sparks(monkeypatch: pytest.MonkeyPatch) -> None:
    """One way is lost: the peer runs, so this is a fault, also where nothing else of it answers."""
    findings = await told(monkeypatch, FINE, SILENT, heard=lambda address: address == "192.168.101.2")
    assert findings == [("fabric.one-way", Severity.ERROR)]


async def test_before_a_start_a_faulty_rail_is_told_by_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    async def probe(*arguments: object) -> ProbeResult:
        return FINE if arguments[0] == "enp1s0f0np0" else SMALL

    monkeypatch.setattr(path, "probe", probe)
    inventories = pair()
    at = Context(
        config=config(),
        me="spark-1",
        moment="start",
        inventory=inventories["spark-1"],
        token=b"t" * 32,
        links=find(config(), inventories).links,
    )
    (fault,) = await path.run(at)
    assert isinstance(fault, RailFault)
    assert (fault.code, fault.rail) == ("fabric.path-mtu", ("192.168.101.1", "192.168.101.2"))
    (finding,) = await path.run(replace(at, moment="check"))
    assert not isinstance(finding, RailFault)
