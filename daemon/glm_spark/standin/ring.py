"""The ring: every round of every request goes rank 0 -> 1 -> ... -> last -> 0.

A round carries the streams in it, a few bytes each. The last rank answers with one byte a token, drawn from a
value that it alone holds and never sends: no other rank can make up a reply. Nothing here has a time limit of
its own, so a rank that is stopped or gone leaves the round open for ever, as an NCCL collective does.
"""

from __future__ import annotations

import asyncio
import os
import struct
import time
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from glm_spark.standin.failures import leave, store_lost
from glm_spark.standin.faults import FaultSource
from glm_spark.standin.link import PADS, STEP, Link, Lost
from glm_spark.standin.mesh import Mesh
from glm_spark.standin.rendezvous import Hub, Spoke, for_ever

ROUND = struct.Struct("!IBH")  # sequence, 1 when streams go on after it, number of streams
STREAM = struct.Struct("!QIH")  # seed of the prompt, position of the first token, tokens wanted
ANSWER = struct.Struct("!I")
HANG_LOOK_S = 0.05
POKE_S = 0.5
WATCH_S = 0.2

Piece = tuple[int, int, int]


class Secret:
    """The last rank's value, and the only thing ever made of it: pads."""

    def __init__(self, given: str) -> None:
        self._key = given.encode()[:64] if given else os.urandom(32)

    def pads(self, pieces: Sequence[Piece]) -> bytes:
        """One byte a token, in the order of the pieces; at most 64 tokens a piece."""
        return b"".join(
            blake2b(STREAM.pack(seed, position, 0), key=self._key, digest_size=count).digest()
            for seed, position, count in pieces
        )


async def take_part(faults: FaultSource, sequence: int) -> None:
    """What may befall a rank as it enters a round: it ends there, or takes no part for a while."""
    script = faults.now()
    if script.crash_at_round and sequence >= script.crash_at_round:
        leave(script.exit_code)
    while faults.now().hang:  # noqa: ASYNC110  the script is a file: nothing can announce its change
        await asyncio.sleep(HANG_LOOK_S)


def is_small(pieces: Sequence[Piece]) -> bool:
    """Whether a round's collectives are small enough for RoCE; one with a new prompt in it is NCCL's, without limit."""
    return all(position for _, position, _ in pieces)


class Head:
    """Rank 0's end of the ring."""

    def __init__(self, hub: Hub, faults: FaultSource, mesh: Mesh | None = None) -> None:
        self._hub = hub
        self._faults = faults
        self._mesh = mesh
        self._sequence = 0
        self._open: asyncio.Future[bytes] | None = None
        self._secret = Secret(faults.now().secret) if hub.tp == 1 else None
        hub.on_pads = self._close

    @property
    def sequence(self) -> int:
        return self._sequence

    async def round(self, pieces: Sequence[Piece], more: bool) -> bytes:
        """One byte for each token wanted, from the last rank. Waits for ever where a rank takes no part.

        Raises RoceError when the ranks' messages over RDMA fail.
        """
        self._sequence += 1
        await take_part(self._faults, self._sequence)
        if self._secret:
            return self._secret.pads(pieces)
        self._open = asyncio.get_running_loop().create_future()
        payload = ROUND.pack(self._sequence, more, len(pieces)) + b"".join(STREAM.pack(*one) for one in pieces)
        self._hub.links[1].send(STEP, payload)
        if self._mesh:
            await self._mesh.gather(self._sequence, is_small(pieces))
        while not self._open.done():
            await asyncio.wait([self._open], timeout=POKE_S)
            if self._mesh and not self._open.done():
                # With the real engine all of a round is RDMA: a cut cable fails a write wherever the round is.
                await self._mesh.poke(self._sequence)
        return self._open.result()

    def _close(self, payload: bytes) -> None:
        (sequence,) = ANSWER.unpack_from(payload)
        if self._open and not self._open.done() and sequence == self._sequence:
            self._open.set_result(payload[ANSWER.size :])


