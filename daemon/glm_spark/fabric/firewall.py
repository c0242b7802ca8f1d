"""Would this Spark's packet filters drop a packet that comes in over the cable? Pure.

Follows what `fabric.filters` read. Where a step cannot be followed both ways are gone, so that only a packet that is
dropped on every way counts as dropped.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

Fate = Literal["accept", "drop", "next", "return"]

_TCP, _UDP = 6, 17
_DEEP = 16  # chains within chains; the kernel allows as many


class Chain(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    family: str
    table: str
    name: str
    hook: str  # "input", "forward", "other", "" for one that is jumped to
    priority: int
    drops: bool  # by its policy


class Rule(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    family: str
    table: str
    chain: str
    steps: tuple[tuple[Any, ...], ...]


class Filters(BaseModel):
    """What was read; `legacy` says that iptables-legacy has rules besides, which are not."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    chains: tuple[Chain, ...] = ()
    rules: tuple[Rule, ...] = ()
    legacy: bool = False


@dataclass(frozen=True, slots=True)
class Packet:
    """The first of a new connection: where it comes in, from whom, to which port."""

    netdev: str
    index: int
    source: str
    protocol: Literal["tcp", "udp"]
    port: int


def dropped_by(filters: Filters, packet: Packet) -> Chain | None:
    """The base chain on the way in that is sure to drop the packet, None when none is."""
    for chain in sorted((one for one in filters.chains if one.hook == "input"), key=lambda one: one.priority):
        if _through(filters, chain, packet, 0) == {"drop"}:
            return chain
    return None


def forward_drops(filters: Filters) -> Chain | None:
    """The chain that drops by its policy what is sent on through this Spark (Docker sets it so)."""
    return next((chain for chain in filters.chains if chain.hook == "forward" and chain.drops), None)


def _through(filters: Filters, chain: Chain, packet: Packet, depth: int) -> set[Fate]:
    fates: set[Fate] = {"next"}
    for rule in filters.rules:
        if (rule.family, rule.table, rule.chain) != (chain.family, chain.table, chain.name):
            continue
        if "next" not in fates:
            break
        fates = (fates - {"next"}) | _rule(filters, rule, packet, depth)
    if chain.hook:
        by_policy: Fate = "drop" if chain.drops else "accept"
        return {by_policy if fate in ("next", "return") else fate for fate in fates}
    return fates


def _rule(filters: Filters, rule: Rule, packet: Packet, depth: int) -> set[Fate]:
    sure = True
    for step in rule.steps:
        if step[0] == "verdict":
            fates = _verdict(filters, rule, step[1], step[2], packet, depth)
            return fates if sure else fates | {"next"}
        matches = _matches(step, packet)
        if matches is False:
            return {"next"}
        sure = sure and matches is True
    return {"next"}  # it counts or logs


def _verdict(filters: Filters, rule: Rule, told: str, name: str, packet: Packet, depth: int) -> set[Fate]:
    if told in ("jump", "goto"):
        key = (rule.family, rule.table, name)
        target = next((one for one in filters.chains if (one.family, one.table, one.name) == key), None)
        if target is None or depth >= _DEEP:
            return {"accept", "drop", "next"}
        fates = _through(filters, target, packet, depth + 1)
        after: Fate = "next" if told == "jump" else "return"
        return {after if fate in ("next", "return") else fate for fate in fates}
    if told == "unknown":
        return {"accept", "drop", "next"}
    known: dict[str, Fate] = {"accept": "accept", "drop": "drop", "return": "return", "continue": "next"}
    return {known[told]}


def _matches(step: tuple[Any, ...], packet: Packet) -> bool | None:
    """None: not known."""
    what, how, value = (*step, None, None)[:3]
    if what in ("always", "never"):
        return bool(what == "always")
    if what == "iifname":
        same = packet.netdev == value if step[3] else packet.netdev.startswith(str(value))
        return _compared(how, int(same), 1)
    if what == "saddr":
        mask = int(step[3], 16)
        source = int(ipaddress.IPv4Address(packet.source))
        return _compared(how, source & mask, int(str(value), 16) & mask)
    if what == "ports":
        return None if how != "eq" or int(str(value)) & 0xFFFF == packet.port else False  # from any port
    here = {
        "iif": packet.index,
        "l4proto": _TCP if packet.protocol == "tcp" else _UDP,
        "nfproto": 2,
        "dport": packet.port,
    }.get(what)
    return None if here is None or not isinstance(value, int) else _compared(how, here, value)


def _compared(how: str | None, here: int, value: int) -> bool | None:
    return {
        "eq": here == value,
        "neq": here != value,
        "lt": here < value,
        "lte": here <= value,
        "gt": here > value,
        "gte": here >= value,
    }.get(how or "")
