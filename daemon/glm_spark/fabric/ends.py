"""One end of a rail: may this netdev, with this address, carry one? Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass

from glm_spark.config.model import Config
from glm_spark.fabric.inventory import Gid, Inventory, NetDev
from glm_spark.fabric.selection import fabric_netdevs, interfaces
from glm_spark.finding import Finding, Severity

ROCE_V2 = "RoCE v2"


@dataclass(frozen=True, slots=True)
class End:
    """A netdev and its address in one subnet."""

    node: str
    netdev: NetDev
    address: str
    network: ipaddress.IPv4Network


def ends_of(config: Config, node: str, inventory: Inventory) -> list[End]:
    """Every addressed netdev of the cable, in `rail_key` order; a netdev once a subnet, by its lowest address."""
    found: list[End] = []
    for netdev in fabric_netdevs(config, inventory):
        seen: set[ipaddress.IPv4Network] = set()
        for interface in interfaces(netdev, config.fabric.allow_link_local):
            if interface.network not in seen:
                seen.add(interface.network)
                found.append(End(node, netdev, str(interface.ip), interface.network))
    return found


def addresses_twice(ends: Mapping[str, list[End]]) -> dict[str, Finding]:
    """An error for each address that more than one netdev has, on one Spark or on several."""
    owners: dict[str, list[End]] = {}
    for node in sorted(ends):
        for end in sorted(ends[node], key=lambda end: end.netdev.name):
            owners.setdefault(end.address, []).append(end)
    return {
        address: Finding(
            code="fabric.address-twice",
            severity=Severity.ERROR,
            node=those[0].node,
            subject=f"address {address}",
            measured="on " + " and on ".join(f"{end.netdev.name} of {end.node}" for end in those),
            wanted="one netdev an address",
            fix=f"Give {those[-1].netdev.name} on {those[-1].node} an address of its own.",
        )
        for address, those in sorted(owners.items())
        if len(those) > 1
    }


def gid_of(inventory: Inventory, netdev: str, address: str) -> Gid | None:
    """The RoCE v2 entry for an address on a netdev's device. Its index moves, so it is never remembered."""
    device = inventory.device_on(netdev)
    if device is None:
        return None
    return next(
        (gid for gid in device.gids if gid.kind == ROCE_V2 and gid.address == address and gid.netdev in ("", netdev)),
        None,
    )


def end_fault(config: Config, inventory: Inventory, end: End, severity: Severity) -> Finding | None:
    """Why this end cannot carry a rail, or None: carrier, and with transport "roce" device, port and GID."""
    name = end.netdev.name
    if not end.netdev.carrier:
        return Finding(
            code="fabric.link-down",
            severity=severity,
            node=end.node,
            subject=f"{name} ({end.address})",
            measured="no carrier" + (f", operstate {end.netdev.operstate}" if end.netdev.operstate else ""),
            wanted="a link that is up",
            fix="Plug the cable in at both ends and see that the Spark at its other end is on.",
        )
    if config.fabric.transport != "roce":
        return None
    device = inventory.device_on(name)
    if device is None:
        return Finding(
            code="fabric.no-roce-device",
            severity=severity,
            node=end.node,
            subject=f"{name} ({end.address})",
            measured="no RoCE device",
            wanted="a RoCE device on this netdev",
            fix='See that mlx5_ib is loaded, or set fabric.transport = "socket".',
        )
    if device.state != "ACTIVE":
        return Finding(
            code="fabric.port-not-active",
            severity=severity,
            node=end.node,
            subject=f"RoCE device {device.name} on {name}",
            measured=f"port 1 is {device.state}",
            wanted="ACTIVE",
            fix="Bring the netdev up at both ends of the cable.",
        )
    if gid_of(inventory, name, end.address) is None:
        return Finding(
            code="fabric.no-gid",
            severity=severity,
            node=end.node,
            subject=f"RoCE device {device.name} on {name}",
            measured=f"no RoCE v2 GID for {end.address} among {len(device.gids)} entries",
            wanted=f"a RoCE v2 GID made from {end.address}",
            fix=f"Set {name} down and up again; if that does not help, reload mlx5_ib.",
        )
    return None
