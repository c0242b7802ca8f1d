"""From a layout to the lines of `ip -batch` that make it. Pure.

The cables lie in a namespace of their own, the room: each netdev of a Spark is one end of a veth pair
whose other end lies in the room, and a bridge there joins the two ends of a rail. Taking a room end down
is pulling the plug (the Spark sees its carrier go); taking it off the bridge loses every frame without
a word (the carrier stays).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.sparks.layout import LAN_GATEWAY, TWINS, Cable, Layout, SparkPlan, Twin

LAN_BRIDGE = "lan"

# Without these two, both twins answer ARP for each other (Linux answers on any netdev for any local
# address) and a rail's frames leave on the other rail.
SYSCTLS: Mapping[str, str] = {
    "net/ipv4/conf/all/arp_ignore": "1",
    "net/ipv4/conf/default/arp_ignore": "1",
    "net/ipv4/conf/all/arp_announce": "2",
    "net/ipv4/conf/default/arp_announce": "2",
    # A user without rights may ping and probe as on a stock DGX OS.
    "net/ipv4/ping_group_range": "0 0",
}


def room_lines(layout: Layout, holders: Mapping[int, int]) -> list[str]:
    """The room: bridges, and the veth pairs with their far ends in the Sparks.

    `holders` maps a Spark's number to the process id that holds its namespaces."""
    lines = ["link set lo up", *_bridge(LAN_BRIDGE), f"address add {LAN_GATEWAY} dev {LAN_BRIDGE}"]
    for cable in layout.cables:
        for twin in TWINS:
            lines += _bridge(cable.bridge(twin))
    for spark in layout.sparks:
        for netdev in spark.netdevs:
            lines.append(
                f"link add {netdev.room_end} mtu {netdev.mtu} type veth peer name {netdev.name} "
                f"address {netdev.mac} mtu {netdev.mtu} netns {holders[spark.number]}"
            )
        lines += [
            f"link set {spark.lan.room_end} master {LAN_BRIDGE}",
            f"link set {spark.lan.room_end} up",
        ]
    for cable in layout.cables:
        for twin in TWINS:
            lines += joined(layout, cable, twin) + plugged(layout, cable, twin)
    return lines


def spark_lines(spark: SparkPlan) -> list[str]:
    """One Spark's own side: addresses, links up, the default route through the LAN."""
    lines = ["link set lo up"]
    for netdev in spark.netdevs:
        if netdev.address is not None:
            lines.append(f"address add {netdev.address} brd + dev {netdev.name}")
        lines.append(f"link set {netdev.name} up")
    lines.append(f"route add default via {LAN_GATEWAY.ip} dev {spark.lan.name}")
    return lines


def plugged(layout: Layout, cable: Cable, twin: Twin) -> list[str]:
    return [f"link set {end.room_end} up" for end in layout.ends(cable, twin)]


def cut(layout: Layout, cable: Cable, twin: Twin) -> list[str]:
    return [f"link set {end.room_end} down" for end in layout.ends(cable, twin)]


def joined(layout: Layout, cable: Cable, twin: Twin) -> list[str]:
    bridge = cable.bridge(twin)
    return [f"link set {end.room_end} master {bridge}" for end in layout.ends(cable, twin)]


def parted(layout: Layout, cable: Cable, twin: Twin) -> list[str]:
    return [f"link set {end.room_end} nomaster" for end in layout.ends(cable, twin)]


def chosen(twin: Twin | None) -> Sequence[Twin]:
    """Both rails of a cable, or the one named."""
    return TWINS if twin is None else (twin,)


def _bridge(name: str) -> list[str]:
    # No snooping and no spanning tree: a cable forwards from the first frame on.
    return [
        f"link add {name} type bridge stp_state 0 forward_delay 0 mcast_snooping 0",
        f"link set {name} up",
    ]
