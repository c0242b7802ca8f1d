"""Is there a RoCE device where transport = "roce" needs one?"""

from __future__ import annotations

from collections.abc import Iterator

from glm_spark.fabric.inventory import Inventory
from glm_spark.fabric.selection import fabric_netdevs, port_of
from glm_spark.finding import Finding, Severity
from glm_spark.preflight.context import Check, Context


def run(context: Context) -> Iterator[Finding]:
    inventory = context.inventory
    if context.config.fabric.transport != "roce" or inventory is None:
        return
    if not inventory.devices and any(finding.code == "fabric.verbs-failed" for finding in inventory.findings):
        return  # there is one, and the check "reading" says why it does not answer
    if not inventory.devices:
        yield context.finding(
            "fabric.no-roce-device",
            Severity.ERROR,
            "RoCE",
            measured="no RoCE device",
            wanted="the RoCE devices of the ConnectX-7 ports (rocep1s0f0, ...)",
            fix="See that the driver is loaded (modprobe mlx5_ib) and the adapter is there; without it set "
            'fabric.transport = "socket" on all Sparks, at about half the speed.',
        )
        return
    if not any(device.state == "ACTIVE" for device in inventory.devices):
        states = ", ".join(f"{device.name} {device.state}" for device in inventory.devices)
        yield context.finding(
            "fabric.port-not-active",
            Severity.ERROR,
            "RoCE",
            measured=f"no port is ACTIVE: {states}",
            wanted="an ACTIVE port on the cable",
            fix="Plug the cable in at both ends and bring its netdev up.",
        )
        return
    yield from _twins_without(context, inventory)


def _twins_without(context: Context, inventory: Inventory) -> Iterator[Finding]:
    """Netdevs of a port whose other netdev has a device: half of the port's bandwidth lies idle."""
    ports = {port_of(netdev) for netdev in fabric_netdevs(context.config, inventory)} - {""}
    for netdev in inventory.netdevs:
        if netdev.carrier and port_of(netdev) in ports and inventory.device_on(netdev.name) is None:
            yield context.finding(
                "fabric.no-roce-device",
                Severity.WARNING,
                netdev.name,
                measured="no RoCE device, while the other netdev of the same port has one",
                wanted="a RoCE device on both netdevs of the port",
                fix=f"See journalctl -k for {netdev.driver or 'its driver'}; a device that went away comes back when "
                "the Spark is switched off and on.",
            )


CHECK = Check(
    id="roce",
    measures="the RoCE devices and the state of their first ports, over verbs",
    wants='at least one ACTIVE port with transport = "roce"',
    advice='Load mlx5_ib, or use transport = "socket".',
    run=run,
)