class Member:
    """Every other rank's place in the ring: the last answers, the ones before it pass on."""

    def __init__(self, spoke: Spoke, faults: FaultSource) -> None:
        self._spoke = spoke
        self._faults = faults
        self._last = spoke.rank == spoke.tp - 1
        self._secret = Secret(faults.now().secret)
        self._inbound: asyncio.Future[Link] = asyncio.get_running_loop().create_future()
        self._outbound: Link | None = None
        self.mesh: Mesh | None = None
        self._server: asyncio.Server | None = None
        self._in_round = False

    async def listen(self, address: str) -> tuple[str, int]:
        """Where the rank before this one finds it; rank 1 is found over rank 0's own store connection."""
        if self._spoke.rank == 1:
            assert self._spoke.link is not None
            self._inbound.set_result(self._spoke.link)
            return "", 0
        self._server = await asyncio.start_server(self._take, address, 0)
        return address, self._server.sockets[0].getsockname()[1]

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = Link(reader, writer)
        try:
            message = await link.receive_json()
        except Lost:
            link.close()
            return
        if message.get("ring") == self._spoke.rank - 1 and not self._inbound.done():
            self._inbound.set_result(link)

    async def join(self, hellos: Sequence[dict[str, Any]]) -> None:
        """Connects to the next rank; an unreachable one leaves this rank waiting, as NCCL's bootstrap does."""
        if self._last:
            self._outbound = self._spoke.link
        else:
            address, port = hellos[self._spoke.rank + 1]["ring"]
            try:
                reader, writer = await asyncio.open_connection(address, port)
            except OSError as error:
                raise RuntimeError(f"NCCL error 2: unhandled system error ({address}:{port}: {error})") from error
            self._outbound = Link(reader, writer)
            self._outbound.send_json({"ring": self._spoke.rank})
        await self._inbound

    async def follow(self) -> None:
        """Takes part in rounds for the life of the set.

        Raises when rank 0 is gone while this rank is idle, and RoceError.
        """
        inbound = await self._inbound
        async with asyncio.TaskGroup() as tasks:
            if inbound is not self._spoke.link:
                tasks.create_task(self._watch_store())
            try:
                while True:
                    await self._one_round(inbound)
            except Lost:
                if inbound is self._spoke.link:
                    await self._rank_0_gone()
                await for_ever()

    async def _one_round(self, inbound: Link) -> None:
        kind, payload = await inbound.receive()
        if kind != STEP:
            return
        sequence, more, count = ROUND.unpack_from(payload)
        self._in_round = True
        await take_part(self._faults, sequence)
        assert self._outbound is not None
        pieces = [STREAM.unpack_from(payload, ROUND.size + i * STREAM.size) for i in range(count)]
        if not self._last:
            self._outbound.send(STEP, payload)
        if self.mesh:
            await self.mesh.gather(sequence, is_small(pieces))
        if self._last:
            self._outbound.send(PADS, ANSWER.pack(sequence) + self._secret.pads(pieces))
        self._in_round = bool(more)

    async def _watch_store(self) -> None:
        assert self._spoke.link is not None
        try:
            while True:
                await self._spoke.link.receive()
        except Lost:
            await self._rank_0_gone()

    async def _rank_0_gone(self) -> None:
        faults = self._faults.now()
        if not self._in_round:
            store_lost()
        if not faults.peer_watch:
            await for_ever()
        await asyncio.sleep(faults.peer_watch_lost_s)
        raise RuntimeError("peer-watch: rank 0 is gone in the middle of a round")


async def watch_peers(hub: Hub, faults: FaultSource) -> None:
    """Rank 0's peer-watch, which the pinned image does not have: ends rank 0 when another one is lost."""
    while True:
        await asyncio.sleep(WATCH_S)
        script = faults.now()
        if not script.peer_watch:
            continue
        now = time.monotonic()
        for since, limit, what in (
            (hub.returned, script.peer_watch_restart_s, "came back and cannot rejoin"),
            (hub.lost, script.peer_watch_lost_s, "is gone"),
        ):
            for rank, second in since.items():
                if now - second >= limit:
                    raise RuntimeError(f"peer-watch: rank {rank} {what}: restart every rank")
