"""Which netdevs of one Spark are its cable, and in which order. Pure."""

from __future__ import annotations

import fnmatch
import ipaddress
import re
from collections.abc import Iterator

from glm_spark.config.model import Config
from glm_spark.fabric.inventory import Inventory, NetDev

# Virtual netdevs that can stand for a cable: veth pairs join the Sparks of the demo.
CABLE_KINDS = frozenset({"", "veth", "vlan", "macvlan", "ipvlan", "bond", "team"})
LINK_LOCAL = ipaddress.IPv4Network("169.254.0.0/16")


def fabric_netdevs(config: Config, inventory: Inventory) -> tuple[NetDev, ...]:
    """The netdevs that count as the cable, ordered by `rail_key`, up or down, addressed or not.

    fabric.netdevs names them by shell patterns. Without it: transport "roce" takes those with a RoCE device;
    "socket" takes every one but loopback, Wi-Fi, those that carry a default route, members of a bridge (a
    container's veth) and tunnels.
    """
    chosen = [netdev for netdev in inventory.netdevs if netdev.name != "lo" and _counts(config, inventory, netdev)]
    return tuple(sorted(chosen, key=rail_key))


def _counts(config: Config, inventory: Inventory, netdev: NetDev) -> bool:
    if config.fabric.netdevs:
        return any(fnmatch.fnmatchcase(netdev.name, pattern) for pattern in config.fabric.netdevs)
    if config.fabric.transport == "roce":
        return inventory.device_on(netdev.name) is not None
    if netdev.default_route or netdev.name == inventory.default_netdev:
        return False
    return netdev.kind in CABLE_KINDS and not netdev.master


def rail_key(netdev: NetDev) -> tuple[str, str, str, str]:
    """Orders a Spark's netdevs: by port, then by PCIe function.

    One QSFP port of a Spark is two PCIe functions in two PCI domains (0000:01:00.0 and 0002:01:00.0), so the
    first of each port's twins sits in the lower domain. Names follow the same order (enp1s0f0np0,
    enP2p1s0f0np0) once the domain is set apart, which serves where there is no PCI address.
    """
    return (port_of(netdev), netdev.pci, _domain_in(netdev.name), netdev.name)


def port_of(netdev: NetDev) -> str:
    """The QSFP port as "0", "1", ... or "" where nothing tells: phys_port_name, else "np0" at a name's end."""
    found = re.search(r"(\d+)$", netdev.port) or re.search(r"np(\d+)$", netdev.name)
    return found.group(1) if found else ""


def _domain_in(name: str) -> str:
    found = re.match(r"enP(\d+)p", name)
    return found.group(1).zfill(5) if found else "00000"


def interfaces(netdev: NetDev, allow_link_local: bool) -> Iterator[ipaddress.IPv4Interface]:
    """The netdev's IPv4 addresses that may carry a rail, lowest first."""
    for interface in sorted(ipaddress.IPv4Interface(text) for text in netdev.addresses):
        if interface.ip.is_loopback or (interface.ip in LINK_LOCAL and not allow_link_local):
            continue
        if interface.network.prefixlen < 32:
            yield interface
