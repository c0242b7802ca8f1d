"""Does a packet of full size pass to each peer and back, unfragmented?"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from glm_spark.config import token
from glm_spark.fabric.dial import Dial, dial
from glm_spark.fabric.links import local_rails
from glm_spark.fabric.probe import (
    ProbeResult,
    one_way_finding,
    path_findings,
    probe,
    probe_key,
    wrong_netdev_finding,
)
from glm_spark.fabric.rails import fault_of
from glm_spark.finding import Finding, Severity
from glm_spark.preflight.aside import in_a_thread
from glm_spark.preflight.checks.route import targets
from glm_spark.preflight.context import Check, Context

PATIENT_ATTEMPTS, PATIENT_SECONDS = 2, 1.0


@dataclass(frozen=True, slots=True)
class Way:
    """A path to prove: to `peer`'s `address`, from `source` on `netdev`, with packets of `mtu` bytes."""

    peer: str
    netdev: str
    source: str
    address: str
    mtu: int


def ways(context: Context) -> tuple[Way, ...]:
    """Every rail where the links are known, else the route to each peer in the file."""
    inventory = context.inventory
    if inventory is None:
        return ()
    if context.links:
        rails, _ = local_rails(context.config, context.me, inventory, context.links)
        return tuple(Way(rail.peer, rail.netdev, rail.address, rail.peer_address, rail.mtu) for rail in rails)
    found = []
    for peer in targets(context):
        answer = dial(context.config, context.me, inventory, peer)
        netdev = inventory.netdev(answer.netdev) if isinstance(answer, Dial) else None
        if isinstance(answer, Dial) and netdev is not None:
            found.append(Way(peer.name, netdev.name, answer.source, answer.address, netdev.mtu))
    return tuple(found)


async def run(context: Context) -> Iterable[Finding]:
    key = await in_a_thread(lambda: _key(context), "token for path probes")
    if key is None:
        return ()
    port = context.config.control.port
    those = ways(context)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_probe(way, port, key), name=f"path {way.address}") for way in those]
    results = {way: task.result() for way, task in zip(those, tasks, strict=True)}
    return [finding for way in those for finding in _told(context, way, results)]


async def _probe(way: Way, port: int, key: bytes) -> ProbeResult:
    """Asked again with more patience where not all came back: a Spark that is held up answers late, and late is not
    lost. A rail that is left out for nothing costs half the bandwidth."""
    first = await probe(way.netdev, way.source, way.address, port, way.mtu, key)
    if first.sound or first.refused or first.own_short or first.peer_mtu:
        return first
    return await probe(way.netdev, way.source, way.address, port, way.mtu, key, PATIENT_ATTEMPTS, PATIENT_SECONDS)


def _told(context: Context, way: Way, results: dict[Way, ProbeResult]) -> tuple[Finding, ...]:
    """Silence on a rail is a fault of the rail when the peer's daemon is known to run: it answers on another, it asks
    here itself, or the set is about to start."""
    found = _verdict(context, way, results)
    # Before a start one bad rail among several is left out: which, all Sparks must agree on.
    if context.moment != "start" or not context.links:
        return found
    rail = (way.source, way.address)
    return tuple(fault_of(one, rail) if one.severity is Severity.ERROR else one for one in found)


def _verdict(context: Context, way: Way, results: dict[Way, ProbeResult]) -> tuple[Finding, ...]:
    elsewhere = any(other.peer == way.peer and result.largest_ok for other, result in results.items())
    if results[way].refused and elsewhere:
        # TCP gets through all the same.
        severity = Severity.ERROR if context.config.fabric.transport == "roce" else Severity.WARNING
        return (wrong_netdev_finding(context.me, way.peer, way.netdev, way.address, severity),)
    if results[way].silent and context.heard(way.address):
        return (one_way_finding(context.me, way.peer, way.netdev, way.address, context.config.control.port),)
    answering = context.moment == "start" or elsewhere
    return path_findings(context.me, way.peer, way.netdev, way.address, results[way], answering=answering)


def _key(context: Context) -> bytes | None:
    """The key of probes; None without a token, which the check "token" tells."""
    try:
        return probe_key(context.token or token.read(context.config, context.environ, context.me))
    except token.TokenFault:
        return None


CHECK = Check(
    id="path",
    measures="unfragmented packets as large as the netdev's MTU, to each peer and back, on each rail",
    wants="all of them come back",
    advice="Set the same MTU at both ends.",
    run=run,
    deadline=14.0,
)
