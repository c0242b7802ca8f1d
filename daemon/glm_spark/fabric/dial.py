"""Over which netdev a Spark reaches another one, and why not when it does not. Pure."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from glm_spark.config.model import Config, Node
from glm_spark.fabric.inventory import Inventory, NetDev, Route
from glm_spark.fabric.selection import LINK_LOCAL, fabric_netdevs, interfaces
from glm_spark.finding import Finding, Severity


@dataclass(frozen=True, slots=True)
class Dial:
    """How to reach a peer: leave on `netdev`, from `source`, to `address`."""

    netdev: str
    source: str
    address: str


def dial(config: Config, me: str, inventory: Inventory, peer: Node) -> Dial | Finding:
    """The way to `peer.address`, which must leave on a cable that is plugged in, or the reason why there is none."""
    subject = f"route to {peer.name} ({peer.address or 'no address in the file'})"
    if not peer.address:
        return Finding(
            code="fabric.no-peer-address",
            severity=Severity.ERROR,
            node=me,
            subject=subject,
            measured="the configuration gives no address",
            wanted="its address on the cable",
            fix=f"Set address under [[node]] {peer.name}{_instead(config, inventory, peer)}",
        )
    route = inventory.route_to(peer.address)
    if route is None:
        return Finding(
            code="fabric.route-unknown",
            severity=Severity.UNKNOWN,
            node=me,
            subject=subject,
            measured="the kernel's route was not read",
            wanted="a route that leaves on the cable",
            fix="See the findings about reading the network.",
        )
    fault = _route_fault(config, inventory, peer, route)
    if fault is None and ipaddress.IPv4Address(peer.address) in LINK_LOCAL and not config.fabric.allow_link_local:
        fault = (
            "fabric.link-local",
            "a link-local address, which changes at reboots",
            "an address that stays",
            "Give both ends of the cable fixed addresses (192.168.100.1/24 and .2/24), "
            "or set fabric.allow_link_local = true.",
        )
    if fault is not None:
        code, measured, wanted, fix = fault
        return Finding(
            code=code, severity=Severity.ERROR, node=me, subject=subject, measured=measured, wanted=wanted, fix=fix
        )
    return Dial(netdev=route.netdev, source=route.source, address=peer.address)


def _route_fault(config: Config, inventory: Inventory, peer: Node, route: Route) -> tuple[str, str, str, str] | None:
    """(code, measured, wanted, fix) of a route that will not do, or None."""
    instead = _instead(config, inventory, peer)
    cables = fabric_netdevs(config, inventory)
    kind = "RoCE netdev" if config.fabric.transport == "roce" else "netdev of the cable"
    wanted = f"a route that leaves on a {kind}" + (f" ({_names(cables)})" if cables else "")
    use = f"Name {peer.name} by its address on the cable{instead}"
    if not route.netdev:
        return ("fabric.no-route", "no route", wanted, f"Give this Spark an address in the same subnet, or: {use}")
    if route.netdev == "lo":
        return (
            "fabric.address-is-own",
            "that address is this Spark's own",
            f"an address of {peer.name}",
            f"Correct address under [[node]] {peer.name}; the entries are in rank order.",
        )
    if route.netdev not in {netdev.name for netdev in cables}:
        if route.netdev == inventory.default_netdev:
            return ("fabric.route-on-lan", f"leaves on {route.netdev}, the LAN port", wanted, use)
        if config.fabric.transport == "roce" and not config.fabric.netdevs:
            return ("fabric.route-not-roce", f"leaves on {route.netdev}, which has no RoCE device", wanted, use)
        return ("fabric.route-off-fabric", f"leaves on {route.netdev}, which is not the cable", wanted, use)
    netdev = inventory.netdev(route.netdev)
    if netdev is not None and not netdev.carrier:
        return (
            "fabric.link-down",
            f"leaves on {netdev.name}, which has no carrier",
            "a link that is up",
            f"Plug the cable in at both ends and see that {peer.name} is on.",
        )
    return None


def _instead(config: Config, inventory: Inventory, peer: Node) -> str:
    """`: 192.168.100.2 answers on enp1s0f0np0.` from the neighbour table, else the subnet it should be in."""
    cables = fabric_netdevs(config, inventory)
    names = {netdev.name for netdev in cables}
    taken = {node.address for node in config.node if node.name != peer.name}
    for seen in inventory.neighbours:
        if seen.netdev in names and seen.address not in taken and seen.address != peer.address:
            return f": {seen.address} answers on {seen.netdev}."
    for netdev in cables:
        for interface in interfaces(netdev, config.fabric.allow_link_local):
            return f", one in {interface.network} (on {netdev.name})."
    plugged = [netdev for netdev in cables if netdev.carrier]
    if plugged:
        return f"; first give {plugged[0].name} an IPv4 address, it has none."
    return "."


def _names(netdevs: tuple[NetDev, ...]) -> str:
    return ", ".join(netdev.name for netdev in netdevs)
