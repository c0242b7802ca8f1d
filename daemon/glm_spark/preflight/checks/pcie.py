"""Is the PCIe link of the cable's functions as fast as the cable?"""

from __future__ import annotations

from collections.abc import Iterator

from glm_spark.fabric.selection import fabric_netdevs
from glm_spark.finding import Finding, Severity
from glm_spark.preflight.context import Check, Context

# A function of a Spark's port is PCIe Gen5 x4, about 112 Gb/s; one that trained narrower or slower has half or less.
WANTED_GBPS = 100.0


def run(context: Context) -> Iterator[Finding]:
    inventory = context.inventory
    if inventory is None:
        return
    for netdev in fabric_netdevs(context.config, inventory):
        if not netdev.carrier or netdev.pcie is None or netdev.speed is None:
            continue
        wanted = min(WANTED_GBPS, netdev.speed / 1000)
        if netdev.pcie.gbps < wanted:
            device = inventory.device_on(netdev.name)
            firmware = f", firmware {device.firmware}" if device is not None and device.firmware else ""
            yield context.finding(
                "fabric.pcie-slow",
                Severity.WARNING,
                netdev.name,
                measured=f"its PCIe link ({netdev.pci}) runs {netdev.pcie}, about {netdev.pcie.gbps:.0f} Gb/s"
                f" ({netdev.driver or 'driver unknown'}{firmware})",
                wanted=f"{wanted:.0f} Gb/s or more (x4 at 32 GT/s)",
                fix="Switch the Spark off, unplug it for a minute and start it again; if it stays, update the "
                "adapter's firmware (fwupdmgr update).",
            )


CHECK = Check(
    id="pcie",
    measures="PCIe link width and speed of the cable's functions",
    wants="what the port carries",
    advice="A power cycle trains the link anew.",
    run=run,
)
