"""One authenticated WebSocket between the leader and a worker. Thin: sockets and the protocol's pure parts."""

from __future__ import annotations

import asyncio
from typing import Literal

import aiohttp
from aiohttp import web

from glm_spark.cluster import protocol
from glm_spark.cluster.protocol import Beat, Challenge, Opening, ProtocolFault, Seal, Unseal

HANDSHAKE_SECONDS = 5.0  # a healthy one takes milliseconds; a stranger must not hold a place for longer

Socket = aiohttp.ClientWebSocketResponse | web.WebSocketResponse


class SessionLost(Exception):
    """The session is over: `how` says it in words, `code` is the peer's close code or None when it just broke."""

    def __init__(self, how: str, code: int | None = None) -> None:
        super().__init__(how)
        self.how = how
        self.code = code


class Session:
    """Beats both ways over an opened socket. `peer` is what the other side proved to be."""

    def __init__(self, socket: Socket, peer: Opening, seal: Seal, unseal: Unseal) -> None:
        self.peer = peer
        self._socket = socket
        self._seal = seal
        self._unseal = unseal

    async def send(self, beat: Beat) -> None:
        """SessionLost when the socket is gone. Sealed and queued without a pause, so frames keep their order."""
        try:
            await self._socket.send_bytes(self._seal.close(protocol.encode(beat)))
        except (ConnectionError, RuntimeError) as error:
            raise SessionLost(f"the connection broke: {error}") from None

    async def receive(self) -> Beat:
        """The next beat; SessionLost at its end, ProtocolFault for a frame that cannot be accepted."""
        message = await self._socket.receive()
        if message.type is aiohttp.WSMsgType.BINARY:
            return protocol.decode(self._unseal.open(message.data))
        raise _lost(self._socket, message)

    async def close(self, code: int = 1000, text: str = "") -> None:
        await close(self._socket, code, text)


async def close(socket: Socket, code: int, text: str) -> None:
    """Says goodbye without waiting for an answer: the other side may be frozen."""
    try:
        async with asyncio.timeout(0.5):
            await socket.close(code=code, message=text.encode()[:120])
    except (TimeoutError, ConnectionError, RuntimeError):
        return


def _lost(socket: Socket, message: aiohttp.WSMessage) -> Exception:
    if message.type is aiohttp.WSMsgType.CLOSE:
        text = message.extra if isinstance(message.extra, str) else ""
        return SessionLost(text or f"closed with code {message.data}", int(message.data))
    if message.type is aiohttp.WSMsgType.ERROR:
        return SessionLost(f"the connection broke: {message.data or socket.exception()}")
    if message.type in (aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.CLOSING):
        return SessionLost("the connection broke", socket.close_code if (socket.close_code or 0) >= 4000 else None)
    return ProtocolFault(protocol.MALFORMED, "a text frame where a sealed one is due")


async def _text(socket: Socket) -> str:
    message = await socket.receive()
    if message.type is aiohttp.WSMsgType.TEXT:
        return str(message.data)
    if message.type is aiohttp.WSMsgType.BINARY:
        raise ProtocolFault(protocol.MALFORMED, "a binary frame before the session is open")
    raise _lost(socket, message)


async def open_as_leader(socket: Socket, mine: Opening, token: bytes, worker: str) -> Session:
    """Runs the leader's half of the challenge; SessionLost, ProtocolFault or TimeoutError when it fails."""
    async with asyncio.timeout(HANDSHAKE_SECONDS):
        await socket.send_str(mine.model_dump_json())
        theirs = protocol.parse_opening(await _text(socket))
        _same_cluster(mine, theirs)
        if theirs.node != worker:
            raise ProtocolFault(protocol.ANOTHER_NODE, f"{theirs.node} answers where {worker} is due")
        challenge = Challenge(token, leader=mine, worker=theirs)
        await socket.send_str(challenge.proof("leader").model_dump_json())
        _prove(challenge, "worker", await _text(socket))
    return Session(socket, theirs, Seal(challenge.key("leader")), Unseal(challenge.key("worker")))


async def open_as_worker(socket: Socket, mine: Opening, token: bytes, leader: str) -> Session:
    """Runs the worker's half. The leader proves itself first, so that a stranger learns nothing of the token."""
    async with asyncio.timeout(HANDSHAKE_SECONDS):
        theirs = protocol.parse_opening(await _text(socket))
        _same_cluster(mine, theirs)
        if theirs.node != leader:
            raise ProtocolFault(protocol.NOT_THE_LEADER, f"{theirs.node} is not the leader here, {leader} is")
        await socket.send_str(mine.model_dump_json())
        challenge = Challenge(token, leader=theirs, worker=mine)
        _prove(challenge, "leader", await _text(socket))
        await socket.send_str(challenge.proof("worker").model_dump_json())
    return Session(socket, theirs, Seal(challenge.key("worker")), Unseal(challenge.key("leader")))


def _same_cluster(mine: Opening, theirs: Opening) -> None:
    if theirs.cluster != mine.cluster:
        raise ProtocolFault(protocol.ANOTHER_CLUSTER, f"cluster {theirs.cluster!r} here is {mine.cluster!r}")


def _prove(challenge: Challenge, role: Literal["leader", "worker"], text: str) -> None:
    if not challenge.holds(role, protocol.parse_proof(text)):
        raise ProtocolFault(protocol.TOKEN_DIFFERS, "the cluster tokens differ")
