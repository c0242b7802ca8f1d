"""Which rails join the Sparks, from what all of them have; and what each Spark makes of them. Pure.

Nothing is remembered between two starts. What the Sparks agree on is pairs of addresses in one order
(`Link.rails`); device names and GID indexes are looked up by each Spark for itself.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

from glm_spark.config.model import Config
from glm_spark.engine.spec import Link, LocalRail
from glm_spark.fabric.dial import Dial, dial
from glm_spark.fabric.ends import End, addresses_twice, end_fault, ends_of, gid_of
from glm_spark.fabric.inventory import Inventory
from glm_spark.fabric.selection import fabric_netdevs, rail_key
from glm_spark.fabric.told import firmware_differs, link_status, mirrored, missing_edge, unused_netdevs
from glm_spark.finding import Finding, Severity

__all__ = [
    "Dial",
    "Found",
    "Unresolved",
    "bootstrap_netdev",
    "dial",
    "fabric_netdevs",
    "find",
    "link_status",
    "local_rails",
    "master_address",
]


@dataclass(frozen=True, slots=True)
class Found:
    """The links in rank order of their ends. Any finding of severity error means that the set cannot start."""

    links: tuple[Link, ...]
    findings: tuple[Finding, ...]


class Unresolved(LookupError):
    """An address or netdev that the links do not give; `finding` says why."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(str(finding))
        self.finding = finding


def find(config: Config, inventories: Mapping[str, Inventory]) -> Found:
    """The rails between every two Sparks of the file, from one reading of each.

    Two netdevs make a rail when their addresses share a subnet. Where several of each Spark do (the twins of
    one port in one subnet), they are paired in `rail_key` order, so that left meets right whatever the ports
    are called. A rail with a fault at one end is left out with a warning, which is an error when none is left.
    """
    findings: list[Finding] = []
    links: list[Link] = []
    known = [node.name for node in config.node if node.name in inventories]
    findings.extend(_unread(name) for name in (node.name for node in config.node) if name not in inventories)
    ends = {name: ends_of(config, name, inventories[name]) for name in known}
    twice = addresses_twice(ends)
    findings.extend(twice.values())
    shared = _shared_by_three(ends)
    findings.extend(_shared_finding(network, ends) for network in shared)
    for a, b in combinations(known, 2):
        usable = {
            name: [end for end in ends[name] if end.network not in shared and end.address not in twice]
            for name in (a, b)
        }
        pairs, told = _pair(config, inventories, usable[a], usable[b])
        findings.extend(told)
        if pairs:
            links.append(Link(a=a, b=b, rails=tuple((one.address, other.address) for one, other in pairs)))
        elif not any(finding.severity is Severity.ERROR for finding in told) and not shared and not twice:
            findings.append(missing_edge(config, a, inventories[a], b, inventories[b]))
    findings.extend(mirrored(config, inventories, tuple(links)))
    findings.extend(firmware_differs(config, inventories))
    for name in known:
        findings.extend(unused_netdevs(config, name, inventories[name], tuple(links)))
    return Found(tuple(links), tuple(dict.fromkeys(findings)))


def _pair(
    config: Config, inventories: Mapping[str, Inventory], a: list[End], b: list[End]
) -> tuple[list[tuple[End, End]], list[Finding]]:
    """The rails of one link in the order all ranks use, and what was left out."""
    wanted: list[tuple[End, End]] = []
    faults: list[tuple[End, End, str]] = []
    used: set[tuple[str, str]] = set()
    for network in dict.fromkeys(end.network for end in a):
        sides = [[end for end in side if end.network == network] for side in (a, b)]
        if not all(sides):
            continue
        sound = []
        for side in sides:
            keep = []
            for end in side:
                if (end.node, end.netdev.name) in used:
                    continue
                if end_fault(config, inventories[end.node], end, Severity.WARNING):
                    faults.append((end, end, "end"))
                else:
                    keep.append(end)
            sound.append(keep)
        for one, other in zip(*sound, strict=False):
            used |= {(one.node, one.netdev.name), (other.node, other.netdev.name)}
            if one.netdev.mtu != other.netdev.mtu:
                faults.append((one, other, "mtu"))
            else:
                wanted.append((one, other))
    wanted.sort(key=lambda pair: (rail_key(pair[0].netdev), pair[0].address))
    severity = Severity.WARNING if wanted else Severity.ERROR
    told: list[Finding] = []
    for one, other, kind in faults:
        finding = (
            _mtu_finding(config, one, other, severity)
            if kind == "mtu"
            else end_fault(config, inventories[one.node], one, severity)
        )
        if finding is not None:
            told.append(finding)
    return wanted, told


