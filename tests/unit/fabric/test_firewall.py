"""Packet filters read over nfnetlink, and what they would do to a packet of the set."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from glm_spark.fabric.firewall import Filters, Packet, dropped_by, forward_drops
from tests.unit.fabric.room import Room

RECORDED = Path(__file__).parent / "recorded"
FROM = "192.168.100.2"


def filters(name: str) -> Filters:
    return Filters.model_validate_json((RECORDED / f"filters-{name}.json").read_text())


def fate(read: Filters, netdev: str, protocol: str, port: int, source: str = FROM) -> str | None:
    chain = dropped_by(read, Packet(netdev, 5, source, protocol, port))  # type: ignore[arg-type]
    return chain.name if chain else None


def test_ufw_that_lets_ssh_in_drops_the_rest_also_on_the_cable() -> None:
    read = filters("ufw")
    assert fate(read, "enp1s0f0np0", "tcp", 22) is None
    assert fate(read, "enp1s0f0np0", "tcp", 29551) == "INPUT"
    assert fate(read, "enp1s0f0np0", "udp", 4791) == "INPUT"


def test_ufw_that_lets_a_netdev_in_is_left_alone_there_only() -> None:
    read = filters("ufw-allowed")
    assert fate(read, "enp1s0f0np0", "tcp", 29551) is None
    assert fate(read, "enP2p1s0f0np0", "tcp", 29551) == "INPUT"


def test_docker_drops_what_is_sent_on_and_lets_the_host_itself_be() -> None:
    read = filters("docker")
    assert fate(read, "enp1s0f0np0", "tcp", 29551) is None
    chain = forward_drops(read)
    assert chain is not None
    assert (chain.table, chain.name) == ("filter", "FORWARD")


def test_nothing_is_said_where_a_rule_could_not_be_followed() -> None:
    read = filters("nftables")
    # `tcp dport { 22, 8899 } accept` is a set, which is not followed: 29551 may be in it.
    assert fate(read, "eth0", "tcp", 29551) is None
    assert fate(read, "eth0", "udp", 29551, "10.0.0.1") == "input"
    assert fate(read, "cable0", "udp", 29551) is None
    assert fate(read, "a0", "udp", 4791, "10.0.0.1") is None


def test_without_filters_everything_is_let_in() -> None:
    assert fate(Filters(), "enp1s0f0np0", "tcp", 29551) is None


@pytest.mark.parametrize("policy", [0, 1])
def test_what_the_kernel_has_is_read(room: Room, policy: int) -> None:
    """A base chain made over netlink, as `nft` makes it, is read back by the child."""
    make = (
        "from pyroute2.nftables.main import NFTables\n"
        "with NFTables(nfgen_family=2) as kernel:\n"
        "    kernel.table('add', name='lab')\n"
        f"    kernel.chain('add', table='lab', name='in', hook='input', type='filter', policy={policy})\n"
    )
    subprocess.run(room.inside(room.near, sys.executable, "-c", make), check=True)
    child = (sys.executable, "-P", "-m", "glm_spark.fabric.child", "filters")
    said = subprocess.run(room.inside(room.near, *child), check=True, capture_output=True, text=True).stdout
    read = Filters.model_validate(json.loads(said)["told"])
    assert fate(read, "cable0", "tcp", 29551) == (None if policy else "in")
