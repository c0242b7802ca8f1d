"""Would this Spark's packet filters drop what the set sends over the cable?"""

from __future__ import annotations

import errno
import ipaddress
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from glm_spark.fabric.firewall import Chain, Filters, Packet, dropped_by, forward_drops
from glm_spark.fabric.inventory import NetDev
from glm_spark.fabric.oneshot import ask_child
from glm_spark.fabric.selection import fabric_netdevs, interfaces
from glm_spark.finding import Finding, Severity
from glm_spark.preflight.context import Check, Context
from glm_spark.weights import pins

ROCE_PORT = 4791  # RoCE v2's UDP port; an adapter takes it before the kernel, soft-RoCE after its filters
EPHEMERAL = 40000  # stands for the ports that NCCL and the ranks take as they come
UFW = Path("/etc/ufw/ufw.conf")
BRIDGE_FILTERED = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
_DEADLINE = 4.0


@dataclass(frozen=True, slots=True)
class Need:
    """What must come in over the cable."""

    protocol: Literal["tcp", "udp"]
    port: int
    what: str


async def run(context: Context) -> Iterable[Finding]:
    if context.inventory is None or not fabric_netdevs(context.config, context.inventory):
        return ()
    try:
        filters = Filters.model_validate(await ask_child("filters", deadline=_DEADLINE))
    except TimeoutError:
        return (_unread(context, f"no answer within {_DEADLINE:g} s", Severity.UNKNOWN),)
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EACCES):
            # Nothing is concluded: what the path probes and exchanges find is measured.
            return (_unread(context, "only root may read the packet filters", Severity.NOTE),) if ufw_on() else ()
        return (_unread(context, error.strerror or str(error), Severity.UNKNOWN),)
    return (*judge(context, filters), *bridged(context, filters))


def needs(context: Context) -> tuple[Need, ...]:
    config = context.config
    found = [
        Need("tcp", config.control.port, "the session between the Sparks"),
        Need("udp", config.control.port, "path probes"),
    ]
    if config.size == 2:
        found.append(Need("tcp", EPHEMERAL, "NCCL's first connections, on ports above 32768"))
    if context.leads:
        found.append(Need("tcp", config.engine.master_port, "the ranks' rendezvous"))
    elif any(not pin.path for pin in pins.wanted(config)):
        found.append(Need("tcp", config.weights.port, "weights from the leader"))
    inventory = context.inventory
    if inventory is not None and config.fabric.transport == "roce" and any(one.software for one in inventory.devices):
        found.append(Need("udp", ROCE_PORT, "RoCE"))
    return tuple(found)


def judge(context: Context, filters: Filters) -> Iterator[Finding]:
    """Pure but for ufw.conf: one finding a netdev and chain, with everything that it drops."""
    if context.inventory is None:
        return
    for netdev in fabric_netdevs(context.config, context.inventory):
        dropped: dict[Chain, list[Need]] = {}
        for need in needs(context):
            for source in _sources(context, netdev):
                chain = dropped_by(filters, Packet(netdev.name, netdev.index, source, need.protocol, need.port))
                if chain is not None and need not in dropped.setdefault(chain, []):
                    dropped[chain].append(need)
        for chain, lost in dropped.items():
            yield _dropped(context, netdev, chain, lost)


def _sources(context: Context, netdev: NetDev) -> list[str]:
    """A peer's address for each subnet of the netdev: one in the file, else any other in the subnet."""
    named = {node.address for node in context.others}
    found = []
    for interface in interfaces(netdev, context.config.fabric.allow_link_local):
        known = [address for address in named if ipaddress.IPv4Address(address) in interface.network]
        others = (str(host) for host in interface.network.hosts() if host != interface.ip)
        found.append(known[0] if known else next(others, ""))
    return [source for source in found if source]


def _dropped(context: Context, netdev: NetDev, chain: Chain, lost: list[Need]) -> Finding:
    what = ", ".join(f"{need.protocol.upper()} {_port(need)} ({need.what})" for need in lost)
    by = "its policy" if chain.drops else "a rule"
    ours = f'nft insert rule {chain.family} {chain.table} {chain.name} iifname "{netdev.name}" accept'
    fix = f"ufw allow in on {netdev.name}" if ufw_on() else ours
    return context.finding(
        "fabric.firewall",
        Severity.WARNING,
        f"firewall on {netdev.name}",
        measured=f"{by} in chain {chain.family} {chain.table} {chain.name} drops {what}",
        wanted="everything let in that comes over the cable",
        fix=f"Run {fix} (and make it last); the cable leads to the other Spark alone.",
    )


def _port(need: Need) -> str:
    return "above 32768" if need.port == EPHEMERAL else str(need.port)


def bridged(context: Context, filters: Filters) -> Iterator[Finding]:
    """A netdev of the cable in a bridge: then what it carries also goes through the chains of forwarded packets."""
    chain = forward_drops(filters)
    if context.inventory is None or chain is None or not _bridge_filtered():
        return
    for netdev in fabric_netdevs(context.config, context.inventory):
        if netdev.master:
            yield context.finding(
                "fabric.forward-dropped",
                Severity.WARNING,
                netdev.name,
                measured=f"it belongs to the bridge {netdev.master}, and chain {chain.family} {chain.table} "
                f"{chain.name} drops by its policy what bridges carry (Docker sets it so)",
                wanted="a netdev of its own",
                fix=f"Take {netdev.name} out of {netdev.master} and give it its address itself.",
            )


def ufw_on() -> bool:
    try:
        return re.search(r"(?m)^\s*ENABLED\s*=\s*yes", UFW.read_text(encoding="utf-8")) is not None
    except (OSError, UnicodeDecodeError):
        return False


def _bridge_filtered() -> bool:
    try:
        return BRIDGE_FILTERED.read_text(encoding="ascii").strip() == "1"
    except OSError:
        return False


def _unread(context: Context, measured: str, severity: Severity) -> Finding:
    return context.finding(
        "fabric.firewall-unread",
        severity,
        "firewall" + (" (UFW is on)" if ufw_on() else ""),
        measured=measured,
        wanted="everything let in that comes over the cable",
        fix="As root: glm-spark check. With UFW: ufw allow in on each netdev of the cable.",
    )


CHECK = Check(
    id="firewall",
    measures="nftables' rules for packets that come in over the cable, and Docker's policy for bridged ones",
    wants="none of the set's packets dropped",
    advice="Let in what comes over the cable.",
    run=run,
    deadline=_DEADLINE + 2.0,
)
