"""Is there a RoCE device where transport = "roce" needs one?"""

from __future__ import annotations

from collections.abc import Iterator

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


CHECK = Check(
    id="roce",
    measures="the RoCE devices and the state of their first ports, over verbs",
    wants='at least one ACTIVE port with transport = "roce"',
    advice='Load mlx5_ib, or use transport = "socket".',
    run=run,
)