def _shared_by_three(ends: Mapping[str, list[End]]) -> list[ipaddress.IPv4Network]:
    """Subnets that three Sparks have on their cables: which cable leads where cannot be told from them."""
    owners: dict[ipaddress.IPv4Network, set[str]] = {}
    for name, those in ends.items():
        for end in those:
            owners.setdefault(end.network, set()).add(name)
    return sorted(network for network, names in owners.items() if len(names) > 2)


def _shared_finding(network: ipaddress.IPv4Network, ends: Mapping[str, list[End]]) -> Finding:
    where = [
        f"{end.node} {end.netdev.name} {end.address}"
        for those in ends.values()
        for end in those
        if end.network == network
    ]
    return Finding(
        code="fabric.subnet-shared",
        severity=Severity.ERROR,
        node=next(iter(ends)),
        subject=f"subnet {network}",
        measured="all three Sparks have addresses in it, as on a switch: " + ", ".join(where),
        wanted="a cable between every two Sparks, each with a subnet of its own (three Sparks run as a triangle)",
        fix="Cable port 0 of each Spark to port 1 of the next and give each of the three cables a subnet of its own, "
        "for instance 192.168.101.0/24, 192.168.102.0/24 and 192.168.103.0/24. A switch is not used: which netdev "
        "faces which Spark cannot be told on it.",
    )


def _mtu_finding(config: Config, one: End, other: End, severity: Severity) -> Finding:
    low, high = sorted((one, other), key=lambda end: end.netdev.mtu)
    return Finding(
        code="fabric.mtu-differs",
        severity=severity,
        node=low.node,
        subject=f"{low.netdev.name} ({low.address})",
        measured=f"MTU {low.netdev.mtu}, while {high.node} has {high.netdev.mtu} on {high.netdev.name}",
        wanted=f"{config.fabric.mtu} at both ends",
        fix=f"Set the MTU of {low.netdev.name} on {low.node} and of {high.netdev.name} on {high.node} to "
        f"{config.fabric.mtu}. Small messages pass as it is, large ones fail.",
    )


def _unread(name: str) -> Finding:
    return Finding(
        code="fabric.not-read",
        severity=Severity.UNKNOWN,
        node=name,
        subject="cable",
        measured="its netdevs have not been read",
        wanted="a reading from every Spark",
        fix=f"See that glm-spark runs on {name} and that it can be reached.",
    )


def local_rails(
    config: Config, me: str, inventory: Inventory, links: tuple[Link, ...]
) -> tuple[tuple[LocalRail, ...], tuple[Finding, ...]]:
    """The agreed rails as this Spark's own netdevs, devices and GID indexes, in the agreed order.

    An address that this Spark does not have on its cable, or that has no device or RoCE v2 GID, is refused
    with an error: an empty or borrowed name is never passed on.
    """
    rails: list[LocalRail] = []
    findings: list[Finding] = []
    ends = {end.address: end for end in ends_of(config, me, inventory)}
    for link in links:
        if me not in (link.a, link.b):
            continue
        for first, second in link.rails:
            mine, theirs = (first, second) if me == link.a else (second, first)
            peer = link.b if me == link.a else link.a
            end = ends.get(mine)
            fault = (
                _not_here(config, me, inventory, mine, peer)
                if end is None
                else end_fault(config, inventory, end, Severity.ERROR)
            )
            if end is None or fault is not None:
                findings.extend([fault] if fault is not None else [])
                continue
            rails.append(_local(config, inventory, end, peer, theirs))
    twice = {rail.netdev for rail in rails if sum(other.netdev == rail.netdev for other in rails) > 1}
    findings.extend(_twice(me, netdev) for netdev in sorted(twice))
    return tuple(rail for rail in rails if rail.netdev not in twice), tuple(findings)


