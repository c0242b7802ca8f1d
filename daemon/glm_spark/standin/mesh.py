"""The ranks' queue pairs: set up at the start, and one message each way over every one of them in every round.

Failures are told as the engine tells them. Small all-gathers over RoCE (TF_GLM_COMM=roce) end with an error within
TF_ROCE_WAIT_S. What NCCL carries has no limit: its proxy says what it saw, and the rank waits for ever.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from glm_spark.standin.console import nccl
from glm_spark.standin.failures import (
    NCCL,
    REG_MR,
    ROCE_SETUP,
    RegistrationFailed,
    RoceError,
    Unusable,
    out_of_step,
    roce_altered,
    roce_late,
    roce_write,
)
from glm_spark.standin.rendezvous import for_ever
from glm_spark.standin.roce import Failed, Port, message, pairs, sequence_of, setup_fault, timeout_exponent
from glm_spark.standin.transport import Transport

if TYPE_CHECKING:
    from glm_spark.standin.verbs import Channel, Device

LOOK_S = 0.001
EAGER_LOOKS = 20  # without a pause: a message usually is there at once

# Tells all ranks a value and returns every rank's, by rank.
Share = Callable[[str, Any], Awaitable[Mapping[int, Any]]]


@dataclass
class Found:
    """The devices that could be opened, and what is wrong with the others; both by name."""

    devices: dict[str, Device]
    faults: dict[str, str]

    def close(self) -> None:
        for device in self.devices.values():
            device.close()


def open_devices(names: Sequence[str], wanted_gid: str | None) -> Found:
    """Nothing is loaded for an empty list."""
    found = Found({}, {})
    if not names:
        return found
    from glm_spark.standin.verbs import Device

    for name in dict.fromkeys(names):
        try:
            found.devices[name] = Device(name, wanted_gid)
        except Unusable as error:
            found.faults[name] = str(error)
    return found


class Mesh:
    """One rank's queue pairs with all its peers."""

    def __init__(self, rank: int, channels: Sequence[Channel], over_roce: bool, wait_s: float) -> None:
        self._rank = rank
        self._channels = channels
        self._over_roce = over_roce
        self._wait_s = wait_s if over_roce else None

    async def gather(self, sequence: int, limited: bool) -> None:
        """One message to every peer over every rail, and theirs. Raises RoceError; may wait for ever over NCCL.

        `limited`: a late peer is waited for no longer than TF_ROCE_WAIT_S where the all-gather goes over RoCE.
        """
        for channel in self._channels:
            channel.send(message(self._rank, channel.place, sequence))
        waiting = list(self._channels)
        looks = 0
        try:
            async with asyncio.timeout(self._wait_s if limited else None):
                while waiting:
                    channel = waiting[looks % len(waiting)]
                    looks += 1
                    if channel.look():
                        self._check(channel, sequence)
                        waiting.remove(channel)
                    else:
                        await asyncio.sleep(LOOK_S if looks > EAGER_LOOKS else 0)
        except TimeoutError:
            raise RoceError(roce_late(sequence, waiting[0].peer, waiting[0].place)) from None
        except Failed as failed:
            await self._broken(sequence, channel, failed)

    async def poke(self, sequence: int) -> None:
        """Whether every path still answers, where a round waits for what goes over TCP. Raises RoceError."""
        for channel in self._channels:
            channel.poke()
        for channel in self._channels:
            try:
                while not channel.answered:
                    channel.look()
                    await asyncio.sleep(LOOK_S)
            except Failed as failed:
                await self._broken(sequence, channel, failed)

    def _check(self, channel: Channel, sequence: int) -> None:
        said = channel.hear()
        if sequence_of(said) != sequence:
            raise RoceError(out_of_step(channel.peer, sequence_of(said), sequence))
        if said != message(channel.peer, channel.their_place, sequence)[: len(said)]:
            raise RoceError(roce_altered(sequence, channel.peer, channel.place))

    async def _broken(self, sequence: int, channel: Channel, failed: Failed) -> None:
        if self._over_roce:
            text = roce_write(sequence, channel.peer, channel.place, str(failed), failed.vendor)
            raise RoceError(text) from None
        print(
            nccl(
                f"WARN NET/IB: Got completion from peer rank {channel.peer} with status={failed} ({failed.status}) "
                f"vendor_err={failed.vendor} hca {channel.device.port.device}"
            ),
            flush=True,
        )
        await for_ever()


async def join(
    place: tuple[int, int], transport: Transport, found: Found, seconds: tuple[float, float], share: Share
) -> Mesh | None:
    """Connects this rank's devices in the order of the list with those of all others; None when it has no rail.

    `place` is this rank and the number of ranks; `seconds` those of a write on a dead path and of the wait for a late
    peer. Every rank fails with the first rank's fault (RuntimeError), one that cannot register its memory alone.
    """
    rank, ranks = place
    over_roce, names = transport.gathers_over_roce, transport.rails
    fault = next((found.faults[name] for name in names if name in found.faults), "")
    mine = [found.devices[name] for name in names if name in found.devices]
    told = await share("devices", {"fault": fault, "ports": [asdict(device.port) for device in mine]})
    ports = {one: [Port(**port) for port in told[one]["ports"]] for one in told}
    if over_roce:
        counts = {one: len(ports[one]) for one in told}
        if text := setup_fault({one: told[one]["fault"] for one in told}, counts):
            raise RuntimeError(ROCE_SETUP + text)
    _register(mine)
    channels = [
        mine[own].channel(peer, own, theirs, timeout_exponent(seconds[0]))
        for peer in range(ranks)
        if peer != rank
        for own, theirs in pairs(ports[rank], ports[peer], ranks)
    ]
    ends = await share("ends", [[one.peer, one.their_place, *one.end] for one in channels])
    for channel in channels:
        _connect(channel, rank, ports[channel.peer][channel.their_place], ends[channel.peer], over_roce)
    await share("joined", True)
    if not channels:
        return None
    mesh = Mesh(rank, channels, over_roce, seconds[1])
    await mesh.gather(0, limited=True)
    return mesh


def _register(devices: Sequence[Device]) -> None:
    try:
        for device in devices:
            device.register()
    except RegistrationFailed as error:
        print(nccl(REG_MR.format(error=error)), flush=True)
        raise RuntimeError(NCCL) from None


def _connect(channel: Channel, rank: int, theirs: Port, ends: Sequence[Sequence[int]], over_roce: bool) -> None:
    """Raises RuntimeError with NCCL's error when the kernel refuses the pair of GIDs.

    The engine's own transport uses its port's MTU whatever the peer's is; NCCL takes the smaller of both.
    """
    ours = channel.device.port
    number, packet = next((qpn, psn) for to, place, qpn, psn in ends if (to, place) == (rank, channel.place))
    try:
        channel.join(theirs, (number, packet), ours.mtu if over_roce else min(ours.mtu, theirs.mtu))
    except OSError as error:
        text = os.strerror(error.errno or 0)
        print(
            nccl(
                f"WARN Call to ibv_modify_qp failed with {error.errno} {text}, on dev {ours.device}:1, "
                f"local GID {ours.gid}, remote GID {theirs.gid}"
            ),
            flush=True,
        )
        raise RuntimeError(NCCL) from None
