"""The description of the virtual Sparks is what the cabling of real ones would be."""

from __future__ import annotations

from itertools import combinations

import pytest

from tests.sparks import wiring
from tests.sparks.layout import LAN_NETDEV, TWINS, describe, netdev_name


def test_twins_are_named_as_on_a_spark() -> None:
    names = [netdev_name(port, twin) for port in (0, 1) for twin in TWINS]
    assert names == ["enp1s0f0np0", "enP2p1s0f0np0", "enp1s0f1np1", "enP2p1s0f1np1"]


def test_two_sparks_have_a_subnet_for_each_twin() -> None:
    layout = describe(2)
    assert layout.address(1, 2, "a") == "192.168.100.1"
    assert layout.address(2, 1, "a") == "192.168.100.2"
    assert layout.address(1, 2, "b") == "192.168.101.1"
    assert layout.address(2, 1, "b") == "192.168.101.2"


def test_the_uncabled_port_is_there_without_an_address() -> None:
    spark = describe(2).spark(1)
    assert [n.name for n in spark.netdevs if n.address is None] == ["enp1s0f1np1", "enP2p1s0f1np1"]
    assert spark.lan.name == LAN_NETDEV


def test_three_sparks_form_a_triangle_from_port_0_to_the_next_ones_port_1() -> None:
    layout = describe(3)
    assert [(cable.a, cable.b) for cable in layout.cables] == [
        ((1, 0), (2, 1)),
        ((2, 0), (3, 1)),
        ((3, 0), (1, 1)),
    ]
    subnets = {
        layout.ends(cable, twin)[0].address.network  # type: ignore[union-attr]
        for cable in layout.cables
        for twin in TWINS
    }
    assert len(subnets) == 6
    for first, second in combinations((1, 2, 3), 2):
        for twin in TWINS:
            ends = layout.ends(layout.cable(first, second), twin)
            assert ends[0].address is not None
            assert ends[1].address is not None
            assert ends[0].address.network == ends[1].address.network


def test_a_crossed_cable_joins_port_0_and_port_1() -> None:
    layout = describe(2, crossed=True)
    assert layout.address(2, 1, "a") == "192.168.100.2"
    assert layout.spark(2).netdev(1, "a").address is not None
    assert layout.spark(2).netdev(0, "a").address is None


@pytest.mark.parametrize("count", [2, 3])
def test_addresses_and_room_ends_are_unique(count: int) -> None:
    netdevs = [netdev for spark in describe(count).sparks for netdev in spark.netdevs]
    addresses = [netdev.address for netdev in netdevs if netdev.address is not None]
    assert len(set(addresses)) == len(addresses)
    assert len({netdev.room_end for netdev in netdevs}) == len(netdevs)
    assert len({netdev.mac for netdev in netdevs}) == len(netdevs)
    assert all(len(netdev.name) < 16 and len(netdev.room_end) < 16 for netdev in netdevs)


@pytest.mark.parametrize("count", [0, 1, 4])
def test_other_numbers_of_sparks_are_refused(count: int) -> None:
    with pytest.raises(ValueError, match="2 or 3 can be cabled"):
        describe(count)


def test_cutting_names_both_ends_of_the_rail_and_no_other() -> None:
    layout = describe(3)
    cable = layout.cable(3, 1)
    assert wiring.cut(layout, cable, "b") == ["link set s3p0b down", "link set s1p1b down"]
    assert wiring.parted(layout, cable, "a") == ["link set s3p0a nomaster", "link set s1p1a nomaster"]


def test_every_netdev_is_moved_to_its_own_spark() -> None:
    layout = describe(2)
    lines = wiring.room_lines(layout, {1: 1001, 2: 1002})
    made = [line for line in lines if "type veth" in line]
    assert len(made) == 10
    assert all(line.endswith("netns 1001") for line in made if line.startswith("link add s1"))
    assert all(line.endswith("netns 1002") for line in made if line.startswith("link add s2"))
