"""The datagrams of the path probe: made, tagged and checked. Pure.

32 bytes of header, 16 bytes of tag, then zeros up to the size wanted. The tag is HMAC-SHA256 over the whole
datagram without it, cut to 16 bytes, under a key made from the cluster token, so that only Sparks of this set
are answered and only their answers count. Asks and answers differ in a byte under the tag: an ask that is sent
back is no answer.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass

IP_UDP_HEADERS = 28  # bytes of an IPv4 header without options, and of a UDP header
ASK, ANSWER = 1, 2
_MAGIC = b"GSPP"
_HEADER = struct.Struct("!4sBBHII16s")  # magic, version, kind, spare, sequence, the answering end's MTU, nonce
_TAG = 16
SMALLEST = _HEADER.size + _TAG


@dataclass(frozen=True, slots=True)
class Datagram:
    """`short_of` is set in an answer that had to be smaller than its ask: the MTU of the netdev it left on."""

    kind: int
    sequence: int
    nonce: bytes
    short_of: int = 0


def probe_key(token: bytes) -> bytes:
    """The key of probes, from the cluster token; it serves nothing else."""
    return hmac.digest(token, b"glm-spark path probe 1", hashlib.sha256)


def pack(datagram: Datagram, size: int, key: bytes) -> bytes:
    """`size` bytes of UDP payload, at least SMALLEST."""
    header = _HEADER.pack(_MAGIC, 1, datagram.kind, 0, datagram.sequence, datagram.short_of, datagram.nonce)
    filling = bytes(max(0, size - SMALLEST))
    return header + _tag(key, header, filling) + filling


def unpack(data: bytes, key: bytes) -> Datagram | None:
    """The datagram in `data`, or None when it is not one of this set's."""
    if len(data) < SMALLEST or data[:4] != _MAGIC:
        return None
    header, tag, filling = data[: _HEADER.size], data[_HEADER.size : SMALLEST], data[SMALLEST:]
    if not hmac.compare_digest(tag, _tag(key, header, filling)):
        return None
    _, version, kind, _, sequence, short_of, nonce = _HEADER.unpack(header)
    return Datagram(kind, sequence, nonce, short_of) if version == 1 else None


def _tag(key: bytes, header: bytes, filling: bytes) -> bytes:
    return hmac.digest(key, header + filling, hashlib.sha256)[:_TAG]
