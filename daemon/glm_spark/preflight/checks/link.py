"""Is a cable plugged in?"""

from __future__ import annotations

from collections.abc import Iterator

from glm_spark.fabric.selection import fabric_netdevs, port_of
from glm_spark.finding import Finding, Severity
from glm_spark.preflight.context import Check, Context


def run(context: Context) -> Iterator[Finding]:
    inventory = context.inventory
    if inventory is None:
        return
    cables = fabric_netdevs(context.config, inventory)
    if not cables:
        if context.config.fabric.transport == "roce" and not context.config.fabric.netdevs:
            return  # the check "roce" says it
        named = ", ".join(context.config.fabric.netdevs)
        yield context.finding(
            "fabric.no-netdev",
            Severity.ERROR,
            "cable",
            measured=f"no netdev is named {named}" if named else "no netdev but loopback and the LAN's",
            wanted="a netdev that is the cable",
            fix=f"Correct fabric.netdevs; there are: {', '.join(netdev.name for netdev in inventory.netdevs)}.",
        )
        return
    up = [netdev for netdev in cables if netdev.carrier]
    if not up:
        yield context.finding(
            "fabric.link-down",
            Severity.ERROR,
            ", ".join(netdev.name for netdev in cables),
            measured="no carrier",
            wanted="a cable in at both ends, and the netdev up",
            fix="Plug the cable in at both ends, and see that the other Spark is on.",
        )
        return
    ports = {port_of(netdev) for netdev in up} - {""}
    for netdev in cables:
        if not netdev.carrier and port_of(netdev) in ports:
            yield context.finding(
                "fabric.twin-down",
                Severity.WARNING,
                netdev.name,
                measured="no carrier, while the other netdev of the same port has one",
                wanted="both netdevs of the port up: each carries half of its bandwidth",
                fix=f"Bring {netdev.name} up (its connection may be set not to start by itself).",
            )


CHECK = Check(
    id="link",
    measures="the carrier of the cable's netdevs",
    wants="a carrier on at least one port, on both netdevs of it",
    advice="Plug the cable in at both ends.",
    run=run,
)
