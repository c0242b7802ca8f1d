"""The rails of a running set against how they were at its start."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from glm_spark.fabric import links
from glm_spark.fabric.inventory import Inventory
from glm_spark.fabric.standing import Standing, dark, standing
from tests.unit.fabric.sparks import config, inventory, pair, port

Change = Callable[[Inventory, str], Inventory]  # what happens to one netdev of a Spark


def after(change: Change, *, both: bool = False) -> Standing:
    """The standing after a change to the first rail's end on spark-2, or to both rails' ends."""
    before = pair()
    found = links.find(config(), before)
    at_start = links.link_status(config(), before, found.links)
    changed = before["spark-2"]
    for device in before["spark-2"].devices[: 2 if both else 1]:
        changed = change(changed, device.netdev)
    return standing(config(), {**before, "spark-2": changed}, found.links, at_start)


def netdev(**fields: object) -> Change:
    def change(of: Inventory, name: str) -> Inventory:
        netdevs = tuple(one.model_copy(update=fields) if one.name == name else one for one in of.netdevs)
        return of.model_copy(update={"netdevs": netdevs})

    return change


def device(**fields: object) -> Change:
    def change(of: Inventory, name: str) -> Inventory:
        devices = tuple(one.model_copy(update=fields) if one.netdev == name else one for one in of.devices)
        return of.model_copy(update={"devices": devices})

    return change


def without_device(of: Inventory, name: str) -> Inventory:
    return of.model_copy(update={"devices": tuple(one for one in of.devices if one.netdev != name)})


def without_netdev(of: Inventory, name: str) -> Inventory:
    left = without_device(of, name)
    return left.model_copy(update={"netdevs": tuple(one for one in of.netdevs if one.name != name)})


CASES = [
    (netdev(carrier=False), "fabric.carrier-lost"),
    (netdev(addresses=()), "fabric.address-gone"),
    (without_netdev, "fabric.netdev-gone"),
    (without_device, "fabric.device-gone"),
    (device(state="DOWN"), "fabric.port-down"),
    (device(gids=()), "fabric.gid-gone"),
]


def test_nothing_changed_is_nothing_to_say() -> None:
    assert after(lambda of, _name: of) == Standing()


@pytest.mark.parametrize(("change", "code"), CASES)
def test_one_rail_lost_beside_another_is_a_warning(change: Change, code: str) -> None:
    now = after(change)
    assert now.lost is None
    assert [finding.code for finding in now.warnings] == [code]
    assert now.warnings[0].node == "spark-2"


@pytest.mark.parametrize(("change", "code"), CASES)
def test_no_rail_left_is_a_lost_link(change: Change, code: str) -> None:
    now = after(change, both=True)
    assert now.lost is not None
    assert now.lost.code == code
    assert now.lost.fix


def test_a_moved_gid_is_said_and_ends_nothing() -> None:
    before = pair()
    found = links.find(config(), before)
    at_start = links.link_status(config(), before, found.links)
    moved = {**before, "spark-1": inventory(*port(0, (100, 101), 1, gid_index=9))}
    now = standing(config(), moved, found.links, at_start)
    assert now.lost is None
    assert {finding.code for finding in now.warnings} == {"fabric.gid-moved"}
    assert "9" in now.warnings[0].measured


def test_a_spark_that_was_not_read_is_not_judged() -> None:
    before = pair()
    found = links.find(config(), before)
    at_start = links.link_status(config(), before, found.links)
    assert standing(config(), {"spark-1": before["spark-1"]}, found.links, at_start) == Standing()


def test_a_spark_is_dark_when_the_last_of_its_own_rails_has_no_carrier() -> None:
    before = pair()
    found = links.find(config(), before)
    first, second = (device.netdev for device in before["spark-2"].devices[:2])
    one = netdev(carrier=False)(before["spark-2"], first)
    assert not dark("spark-2", one, found.links)
    both = netdev(carrier=False)(one, second)
    assert dark("spark-2", both, found.links)
    assert not dark("spark-2", both, ()), "without a set there is nothing to give up"
    # a netdev that was taken away may be back at once; then its peers' silence decides
    assert not dark("spark-2", without_netdev(both, second), found.links)
