"""Is the MTU of the cable what it should be, here and at the other end?"""

from __future__ import annotations

from collections.abc import Iterator

from glm_spark.fabric.links import find
from glm_spark.fabric.selection import fabric_netdevs, interfaces
from glm_spark.finding import Finding, Severity
from glm_spark.preflight.context import Check, Context


def run(context: Context) -> Iterator[Finding]:
    config, inventory = context.config, context.inventory
    if inventory is None:
        return
    for netdev in fabric_netdevs(config, inventory):
        addressed = any(interfaces(netdev, config.fabric.allow_link_local))
        if netdev.carrier and addressed and netdev.mtu < config.fabric.mtu:
            yield context.finding(
                "fabric.mtu-low",
                Severity.WARNING,
                netdev.name,
                measured=f"MTU {netdev.mtu}",
                wanted=f"{config.fabric.mtu} (fabric.mtu)",
                fix=f"Set the MTU of {netdev.name} to {config.fabric.mtu}, and that of the other end too.",
            )
    if context.peers:
        found = find(config, {**context.peers, context.me: inventory})
        yield from (finding for finding in found.findings if finding.code == "fabric.mtu-differs")


CHECK = Check(
    id="mtu",
    measures="the MTU of the cable's netdevs, and of the other ends where they are known",
    wants="fabric.mtu at both ends",
    advice="Set it at both ends; a firmware update may have put it back to 1500.",
    run=run,
)
