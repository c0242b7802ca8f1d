"""Are the ports free that this Spark is going to listen on?"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass

from glm_spark.fabric.selection import fabric_netdevs
from glm_spark.finding import Finding, Severity
from glm_spark.preflight import holders
from glm_spark.preflight.context import Check, Context


@dataclass(frozen=True, slots=True)
class Wanted:
    """A port to listen on, its key in the file, and on which addresses ("0.0.0.0" for all)."""

    port: int
    key: str
    addresses: frozenset[str]


def wanted(context: Context) -> tuple[Wanted, ...]:
    config, inventory = context.config, context.inventory
    cable = set()
    if inventory is not None:
        cable = {text.split("/")[0] for netdev in fabric_netdevs(config, inventory) for text in netdev.addresses}
    ports = [Wanted(config.control.port, "control.port", frozenset({"127.0.0.1", *cable}))]
    if not context.leads and cable:
        ports.append(Wanted(config.weights.port, "weights.port", frozenset(cable)))
    if context.leads:
        ports += [
            Wanted(config.api.port, "api.port", frozenset({config.api.host})),
            Wanted(config.engine.http_port, "engine.http_port", frozenset({"127.0.0.1"})),
            Wanted(config.engine.master_port, "engine.master_port", frozenset({"0.0.0.0"})),
        ]
    return tuple(ports)


def run(context: Context) -> Iterator[Finding]:
    listeners = holders.listeners()
    for need in wanted(context):
        busy = [one for one in listeners if one.port == need.port and _meet(one.address, need.addresses)]
        owners = holders.owners({one.inode for one in busy})
        foreign = [one for one in busy if not _ours(context, need, owners.get(one.inode))]
        if foreign:
            owner = owners.get(foreign[0].inode)
            who = f"{owner.program} (pid {owner.pid})" if owner else "a program that only root can see"
            what = f"End {owner.program}" if owner else "Run this as root to see which, end it"
            yield context.finding(
                "port.busy",
                Severity.ERROR,
                f"port {need.port} ({need.key})",
                measured=f"{who} listens on {foreign[0].address}:{need.port}",
                wanted="a free port",
                fix=f"{what}, or set {need.key} to another port on all Sparks.",
            )


def _ours(context: Context, need: Wanted, owner: holders.Holder | None) -> bool:
    """The daemon's own port; and, when a person asks beside a running set, that of its daemon or its rank."""
    if owner is None:
        return False
    daemon = need.key in ("control.port", "api.port", "weights.port")
    if owner.me:
        return daemon
    if context.moment != "check":
        return False
    return (daemon and owner.daemon) or (not daemon and owner.cluster == context.config.cluster.name)


def _meet(address: str, ours: frozenset[str]) -> bool:
    """Would listening on any of `ours` collide with a listener on `address`?"""
    there = ipaddress.ip_address(address)
    if there.is_unspecified:
        return True
    return any(ipaddress.ip_address(one).is_unspecified or ipaddress.ip_address(one) == there for one in ours)


CHECK = Check(
    id="ports",
    measures="who listens on control.port; on a worker also on weights.port, on the leader on api.port, "
    "engine.http_port and engine.master_port",
    wants="nobody else",
    advice="End the program that is named, or choose another port.",
    run=run,
)
