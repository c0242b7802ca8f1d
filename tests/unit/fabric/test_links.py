"""The cable as it is decided from what all Sparks have, case by case as people report it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from glm_spark.config.model import Node
from glm_spark.engine.spec import Link
from glm_spark.fabric import links
from glm_spark.fabric.inventory import Inventory, Neighbour, Route
from glm_spark.finding import Finding, Severity
from tests.unit.fabric.sparks import LAN, Twin, config, inventory, pair, port

ADDRESSES = (("192.168.100.1", "192.168.100.2"), ("192.168.101.1", "192.168.101.2"))


def codes(found: links.Found) -> list[str]:
    return [finding.code for finding in found.findings]


def errors(found: links.Found) -> list[Finding]:
    return [finding for finding in found.findings if finding.severity is Severity.ERROR]


def names(inventory: Inventory, transport: str = "roce", netdevs: tuple[str, ...] = ()) -> list[str]:
    return [netdev.name for netdev in links.fabric_netdevs(config(transport=transport, netdevs=netdevs), inventory)]


def test_both_twins_are_rails_in_a_subnet_each() -> None:
    assert links.find(config(), pair()) == links.Found((Link(a="spark-1", b="spark-2", rails=ADDRESSES),), ())


@pytest.mark.parametrize("transport", ["roce", "socket"])
def test_both_twins_are_rails_in_one_subnet(transport: str) -> None:
    inventories = {"spark-1": inventory(*port(0, (100, 100), 1)), "spark-2": inventory(*port(0, (100, 100), 2))}
    found = links.find(config(transport=transport), inventories)
    assert found.findings == ()
    assert found.links[0].rails == (("192.168.100.1", "192.168.100.2"), ("192.168.100.11", "192.168.100.12"))


def test_a_cable_from_the_left_port_to_the_right_one() -> None:
    inventories = {
        "spark-1": inventory(*port(0, (100, 101), 1)),
        "spark-2": inventory(*port(1, (100, 101), 2, gid_index=5, prefix="x")),
    }
    found = links.find(config(), inventories)
    assert found.links[0].rails == ADDRESSES
    rails, findings = links.local_rails(config(), "spark-2", inventories["spark-2"], found.links)
    assert findings == ()
    assert [(rail.netdev, rail.device, rail.gid_index) for rail in rails] == [
        ("enp1s0f1np1", "xrocep1s0f1", 5),
        ("enP2p1s0f1np1", "xroceP2p1s0f1", 5),
    ]


def test_the_gid_index_is_the_one_of_this_reading_and_of_type_v2() -> None:
    found = links.find(config(), pair())
    for index in (3, 4, 7):
        moved = pair(gid_index=index)["spark-2"]
        rails, _ = links.local_rails(config(), "spark-2", moved, found.links)
        assert [rail.gid_index for rail in rails] == [index, index]


def test_two_cables_make_four_rails() -> None:
    inventories = {
        name: inventory(*port(0, (100, 101), last), *port(1, (102, 103), last))
        for name, last in (("spark-1", 1), ("spark-2", 2))
    }
    found = links.find(config(), inventories)
    assert found.findings == ()
    assert [a for a, _ in found.links[0].rails] == [f"192.168.{subnet}.1" for subnet in (100, 101, 102, 103)]


def test_three_sparks_are_a_triangle() -> None:
    inventories = {
        "spark-1": inventory(*port(0, (100, 101), 1), *port(1, (104, 105), 1), lan="10.0.0.11"),
        "spark-2": inventory(*port(0, (102, 103), 2), *port(1, (100, 101), 2), lan="10.0.0.12"),
        "spark-3": inventory(*port(0, (104, 105), 3), *port(1, (102, 103), 3), lan="10.0.0.13"),
    }
    three = config(3, addresses=("", "192.168.100.2", "192.168.104.3"))
    found = links.find(three, inventories)
    assert found.findings == ()
    assert [(link.a, link.b, len(link.rails)) for link in found.links] == [
        ("spark-1", "spark-2", 2),
        ("spark-1", "spark-3", 2),
        ("spark-2", "spark-3", 2),
    ]
    assert links.master_address(three, "spark-1", found.links, inventories["spark-1"]) == "10.0.0.11"
    assert links.master_address(three, "spark-2", found.links, inventories["spark-2"]) == "192.168.100.1"
    # Its first rail is the one on its lower port: the order is by the leader's netdevs.
    assert links.master_address(three, "spark-3", found.links, inventories["spark-3"]) == "192.168.104.1"
    rails, _ = links.local_rails(three, "spark-3", inventories["spark-3"], found.links)
    assert links.bootstrap_netdev(three, "spark-3", inventories["spark-3"], rails) == "enP7s7"


def test_a_missing_edge_of_the_triangle_is_named() -> None:
    inventories = {
        "spark-1": inventory(*port(0, (100, 101), 1), *port(1, (104, 105), 1)),
        "spark-2": inventory(*port(1, (100, 101), 2), Twin(0, False, carrier=False)),
        "spark-3": inventory(*port(0, (104, 105), 3), Twin(1, False, carrier=False)),
    }
    (finding,) = errors(links.find(config(3), inventories))
    assert finding.code == "fabric.no-link"
    assert finding.subject == "cable between spark-2 and spark-3"


def triangle(*cables: tuple[int, int, int, int]) -> dict[str, Inventory]:
    """Three Sparks; a cable is (Spark, its port, other Spark, its port)."""
    twins: dict[int, list[Twin]] = {1: [], 2: [], 3: []}
    for number, (a, port_a, b, port_b) in enumerate(cables):
        subnets = (100 + 2 * number, 101 + 2 * number)
        twins[a] += port(port_a, subnets, a)
        twins[b] += port(port_b, subnets, b)
    return {f"spark-{n}": inventory(*those, lan=f"10.0.0.1{n}") for n, those in twins.items()}


def test_the_recipes_triangle_has_nothing_to_say() -> None:
    inventories = triangle((1, 0, 2, 1), (2, 0, 3, 1), (3, 0, 1, 1))
    assert links.find(config(3), inventories).findings == ()


def test_a_mirrored_triangle_runs_and_is_named_with_the_swap_that_turns_it() -> None:
    found = links.find(config(3), triangle((1, 1, 2, 0), (2, 1, 3, 0), (3, 1, 1, 0)))
    (finding,) = found.findings
    assert (finding.code, finding.severity) == ("fabric.triangle-mirrored", Severity.NOTE)
    assert finding.measured.startswith("mirrored: spark-1 port 1 to spark-2 port 0")
    assert "Swap the [[node]] entries of spark-2 and spark-3" in finding.fix
    assert len(found.links) == 3


def test_a_triangle_with_one_cable_in_the_wrong_port_is_named() -> None:
    (finding,) = links.find(config(3), triangle((1, 0, 2, 0), (2, 1, 3, 1), (3, 0, 1, 1))).findings
    assert finding.code == "fabric.triangle-mirrored"
    assert "spark-1 port 0 to spark-2 port 0" in finding.measured


def test_adapters_with_another_firmware_are_a_note() -> None:
    inventories = pair()
    for name, version in (("spark-1", "28.45.4028"), ("spark-2", "28.43.1014")):
        own = inventories[name]
        devices = tuple(device.model_copy(update={"firmware": version}) for device in own.devices)
        inventories[name] = own.model_copy(update={"devices": devices})
    (finding,) = links.find(config(), inventories).findings
    assert (finding.code, finding.severity) == ("fabric.firmware-differs", Severity.NOTE)
    assert "28.43.1014 on spark-2; 28.45.4028 on spark-1" in finding.measured


def test_one_subnet_on_three_cables_is_named() -> None:
    inventories = {f"spark-{n}": inventory(*port(0, (100, 100), n), *port(1, (100, 100), n + 50)) for n in (1, 2, 3)}
    found = links.find(config(3), inventories)
    assert found.links == ()
    assert "fabric.subnet-shared" in codes(found)
    assert "192.168.100.0/24" in str(errors(found)[0])
    assert "A switch is not used" in errors(found)[0].fix


def test_two_sparks_use_the_first_rail_for_everything() -> None:
    inventories = pair()
    found = links.find(config(), inventories)
    for me, own in inventories.items():
        rails, _ = links.local_rails(config(), me, own, found.links)
        assert links.bootstrap_netdev(config(), me, own, rails) == "enp1s0f0np0"
        assert links.master_address(config(), me, found.links, own) == "192.168.100.1"


def test_a_twin_without_address_is_dropped_and_named() -> None:
    inventories = pair()
    first, second = port(0, (100, 101), 2)
    inventories["spark-2"] = inventory(first, replace(second, at=""))
    found = links.find(config(), inventories)
    assert found.links[0].rails == ADDRESSES[:1]
    assert errors(found) == []
    told = {(finding.code, finding.node, finding.subject) for finding in found.findings}
    assert ("fabric.no-address", "spark-2", "enP2p1s0f0np0") in told


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"mtu": 1500}, "fabric.mtu-differs"),
        ({"carrier": False}, "fabric.link-down"),
        ({"gid_index": None}, "fabric.no-gid"),
        ({"state": "INIT"}, "fabric.port-not-active"),
    ],
)
def test_a_faulty_rail_is_dropped_and_without_any_the_set_cannot_start(change: dict[str, object], code: str) -> None:
    inventories = pair()
    first, second = port(0, (100, 101), 2)
    inventories["spark-2"] = inventory(first, replace(second, **change))  # type: ignore[arg-type]
    found = links.find(config(), inventories)
    assert found.links[0].rails == ADDRESSES[:1]
    assert errors(found) == []
    (warning,) = [finding for finding in found.findings if finding.code == code]
    assert (warning.node, warning.severity) == ("spark-2", Severity.WARNING)

    none_left = links.find(config(), pair(**change))
    assert none_left.links == ()
    assert {finding.code for finding in errors(none_left)} == {code}


def test_the_mtu_of_both_ends_is_told() -> None:
    (finding, *_) = errors(links.find(config(), pair(mtu=1500)))
    assert "MTU 1500, while spark-1 has 9000 on enp1s0f0np0" in str(finding)
    assert "to 9000" in finding.fix


def test_link_local_addresses_are_refused_unless_allowed() -> None:
    inventories = {f"spark-{n}": inventory(replace(Twin(0, False), at=f"169.254.7.{n}/16")) for n in (1, 2)}
    found = links.find(config(), inventories)
    assert found.links == ()
    assert "fabric.link-local" in codes(found)
    assert len(links.find(config(allow_link_local=True), inventories).links[0].rails) == 1


def test_one_address_on_two_netdevs_is_named() -> None:
    inventories = pair()
    first, second = port(0, (100, 101), 2)
    inventories["spark-2"] = inventory(replace(first, at="192.168.100.1/24"), second)
    found = links.find(config(), inventories)
    assert found.links[0].rails == ADDRESSES[1:]
    (finding,) = errors(found)
    assert str(finding).startswith(
        "spark-1: address 192.168.100.1: on enp1s0f0np0 of spark-1 and on enp1s0f0np0 of spark-2, wanted"
    )


def test_a_spark_that_was_not_read_is_unknown_and_not_broken() -> None:
    inventories = pair()
    del inventories["spark-2"]
    found = links.find(config(), inventories)
    assert found.links == ()
    assert [(f.code, f.severity, f.node) for f in found.findings if f.node == "spark-2"] == [
        ("fabric.not-read", Severity.UNKNOWN, "spark-2")
    ]
    assert errors(found) == []


def test_the_cable_is_what_has_a_roce_device_or_what_is_not_the_lan() -> None:
    own = inventory(*port(0, (100, 101), 1))
    assert names(own) == ["enp1s0f0np0", "enP2p1s0f0np0"]
    assert names(own, transport="socket") == ["enp1s0f0np0", "enP2p1s0f0np0"]
    assert names(own, transport="socket", netdevs=("veth*", "enP7s7")) == ["enP7s7", "veth1a2b"]
    assert names(inventory(Twin(0, False, device=False))) == []


def test_veth_pairs_can_be_the_cable() -> None:
    own = inventory()
    twins = tuple(
        twin.netdev(at).model_copy(update={"kind": "veth", "pci": "", "port": ""})
        for at, twin in enumerate(port(0, (100, 101), 1))
    )
    own = own.model_copy(update={"netdevs": (*reversed(twins), *own.netdevs)})
    assert names(own, transport="socket") == ["enp1s0f0np0", "enP2p1s0f0np0"]


def test_rails_that_this_spark_does_not_have_are_refused() -> None:
    agreed = (Link(a="spark-1", b="spark-2", rails=(("192.168.100.1", "192.168.100.2"), ("10.0.0.11", "10.0.0.12"))),)
    own = pair()["spark-1"]
    rails, findings = links.local_rails(config(), "spark-1", own, agreed)
    assert [rail.address for rail in rails] == ["192.168.100.1"]
    assert [(f.code, f.severity) for f in findings] == [("fabric.rail-not-here", Severity.ERROR)]
    assert "which is not the cable" in findings[0].measured
    rails, findings = links.local_rails(config(), "spark-1", inventory(), agreed)
    assert rails == ()
    assert "no netdev has that address" in findings[0].measured


def test_a_rail_without_device_never_gets_an_empty_name() -> None:
    found = links.find(config(), pair())
    rails, findings = links.local_rails(config(), "spark-2", pair(device=False)["spark-2"], found.links)
    assert rails == ()
    assert {f.code for f in findings} <= {"fabric.no-roce-device", "fabric.rail-not-here"}
    assert len(findings) == 2


def test_the_same_rail_agreed_twice_is_refused() -> None:
    twice = (Link(a="spark-1", b="spark-2", rails=(ADDRESSES[0], ADDRESSES[0])),)
    rails, findings = links.local_rails(config(), "spark-1", pair()["spark-1"], twice)
    assert rails == ()
    assert [f.code for f in findings] == ["fabric.netdev-twice"]


def test_with_sockets_a_rail_has_no_device() -> None:
    plain = config(transport="socket")
    found = links.find(plain, pair(device=False))
    rails, findings = links.local_rails(plain, "spark-2", pair(device=False)["spark-2"], found.links)
    assert findings == ()
    assert [(rail.device, rail.gid_index) for rail in rails] == [(None, None)] * 2


def test_no_link_means_no_address_to_meet_at() -> None:
    with pytest.raises(links.Unresolved) as raised:
        links.master_address(config(), "spark-2", (), pair()["spark-2"])
    assert raised.value.finding.code == "fabric.no-link"
    with pytest.raises(links.Unresolved):
        links.bootstrap_netdev(config(), "spark-2", pair()["spark-2"], ())
    lost = inventory().model_copy(update={"default_address": "", "default_netdev": ""})
    with pytest.raises(links.Unresolved) as raised:
        links.master_address(config(3), "spark-1", (), lost)
    assert raised.value.finding.code == "fabric.no-lan-address"


def test_the_status_says_which_rail_is_down() -> None:
    inventories = pair()
    found = links.find(config(), inventories)
    (told,) = links.link_status(config(), inventories, found.links)
    assert [rail.state for rail in told.rails] == ["ok", "ok"]
    assert (told.rails[0].b.device, told.rails[0].b.gid_index, told.rails[0].b.mtu) == ("rocep1s0f0", 3, 9000)
    (told,) = links.link_status(config(), {**inventories, "spark-2": pair(carrier=False)["spark-2"]}, found.links)
    assert [rail.state for rail in told.rails] == ["down", "down"]
    (told,) = links.link_status(config(), {"spark-1": inventories["spark-1"]}, found.links)
    assert [rail.state for rail in told.rails] == ["unknown", "unknown"]


# The way to a peer


def routed(netdev: str, source: str = "", address: str = "192.168.100.2") -> Inventory:
    twins = (*port(0, (100, 101), 1), Twin(1, False, carrier=False, at="192.168.110.1/24"))
    return inventory(*twins, routes=(Route(destination=address, netdev=netdev, source=source),))


def dialled(own: Inventory, address: str = "192.168.100.2", transport: str = "roce") -> links.Dial | Finding:
    return links.dial(config(transport=transport), "spark-1", own, Node(name="spark-2", address=address))


def test_a_peer_is_reached_over_the_cable() -> None:
    assert dialled(routed("enp1s0f0np0", "192.168.100.1")) == links.Dial(
        netdev="enp1s0f0np0", source="192.168.100.1", address="192.168.100.2"
    )


@pytest.mark.parametrize(
    ("own", "address", "code"),
    [
        (routed(""), "192.168.100.2", "fabric.no-route"),
        (routed("enP7s7", "10.0.0.11", "10.0.0.12"), "10.0.0.12", "fabric.route-on-lan"),
        (routed("docker0", "172.17.0.1", "172.17.0.2"), "172.17.0.2", "fabric.route-not-roce"),
        (routed("enp1s0f1np1", "192.168.110.1", "192.168.110.2"), "192.168.110.2", "fabric.link-down"),
        (routed("lo", "192.168.100.1", "192.168.100.1"), "192.168.100.1", "fabric.address-is-own"),
        (routed("enp1s0f0np0", "169.254.1.1", "169.254.1.2"), "169.254.1.2", "fabric.link-local"),
        (inventory(*port(0, (100, 101), 1)), "192.168.100.2", "fabric.route-unknown"),
    ],
)
def test_a_route_that_will_not_do_has_its_own_name(own: Inventory, address: str, code: str) -> None:
    answer = dialled(own, address)
    assert isinstance(answer, Finding)
    assert answer.code == code
    assert answer.fix


def test_with_sockets_a_route_off_the_cable_is_refused_too() -> None:
    answer = dialled(routed("docker0", "172.17.0.1", "172.17.0.2"), "172.17.0.2", transport="socket")
    assert isinstance(answer, Finding)
    assert answer.code == "fabric.route-off-fabric"


def test_the_address_that_would_do_is_named() -> None:
    own = routed("enP7s7", "10.0.0.11", "10.0.0.12")
    answer = dialled(own, "10.0.0.12")
    assert "192.168.100.0/24 (on enp1s0f0np0)" in str(answer)
    seen = Neighbour(netdev="enp1s0f0np0", address="192.168.100.2", mac="02:00:00:00:00:02")
    on_lan = Neighbour(netdev=LAN.name, address="10.0.0.12", mac="02:00:00:00:00:03")
    answer = dialled(own.model_copy(update={"neighbours": (on_lan, seen)}), "10.0.0.12")
    assert "192.168.100.2 answers on enp1s0f0np0" in str(answer)
    assert isinstance(answer, Finding)
    assert answer.measured == "leaves on enP7s7, the LAN port"
