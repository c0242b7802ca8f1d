"""Answers the path probes of the other Sparks, on this Spark's addresses on the cable."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import logging
import math
import socket
import time
from collections.abc import Iterable, Mapping
from types import TracebackType

from glm_spark.fabric.datagram import ANSWER, ASK, SMALLEST, Datagram, pack, unpack

IP_MTU_DISCOVER, IP_PMTUDISC_PROBE, IP_MTU = 10, 3, 14  # linux/in.h; the socket module lacks them
ANSWERS_A_SECOND = 200  # at 9000 bytes 14 Mb/s at most, whoever asks
HEARD_SECONDS = 10.0  # both Sparks probe at the same time before a start, each for three seconds at most
_CHECKS_A_SECOND = 2000  # datagrams whose tag is looked at

log = logging.getLogger("glm_spark.fabric.responder")


class Responder:
    """A UDP socket an address, each answering asks with a valid tag, unfragmented and never larger than the ask.

    `addresses` maps an address to the netdev it must be answered on ("" for any), or lists addresses. One that
    this Spark does not have at the moment is left out until `update`.
    """

    def __init__(self, addresses: Mapping[str, str] | Iterable[str], port: int, key: bytes) -> None:
        self._wanted = _mapping(addresses)
        self._port = port
        self._key = key
        self._open: dict[tuple[str, str], tuple[asyncio.DatagramTransport, _Answering]] = {}
        self.failed: dict[str, str] = {}  # address -> why it is not answered on
        self._heard: dict[str, float] = {}  # address of an ask with a valid tag -> when it came

    @property
    def bound(self) -> tuple[str, ...]:
        """The addresses that are answered on."""
        return tuple(sorted(address for address, _ in self._open))

    def heard(self, address: str) -> bool:
        """Whether an ask came in from this address within the last seconds."""
        return time.monotonic() - self._heard.get(address, -math.inf) < HEARD_SECONDS

    async def __aenter__(self) -> Responder:
        await self.update(self._wanted)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def update(self, addresses: Mapping[str, str] | Iterable[str]) -> None:
        """Answer on exactly these addresses; call it with each new reading of the netdevs."""
        self._wanted = _mapping(addresses)
        for end in [end for end, (transport, _) in self._open.items() if transport.is_closing()]:
            del self._open[end]
        for end in [end for end in self._open if end not in self._wanted.items()]:
            transport, answering = self._open.pop(end)
            transport.abort()
            await answering.closed.wait()  # its port is free only then
        self.failed = {}
        loop = asyncio.get_running_loop()
        for address, netdev in self._wanted.items():
            if (address, netdev) in self._open:
                continue
            try:
                bound = udp_socket(netdev, address, self._port)
            except OSError as error:
                self.failed[address] = error.strerror or str(error)
                continue
            protocol = functools.partial(_Answering, self._key, bound, self._heard)
            self._open[(address, netdev)] = await loop.create_datagram_endpoint(protocol, sock=bound)

    def close(self) -> None:
        for transport, _ in self._open.values():
            transport.abort()
        self._open.clear()


def udp_socket(netdev: str, source: str, port: int) -> socket.socket:
    """A non-blocking UDP socket on a source address, and a netdev if named, whose datagrams are never fragmented.

    IP_PMTUDISC_PROBE sets DF and ignores what the kernel remembers of the path's MTU. Raises OSError.
    """
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        made.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE)
        if netdev:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, netdev.encode() + b"\0")
        made.bind((source, port))
    except OSError:
        made.close()
        raise
    return made


class _Answering(asyncio.DatagramProtocol):
    def __init__(self, key: bytes, bound: socket.socket, heard: dict[str, float]) -> None:
        self._key = key
        self._heard = heard
        self._bound = bound
        self._second = 0
        self._checked = 0
        self._answered = 0
        self.closed = asyncio.Event()

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        second = int(asyncio.get_running_loop().time())
        if second != self._second:
            self._second, self._checked, self._answered = second, 0, 0
        self._checked += 1
        if self._checked > _CHECKS_A_SECOND or self._answered >= ANSWERS_A_SECOND:
            return
        ask = unpack(data, self._key)
        if ask is None or ask.kind != ASK:
            return
        self._answered += 1
        self._heard[addr[0]] = time.monotonic()
        answer(self._bound, data, ask, addr, self._key)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()

    def error_received(self, exc: Exception) -> None:
        log.debug("a probe's answer was not taken: %s", exc)


def answer(own: socket.socket, data: bytes, ask: Datagram, addr: tuple[str, int], key: bytes) -> None:
    """Send an ask back as an answer of the same size; a small one that says so where the own MTU is in the way."""
    try:
        # Straight from the socket: a transport would keep back what does not go out now, and the size's error with it.
        own.sendto(pack(Datagram(ANSWER, ask.sequence, ask.nonce), len(data), key), addr)
    except OSError as error:
        if error.errno != errno.EMSGSIZE:
            log.debug("a probe from %s was not answered: %s", addr[0], error)
            return
        short = Datagram(ANSWER, ask.sequence, ask.nonce, short_of=_own_mtu(own, addr))
        with contextlib.suppress(OSError):
            own.sendto(pack(short, SMALLEST, key), addr)


def _own_mtu(own: socket.socket, addr: tuple[str, int]) -> int:
    """The MTU toward `addr` as the kernel has it; 1 when it does not say. IP_MTU needs a connected socket."""
    try:
        with udp_socket("", own.getsockname()[0], 0) as asked:
            asked.connect(addr)
            return asked.getsockopt(socket.IPPROTO_IP, IP_MTU)
    except OSError:
        return 1


def _mapping(addresses: Mapping[str, str] | Iterable[str]) -> dict[str, str]:
    return dict(addresses) if isinstance(addresses, Mapping) else dict.fromkeys(addresses, "")
