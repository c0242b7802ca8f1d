"""What holds of the links of any two or three Sparks, sound or not."""

from __future__ import annotations

import ipaddress
from collections import Counter
from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glm_spark.config.model import Config
from glm_spark.fabric import links
from glm_spark.fabric.inventory import Inventory
from tests.unit.fabric.sparks import NAMES, Twin, config, inventory, port

Sparks = tuple[Config, dict[str, Inventory]]
# How fast a busy machine draws examples says nothing about the links.
steady = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def sparks(draw: st.DrawFn, *, sound: bool = False) -> Sparks:
    """Two Sparks with one cable or two, or three in a triangle, between any of their ports; twins in one subnet
    or in one each; device names and GID indexes of their own; with faults unless `sound`."""
    count = draw(st.sampled_from((2, 3)))
    transport = draw(st.sampled_from(("roce", "socket")))
    pairs = [(0, 1)] if count == 2 else [(0, 1), (1, 2), (0, 2)]
    if count == 2 and draw(st.booleans()):
        pairs.append((0, 1))
    free = [list(draw(st.permutations((0, 1)))) for _ in range(count)]
    twins: list[list[Twin]] = [[] for _ in range(count)]
    prefixes = [draw(st.sampled_from(("", "mlx", "x"))) for _ in range(count)]
    for number, ends in enumerate(pairs):
        first = 100 + 2 * number
        subnets = (first, draw(st.sampled_from((first, first + 1))))
        for spark in ends:
            gid = draw(st.integers(3, 200))
            made = port(free[spark].pop(), subnets, spark + 1, gid_index=gid, prefix=prefixes[spark])
            twins[spark] += [twin if sound else draw(_worn(twin)) for twin in made]
    found = {
        NAMES[at]: inventory(*draw(st.permutations(those)), lan=f"10.0.0.{at + 11}") for at, those in enumerate(twins)
    }
    return config(count, transport=transport), found


@st.composite
def _worn(draw: st.DrawFn, twin: Twin) -> Twin:
    """Mostly as it is; sometimes with one of the faults people report."""
    faults: list[dict[str, object]] = [
        {},
        {},
        {},
        {"at": ""},
        {"at": "169.254.9.9/16"},
        {"at": f"{twin.address}/32"},
        {"mtu": 1500},
        {"carrier": False},
        {"device": False},
        {"gid_index": None},
        {"at": "192.168.100.77/24"},
    ]
    return replace(twin, **draw(st.sampled_from(faults)))  # type: ignore[arg-type]


def _shuffled(own: Inventory, data: st.DataObject) -> Inventory:
    return own.model_copy(
        update={
            "netdevs": tuple(data.draw(st.permutations(own.netdevs))),
            "devices": tuple(data.draw(st.permutations(own.devices))),
        }
    )


@steady
@given(sparks(), st.data())
def test_the_order_in_which_things_are_read_changes_nothing(those: Sparks, data: st.DataObject) -> None:
    config, inventories = those
    order = data.draw(st.permutations(list(inventories)))
    again = {name: _shuffled(inventories[name], data) for name in order}
    assert links.find(config, again) == links.find(config, inventories)


@steady
@given(sparks())
def test_it_is_the_same_cable_from_either_end(those: Sparks) -> None:
    config, inventories = those
    turned = config.model_copy(update={"node": tuple(reversed(config.node))})
    rails = {frozenset(rail) for link in links.find(config, inventories).links for rail in link.rails}
    assert {frozenset(rail) for link in links.find(turned, inventories).links for rail in link.rails} == rails


@steady
@given(sparks())
def test_rails_are_sound_whatever_the_faults(those: Sparks) -> None:
    config, inventories = those
    found = links.find(config, inventories)
    for name, own in inventories.items():
        rails, findings = links.local_rails(config, name, own, found.links)
        assert findings == ()
        assert Counter(rail.netdev for rail in rails).most_common(1) in ([], [(rails[0].netdev, 1)] if rails else [])
        cable = {netdev.name for netdev in links.fabric_netdevs(config, own)}
        for rail in rails:
            netdev = own.netdev(rail.netdev)
            assert netdev is not None
            assert netdev.carrier
            assert rail.netdev in cable
            assert rail.netdev != own.default_netdev
            assert any(rail.address == text.split("/")[0] for text in netdev.addresses)
            assert not ipaddress.ip_address(rail.address).is_link_local
            _own_device(config, own, rail.netdev, rail.device, rail.gid_index, rail.address)


def _own_device(config: Config, own: Inventory, netdev: str, device: str | None, index: int | None, at: str) -> None:
    if config.fabric.transport == "socket":
        assert (device, index) == (None, None)
        return
    mine = own.device_on(netdev)
    assert mine is not None
    assert (device, mine.state) == (mine.name, "ACTIVE")
    (gid,) = [gid for gid in mine.gids if gid.index == index]
    assert (gid.kind, gid.address) == ("RoCE v2", at)


@steady
@given(sparks())
def test_both_ends_list_their_rails_in_one_order(those: Sparks) -> None:
    config, inventories = those
    for link in links.find(config, inventories).links:
        ends = {}
        for name, peer in ((link.a, link.b), (link.b, link.a)):
            rails, _ = links.local_rails(config, name, inventories[name], (link,))
            ends[name] = [(rail.address, rail.peer_address) for rail in rails]
            assert {rail.peer for rail in rails} == {peer}
            assert {rail.mtu for rail in rails} <= {1500, 9000}
        assert ends[link.a] == [(ours, theirs) for theirs, ours in ends[link.b]] == list(link.rails)


@steady
@given(sparks())
def test_a_pair_without_a_rail_has_a_reason(those: Sparks) -> None:
    config, inventories = those
    found = links.find(config, inventories)
    joined = {(link.a, link.b) for link in found.links}
    whole = {(a, b) for at, a in enumerate(inventories) for b in list(inventories)[at + 1 :]}
    if joined != whole:
        assert any(finding.severity == "error" for finding in found.findings)


@steady
@given(sparks(sound=True))
def test_sound_sparks_use_every_netdev_of_every_cable(those: Sparks) -> None:
    config, inventories = those
    found = links.find(config, inventories)
    # Which ports a triangle's cables join is told and changes nothing.
    assert {finding.code for finding in found.findings} <= {"fabric.triangle-mirrored"}
    plugged = sum(len(links.fabric_netdevs(config, own)) for own in inventories.values())
    assert 2 * sum(len(link.rails) for link in found.links) == plugged
    for name, own in inventories.items():
        rails, _ = links.local_rails(config, name, own, found.links)
        assert links.master_address(config, name, found.links, own)
        assert links.bootstrap_netdev(config, name, own, rails)
