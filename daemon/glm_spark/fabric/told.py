"""The fabric as a person is told about it: a missing cable, a netdev that could carry more, the status. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Literal

from glm_spark.config.model import Config
from glm_spark.engine.spec import Link
from glm_spark.fabric.ends import gid_of
from glm_spark.fabric.inventory import Inventory, NetDev
from glm_spark.fabric.selection import LINK_LOCAL, fabric_netdevs, interfaces, port_of
from glm_spark.finding import Finding, Severity
from glm_spark.status import LinkStatus, RailEnd, RailStatus


def missing_edge(config: Config, a: str, of_a: Inventory, b: str, of_b: Inventory) -> Finding:
    """Two Sparks that nothing joins, with what each of them has."""
    return Finding(
        code="fabric.no-link",
        severity=Severity.ERROR,
        node=a,
        subject=f"cable between {a} and {b}",
        measured=f"no common subnet: {a} has {_have(config, of_a)}; {b} has {_have(config, of_b)}",
        wanted="one subnet on both ends of a cable",
        fix=_mend(config, a, of_a, b, of_b),
    )


def _have(config: Config, inventory: Inventory) -> str:
    """`enp1s0f0np0 192.168.100.1/24, enP2p1s0f0np0 up without IPv4`."""
    told = []
    for netdev in fabric_netdevs(config, inventory):
        state = "" if netdev.carrier else " (no carrier)"
        told.append(f"{netdev.name} {', '.join(netdev.addresses) or 'without an IPv4 address'}{state}")
    if told:
        return ", ".join(told)
    return "no RoCE netdev" if config.fabric.transport == "roce" else "no netdev that could be the cable"


def _mend(config: Config, a: str, of_a: Inventory, b: str, of_b: Inventory) -> str:
    for name, inventory in ((a, of_a), (b, of_b)):
        cables = fabric_netdevs(config, inventory)
        if not cables:
            other = 'see that its RoCE driver is loaded, or set fabric.transport = "socket"'
            return f"On {name}: " + (other if config.fabric.transport == "roce" else "connect the cable") + "."
        if not any(netdev.carrier for netdev in cables):
            return f"Plug the cable of {name} in; none of its ports has a carrier."
        bare = [netdev for netdev in cables if netdev.carrier and not netdev.addresses]
        if bare:
            return f"Give {bare[0].name} on {name} a fixed IPv4 address in one subnet with the other end."
    return f"Give the cable's netdevs on {a} and {b} fixed IPv4 addresses in one subnet."


def mirrored(config: Config, inventories: Mapping[str, Inventory], links: tuple[Link, ...]) -> list[Finding]:
    """A triangle cabled another way than port 0 of each Spark to port 1 of the next one in rank order.

    That is the recipe's (MiaAI v1.10, three Sparks), the only one it was measured with.
    """
    if config.size != 3 or len(links) != 3:
        return []
    ports = {(name, other): port for link in links for name, other, port in _port_pairs(inventories, link)}
    ring = [node.name for node in config.node]
    nexts = [(ring[rank], ring[(rank + 1) % 3]) for rank in range(3)]
    if "" in ports.values() or all((ports[one], ports[one[::-1]]) == ("0", "1") for one in nexts):
        return []
    wrong_way = all((ports[one], ports[one[::-1]]) == ("1", "0") for one in nexts)
    told = ", ".join(f"{a} port {ports[(a, b)]} to {b} port {ports[(b, a)]}" for a, b in nexts)
    mend = (
        f"Swap the [[node]] entries of {ring[1]} and {ring[2]} in the file on all Sparks, or turn the cables round."
        if wrong_way
        else "Move the plugs so."
    )
    return [
        Finding(
            code="fabric.triangle-mirrored",
            severity=Severity.NOTE,
            node=ring[0],
            subject="triangle of cables",
            measured=("mirrored: " if wrong_way else "") + told,
            wanted="port 0 of each Spark to port 1 of the next in rank order, as the recipe was measured",
            fix=mend,
        )
    ]


def _port_pairs(inventories: Mapping[str, Inventory], link: Link) -> list[tuple[str, str, str]]:
    """(Spark, other Spark, its port) for both ends of a link; the port is "" where nothing tells."""
    pairs = []
    for index, (name, other) in enumerate(((link.a, link.b), (link.b, link.a))):
        netdev = inventories[name].netdev_with(link.rails[0][index])
        pairs.append((name, other, port_of(netdev) if netdev else ""))
    return pairs


def firmware_differs(config: Config, inventories: Mapping[str, Inventory]) -> list[Finding]:
    """A note when the adapters of the cable have not the same firmware on all Sparks, or on one."""
    found: dict[str, list[str]] = {}
    for name, inventory in inventories.items():
        devices = (inventory.device_on(netdev.name) for netdev in fabric_netdevs(config, inventory))
        for version in sorted({device.firmware for device in devices if device is not None and device.firmware}):
            found.setdefault(version, []).append(name)
    if len(found) < 2:
        return []
    return [
        Finding(
            code="fabric.firmware-differs",
            severity=Severity.NOTE,
            node=next(iter(inventories)),
            subject="firmware of the RoCE adapters",
            measured="; ".join(f"{version} on {', '.join(names)}" for version, names in sorted(found.items())),
            wanted="the same on all Sparks",
            fix="Bring all to the newest: fwupdmgr update, then switch the Spark off and on.",
        )
    ]


def unused_netdevs(config: Config, me: str, inventory: Inventory, links: tuple[Link, ...]) -> list[Finding]:
    """Plugged netdevs of the cable that no rail uses: half the bandwidth of their port lies idle.

    With transport "socket" and no fabric.netdevs only the twin of a netdev in use is meant: any other may be
    something else than the cable.
    """
    addresses = {pair[i] for link in links for pair in link.rails for i in (0, 1) if (link.a, link.b)[i] == me}
    cables = fabric_netdevs(config, inventory)
    used = [netdev for netdev in cables if any(text.split("/")[0] in addresses for text in netdev.addresses)]
    ports = {port_of(netdev) for netdev in used if port_of(netdev)}
    sure = config.fabric.transport == "roce" or bool(config.fabric.netdevs)
    return [
        _unused(config, me, netdev, Severity.WARNING)
        for netdev in cables
        if netdev.carrier and netdev not in used and (sure or port_of(netdev) in ports)
    ]


def unaddressed(config: Config, me: str, inventory: Inventory) -> list[Finding]:
    """Plugged netdevs of the cable without an address that stays: an error when no other netdev has one."""
    cables = fabric_netdevs(config, inventory)
    sound = [netdev for netdev in cables if any(interfaces(netdev, config.fabric.allow_link_local))]
    ports = {port_of(netdev) for netdev in sound} - {""}
    sure = config.fabric.transport == "roce" or bool(config.fabric.netdevs) or not sound
    return [
        _unused(config, me, netdev, Severity.WARNING if sound else Severity.ERROR)
        for netdev in cables
        if netdev.carrier and netdev not in sound and (sure or port_of(netdev) in ports)
    ]


def _unused(config: Config, me: str, netdev: NetDev, severity: Severity) -> Finding:
    if not netdev.addresses:
        code, measured = "fabric.no-address", "carrier is up, but there is no IPv4 address"
    elif not list(interfaces(netdev, config.fabric.allow_link_local)):
        local = all(ipaddress.IPv4Interface(text).ip in LINK_LOCAL for text in netdev.addresses)
        code = "fabric.link-local" if local else "fabric.no-subnet"
        measured = f"only {', '.join(netdev.addresses)}" + (", which changes at reboots" if local else "")
    else:
        code, measured = (
            "fabric.netdev-unused",
            f"{', '.join(netdev.addresses)} makes no sound rail with any other Spark",
        )
    return Finding(
        code=code,
        severity=severity,
        node=me,
        subject=netdev.name,
        measured=measured,
        wanted="a fixed IPv4 address in one subnet with the other end of its cable",
        fix=f"Configure {netdev.name} with a fixed address (NetworkManager: ipv4.method manual; netplan and "
        "systemd-networkd: the address in their file)."
        + (" Until then the set runs with fewer rails." if severity is Severity.WARNING else ""),
    )


def link_status(
    config: Config, inventories: Mapping[str, Inventory], links: tuple[Link, ...]
) -> tuple[LinkStatus, ...]:
    """The links as /v1/status tells them; a rail is ok while both of its ends could carry it."""
    told = []
    for link in links:
        rails = []
        for first, second in link.rails:
            a, state_a = _rail_end(config, inventories.get(link.a), first)
            b, state_b = _rail_end(config, inventories.get(link.b), second)
            rails.append(RailStatus(a=a, b=b, state=_state(state_a, state_b)))
        told.append(LinkStatus(a=link.a, b=link.b, rails=tuple(rails)))
    return tuple(told)


def _state(a: bool | None, b: bool | None) -> Literal["ok", "down", "unknown"]:
    if a is False or b is False:
        return "down"
    return "unknown" if a is None or b is None else "ok"


def _rail_end(config: Config, inventory: Inventory | None, address: str) -> tuple[RailEnd, bool | None]:
    """An end and whether it could carry: None when it was not read."""
    if inventory is None:
        return RailEnd(netdev="", device=None, gid_index=None, address=address, mtu=None), None
    netdev = inventory.netdev_with(address)
    if netdev is None:
        return RailEnd(netdev="", device=None, gid_index=None, address=address, mtu=None), False
    device, gid = inventory.device_on(netdev.name), gid_of(inventory, netdev.name, address)
    if config.fabric.transport != "roce":
        device = gid = None
    end = RailEnd(
        netdev=netdev.name,
        device=device.name if device else None,
        gid_index=gid.index if gid else None,
        address=address,
        mtu=netdev.mtu,
    )
    sound = netdev.carrier
    if config.fabric.transport == "roce":
        sound = sound and device is not None and device.state == "ACTIVE" and gid is not None
    return end, sound