def _local(config: Config, inventory: Inventory, end: End, peer: str, theirs: str) -> LocalRail:
    name = end.netdev.name
    rail = LocalRail(peer=peer, netdev=name, address=end.address, peer_address=theirs, mtu=end.netdev.mtu)
    device, gid = inventory.device_on(name), gid_of(inventory, name, end.address)
    if config.fabric.transport != "roce" or device is None or gid is None:
        return rail
    return rail.model_copy(update={"device": device.name, "gid_index": gid.index})


def _not_here(config: Config, me: str, inventory: Inventory, address: str, peer: str) -> Finding:
    owner = inventory.netdev_with(address)
    have = [f"{end.address} on {end.netdev.name}" for end in ends_of(config, me, inventory)]
    return Finding(
        code="fabric.rail-not-here",
        severity=Severity.ERROR,
        node=me,
        subject=f"rail to {peer} from {address}",
        measured=f"that address is on {owner.name}, which is not the cable" if owner else "no netdev has that address",
        wanted="an address on this Spark's cable" + (f": {', '.join(have)}" if have else ""),
        fix="The address was there when the links were read: see what removed it, then restart the set.",
    )


def _twice(me: str, netdev: str) -> Finding:
    return Finding(
        code="fabric.netdev-twice",
        severity=Severity.ERROR,
        node=me,
        subject=netdev,
        measured="more than one rail was agreed for it",
        wanted="one rail a netdev",
        fix="Give each netdev one address and each cable its own subnet.",
    )


def master_address(config: Config, me: str, links: tuple[Link, ...], inventory: Inventory) -> str:
    """The rendezvous address for this rank (the engine's --master).

    Above rank 0: the leader's address on this Spark's own link. Rank 0: its own, on its first rail with two
    Sparks and on the LAN with three. Raises Unresolved.
    """
    leader = config.leader.name
    if me == leader and config.size > 2:
        return _lan_address(config, me, inventory)
    for link in links:
        if leader in (link.a, link.b) and me in (link.a, link.b) and link.rails:
            return link.rails[0][0 if link.a == leader else 1]
    raise Unresolved(
        Finding(
            code="fabric.no-link",
            severity=Severity.ERROR,
            node=me,
            subject=f"cable to {leader}" if me != leader else "cable",
            measured="no rail was agreed",
            wanted=f"a rail that joins {me} and {leader}" if me != leader else "a rail to a worker",
            fix="Run glm-spark check --cluster and mend the cable it names.",
        )
    )


def bootstrap_netdev(config: Config, me: str, inventory: Inventory, rails: tuple[LocalRail, ...]) -> str:
    """The netdev of NCCL's bootstrap sockets: the first rail's with two Sparks, the LAN's with three.

    Raises Unresolved.
    """
    if config.size > 2:
        netdev = inventory.netdev_with(_lan_address(config, me, inventory))
        if netdev is not None:
            return netdev.name
    elif rails:
        return rails[0].netdev
    raise Unresolved(
        Finding(
            code="fabric.no-bootstrap",
            severity=Severity.ERROR,
            node=me,
            subject="netdev for NCCL's first connection",
            measured="none: no rail on the cable" if config.size == 2 else "no netdev has this Spark's lan_address",
            wanted="the first rail's netdev" if config.size == 2 else "the netdev of its LAN address",
            fix="Run glm-spark check and mend what it names.",
        )
    )


def _lan_address(config: Config, me: str, inventory: Inventory) -> str:
    named = config.node[config.rank_of(me)].lan_address
    if named or inventory.default_address:
        return named or inventory.default_address
    raise Unresolved(
        Finding(
            code="fabric.no-lan-address",
            severity=Severity.ERROR,
            node=me,
            subject="LAN",
            measured="no default route, and the configuration gives no lan_address",
            wanted="a LAN address: with three Sparks NCCL's first connection runs over the LAN",
            fix=f"Connect the LAN port, or set lan_address under [[node]] {me}.",
        )
    )
