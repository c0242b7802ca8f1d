"""The wiring plans: what must hold before a machine is started."""

from __future__ import annotations

import ipaddress

import pytest

from .topology import TOPOLOGIES, Cable, Port, Topology, TwinLayout, functions, link_files

pytestmark = pytest.mark.lab


@pytest.mark.parametrize("topology", TOPOLOGIES.values(), ids=TOPOLOGIES.keys())
def test_the_two_ends_of_a_rail_share_a_subnet_and_no_address_is_used_twice(topology: Topology) -> None:
    seen: set[str] = set()
    for cable in topology.cables:
        rails = topology.rails(cable)
        assert len(rails) == (1 if topology.layout is TwinLayout.FIRST_ONLY else 2)
        for a, b in rails:
            one, other = topology.address(a), topology.address(b)
            assert one is not None
            assert other is not None
            assert ipaddress.ip_interface(f"{one}/24").network == ipaddress.ip_interface(f"{other}/24").network
            assert a.twin == b.twin
            assert not seen & {one, other}
            seen |= {one, other}


def test_the_twins_lie_in_one_subnet_or_in_one_each_as_the_layout_says() -> None:
    for name, subnets in (("two", 2), ("two-one-subnet", 1), ("two-first-only", 1)):
        topology = TOPOLOGIES[name]
        addresses = [topology.address(function) for function in functions(1)]
        assert len({address.rpartition(".")[0] for address in addresses if address}) == subnets


def test_three_sparks_form_a_triangle_from_port_0_to_the_next_ones_port_1() -> None:
    topology = TOPOLOGIES["three"]
    for one, other in ((1, 2), (2, 3), (3, 1)):
        cable = topology.cable_between(one, other)
        assert (cable.a, cable.b) == (Port(one, 0), Port(other, 1))


def test_a_port_takes_one_cable() -> None:
    port = Port(1, 0)
    with pytest.raises(ValueError, match="two cables"):
        Topology("bad", 3, (Cable(port, Port(2, 0)), Cable(port, Port(3, 0))))


def test_every_nic_of_every_spark_is_named_by_its_mac_and_no_mac_is_used_twice() -> None:
    macs = [
        mac
        for text in link_files().values()
        for line in text.splitlines()
        if line.startswith("MACAddress=")
        for mac in line.partition("=")[2].split()
    ]
    assert len(macs) == len(set(macs)) == 15
    assert {function.mac for spark in (1, 2, 3) for function in functions(spark)} < set(macs)
