"""Does a packet of full size, unfragmented, pass from here to a peer and back?

A path that carries small packets and loses large ones looks sound to everything but RDMA. Only sockets, all of
them non-blocking, so this may run in the daemon's loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from dataclasses import dataclass, field

from glm_spark.fabric.datagram import ANSWER, ASK, IP_UDP_HEADERS, SMALLEST, Datagram, pack, probe_key, unpack
from glm_spark.fabric.responder import Responder, udp_socket
from glm_spark.finding import Finding, Severity

__all__ = [
    "ProbeResult",
    "Responder",
    "one_way_finding",
    "path_findings",
    "probe",
    "probe_key",
    "wrong_netdev_finding",
]

_LARGEST_PACKET = 65535
_LATE = 1.0  # seconds
_SMALLER = (1500, SMALLEST + IP_UDP_HEADERS)  # packet sizes tried when the full one does not pass


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """`sent` and `received` count the datagrams of full size.

    `largest_ok` is the largest packet in bytes (IP header and all) that was sent and answered in that size, 0
    for none. `rtt` is the shortest round trip in seconds. `own_short` says that this Spark's own netdev could
    not send the full size; `peer_mtu` is the peer's MTU where it could not answer in full size, 1 if unknown.
    `refused` means that the peer is there and nothing listens; `error` is what the kernel said instead.
    """

    mtu: int
    port: int
    sent: int
    received: int
    largest_ok: int
    rtt: float | None = None
    own_short: bool = False
    peer_mtu: int | None = None
    refused: bool = False
    error: str = ""

    @property
    def sound(self) -> bool:
        """All of full size came back."""
        return bool(self.sent) and self.received == self.sent

    @property
    def silent(self) -> bool:
        """Nothing came back, not even a refusal."""
        return not (self.largest_ok or self.own_short or self.peer_mtu or self.refused or self.error)


@dataclass(slots=True)
class _Tally:
    sent: int = 0
    received: int = 0
    rtt: float | None = None
    own_short: bool = False
    peer_mtu: int | None = None
    refused: bool = False
    error: str = ""
    waiting: dict[bytes, float] = field(default_factory=dict)  # nonce -> when it was sent


async def probe(
    netdev: str,
    source: str,
    peer: str,
    port: int,
    mtu: int,
    key: bytes,
    attempts: int = 3,
    timeout: float = 0.3,
) -> ProbeResult:
    """Ask `peer`'s Responder with packets of `mtu` bytes, and with smaller ones when none comes back.

    No packet is larger than 65535 bytes, whatever the MTU (loopback's is 65536). Each of up to `attempts` waits
    `timeout` seconds, and where some came back the others are given a second more, since late is not lost; so at
    most 4 * attempts * timeout + 1 seconds in all. Where small packets pass, full ones are asked once more: a peer that
    was held up while the first were on their way answers only what came later, which must not look like an MTU.
    """
    mtu = min(mtu, _LARGEST_PACKET)
    full = await _ask(netdev, source, (peer, port), mtu, key, attempts, timeout)
    largest, rtt = (mtu if full.received else 0), full.rtt
    refused, error, peer_mtu = full.refused, full.error, full.peer_mtu
    if not full.received and not refused:
        for size in _SMALLER:
            if size >= mtu or largest:
                continue
            small = await _ask(netdev, source, (peer, port), size, key, attempts, timeout)
            refused, error = small.refused, small.error or ("" if small.received else error)
            peer_mtu = peer_mtu or small.peer_mtu
            if small.received:
                largest, rtt = size, small.rtt
            if refused:
                break
        if largest and not (full.own_short or peer_mtu or refused):
            again = await _ask(netdev, source, (peer, port), mtu, key, attempts, timeout)
            peer_mtu = again.peer_mtu
            if again.received:
                full, largest, rtt, error = again, mtu, again.rtt, ""
    return ProbeResult(
        mtu=mtu,
        port=port,
        sent=full.sent,
        received=full.received,
        largest_ok=largest,
        rtt=rtt,
        own_short=full.own_short,
        peer_mtu=peer_mtu,
        refused=refused,
        error=error,
    )


async def _ask(
    netdev: str, source: str, peer: tuple[str, int], size: int, key: bytes, attempts: int, timeout: float
) -> _Tally:
    tally = _Tally()
    try:
        with udp_socket(netdev, source, 0) as asking:
            asking.connect(peer)
            for sequence in range(attempts):
                if await _attempt(asking, sequence, size, key, timeout, tally):
                    break
            if tally.received:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LATE):
                        await _collect(asking, key, tally)
    except OSError as error:
        tally.error = error.strerror or str(error)
    return tally


async def _attempt(asking: socket.socket, sequence: int, size: int, key: bytes, timeout: float, tally: _Tally) -> bool:
    """One ask; True when further ones would say the same."""
    loop = asyncio.get_running_loop()
    nonce = os.urandom(16)
    tally.sent += 1
    tally.waiting[nonce] = loop.time()
    try:
        async with asyncio.timeout(timeout):
            await loop.sock_sendall(asking, pack(Datagram(ASK, sequence, nonce), size - IP_UDP_HEADERS, key))
            await _collect(asking, key, tally, nonce)
    except TimeoutError:
        return False
    except OSError as error:
        return _final(error, tally)
    return tally.peer_mtu is not None


async def _collect(asking: socket.socket, key: bytes, tally: _Tally, nonce: bytes | None = None) -> None:
    """Count answers until the one to `nonce` is there, or without one until all are."""
    loop = asyncio.get_running_loop()
    while nonce in tally.waiting if nonce is not None else tally.waiting:
        told = unpack(await loop.sock_recv(asking, 1 << 16), key)
        if told is None or told.kind != ANSWER or told.nonce not in tally.waiting:
            continue
        took = loop.time() - tally.waiting.pop(told.nonce)
        if told.short_of:
            tally.peer_mtu = told.short_of
        else:
            tally.received += 1
            tally.rtt = took if tally.rtt is None else min(tally.rtt, took)


def _final(error: OSError, tally: _Tally) -> bool:
    """Note what the kernel said to an ask; True when it would say so again."""
    if error.errno == errno.EMSGSIZE:
        tally.own_short = True
    elif error.errno == errno.ECONNREFUSED:
        tally.refused = True
    else:
        tally.error = error.strerror or str(error)
        # EHOSTUNREACH comes when the peer's hardware address was asked for in vain: try again.
        return error.errno not in (errno.EHOSTUNREACH, errno.ENOBUFS)
    return True


def path_findings(
    me: str, peer: str, netdev: str, address: str, result: ProbeResult, *, answering: bool
) -> tuple[Finding, ...]:
    """What a probe says. `answering`: the peer's daemon is known to run, so that silence is a fault of the path.

    Otherwise nothing is concluded from silence, and its severity is "unknown".
    """
    subject = f"path to {peer} ({address}) over {netdev}"
    if result.received and result.received == result.sent:
        return ()
    if result.received:
        return (
            Finding(
                code="fabric.path-loss",
                severity=Severity.WARNING,
                node=me,
                subject=subject,
                measured=f"{result.received} of {result.sent} packets of {result.mtu} bytes came back",
                wanted="all of them",
                fix="Reseat the cable at both ends and see the error counters of the netdev.",
            ),
        )
    if result.own_short or result.peer_mtu or result.largest_ok:
        return (_mtu_finding(me, peer, netdev, subject, result),)
    return (_silent_finding(me, peer, subject, result, answering),)


def wrong_netdev_finding(me: str, peer: str, netdev: str, address: str, severity: Severity) -> Finding:
    """A rail that is refused while the same peer answers on another one.

    A Responder takes only what comes in on the netdev of its address. Two netdevs in one subnet answer for each
    other's addresses unless the kernel is told otherwise (ARP flux), and RDMA sent to the wrong one is lost.
    """
    return Finding(
        code="fabric.wrong-netdev",
        severity=severity,
        node=me,
        subject=f"path to {peer} ({address}) over {netdev}",
        measured=f"packets for {address} reach {peer}, but not on the netdev that has this address",
        wanted="each address answered by its own netdev",
        fix="On every Spark set sysctl net.ipv4.conf.all.arp_ignore=1 and net.ipv4.conf.all.arp_announce=2, or give "
        "each netdev of the cable a subnet of its own.",
    )


def one_way_finding(me: str, peer: str, netdev: str, address: str, port: int) -> Finding:
    """A rail on which the peer's asks come in and no answer to this Spark's own does."""
    return Finding(
        code="fabric.one-way",
        severity=Severity.ERROR,
        node=me,
        subject=f"path to {peer} ({address}) over {netdev}",
        measured=f"packets from {peer} arrive here, those of {me} are not answered: they are lost on the way there",
        wanted="packets of full size both ways",
        fix=f"On {peer} let UDP port {port} through the firewall on the cable; if there is none, reseat the cable at "
        f"both ends and see the error counters of {netdev} and of its other end (ethtool -S).",
    )


def _mtu_finding(me: str, peer: str, netdev: str, subject: str, result: ProbeResult) -> Finding:
    if result.own_short:
        measured = f"{netdev} cannot send packets of {result.mtu} bytes"
        fix = f"Set the MTU of {netdev} on {me} to {result.mtu}."
    elif result.peer_mtu:
        known = f": its MTU is {result.peer_mtu}" if result.peer_mtu > 1 else ""
        measured = f"{peer} cannot answer with {result.mtu} bytes{known}"
        fix = f"Set the MTU of the netdev with that address on {peer} to {result.mtu}."
    else:
        measured = f"packets of {result.largest_ok} bytes come back, those of {result.mtu} do not"
        fix = f"Set the MTU to {result.mtu} at both ends, and on whatever stands between."
    return Finding(
        code="fabric.path-mtu",
        severity=Severity.ERROR,
        node=me,
        subject=subject,
        measured=measured,
        wanted=f"unfragmented packets of {result.mtu} bytes both ways",
        fix=fix,
    )


def _silent_finding(me: str, peer: str, subject: str, result: ProbeResult, answering: bool) -> Finding:
    if result.refused:
        measured, fix = f"{peer} is there, but glm-spark does not answer", f"Start glm-spark on {peer}."
    elif result.error:
        measured, fix = result.error, f"See that {peer} is on and that the cable is in at both ends."
    else:
        measured = "nothing came back, small packets neither"
        fix = (
            f"Let UDP port {result.port} through the firewall on {peer}; see that the cable is in at both ends and "
            f"that {peer} has that address on it."
        )
        if not answering:
            fix = f"Start glm-spark on {peer} if it does not run. {fix}"
    return Finding(
        code="fabric.path-silent",
        # Where nothing listens nothing was measured, whoever else answers.
        severity=Severity.ERROR if answering and not result.refused else Severity.UNKNOWN,
        node=me,
        subject=subject,
        measured=measured,
        wanted="an answer to a packet of full size",
        fix=fix,
    )
