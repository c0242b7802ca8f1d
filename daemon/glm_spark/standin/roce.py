"""What RDMA between the ranks is decided by and said with. Pure; `verbs` and `mesh` touch the devices.

Between two Sparks TensorFold v0.6.0 pairs the devices by their place in the list, whatever they are called. Among
three a device leads to one peer only, and the subnet of its address says to which.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

MTU = {1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096}  # ibv_mtu -> bytes
LONGEST = 4096
ROCE_V2 = 2  # ibv_gid_type
RETRIES = 6  # soft-RoCE takes 7 for "for ever", a ConnectX does not
TRANSPORT_RETRIES, FLUSHED = 12, 5  # ibv_wc_status
STATUS = {
    1: "local length error",
    2: "local QP operation error",
    4: "local protection error",
    FLUSHED: "Work Request Flushed Error",
    9: "remote invalid request error",
    10: "remote access error",
    11: "remote operation error",
    TRANSPORT_RETRIES: "transport retry counter exceeded",
    13: "RNR retry counter exceeded",
}
# A ConnectX's syndrome for a peer that answers nothing; soft-RoCE has no syndromes.
VENDOR_RETRIES = 0x81
_HEAD = struct.Struct("!II")


class Failed(Exception):
    """A work request did not complete: its status in words and as a number, the vendor's syndrome.

    Soft-RoCE gives no syndrome; a dead path gets a ConnectX's, by which a supervisor knows it.
    """

    def __init__(self, status: int, vendor: int) -> None:
        super().__init__(STATUS.get(status, f"completion status {status}"))
        self.status = status
        self.vendor = VENDOR_RETRIES if status == TRANSPORT_RETRIES and not vendor else vendor


@dataclass(frozen=True)
class Gid:
    """A filled slot of a device's GID table; `address` is its IPv4, "" for any other."""

    index: int
    text: str
    kind: int
    address: str


@dataclass(frozen=True)
class Port:
    """What the other ranks must know of one of a rank's devices; `mtu` in bytes, `network` "" without an IPv4."""

    device: str
    gid: str
    mtu: int
    network: str


def gid_index(wanted: str | None, table: Iterable[Gid]) -> int:
    """The slot a device's messages leave from, for a NCCL_IB_GID_INDEX (None: unset).

    Unset, NCCL takes the first RoCE v2 entry with an IPv4, else index 0. Set but empty it is 0 as well: what a
    start script passes on when it found none. Raises RuntimeError for a value that is no number.
    """
    if wanted is None:
        found = (gid.index for gid in table if gid.kind == ROCE_V2 and gid.address)
        return next(found, 0)
    if not wanted.strip():
        return 0
    if not wanted.strip().isdecimal():
        raise RuntimeError(f"NCCL_IB_GID_INDEX={wanted}: not an index")
    return int(wanted)


def pairs(mine: Sequence[Port], theirs: Sequence[Port], ranks: int) -> list[tuple[int, int]]:
    """Which of my devices talks to which of the peer's, as places in the two lists."""
    if ranks == 2:
        return list(zip(range(len(mine)), range(len(theirs)), strict=False))
    free = list(range(len(theirs)))
    found = []
    for place, port in enumerate(mine):
        match = next((one for one in free if port.network and theirs[one].network == port.network), None)
        if match is not None:
            free.remove(match)
            found.append((place, match))
    return found


def setup_fault(faults: Mapping[int, str], counts: Mapping[int, int]) -> str:
    """Why the all-gathers over RoCE cannot be set up on some rank, "" when they can.

    `faults` by rank ("" for none), `counts` the number of devices by rank.
    """
    first = next((faults[rank] for rank in sorted(faults) if faults[rank]), "")
    if first:
        return first
    return "the ranks' RoCE geometry differs" if len(set(counts.values())) > 1 else ""


def timeout_exponent(seconds: float) -> int:
    """The queue pair's timeout (4.096 us * 2^n a try) with which a dead path fails after about so many seconds."""
    tries = RETRIES + 1
    wanted = max(seconds, 0.0) / tries
    return min(range(1, 32), key=lambda n: abs(4.096e-6 * 2**n - wanted))


def message(rank: int, place: int, sequence: int) -> bytes:
    """What a rank's device at `place` sends in a round: 4096 bytes, of which a smaller MTU takes the first."""
    drawn = random.Random(sequence << 16 | rank << 8 | place).randbytes(LONGEST - _HEAD.size)
    return _HEAD.pack(rank << 8 | place, sequence & 0xFFFFFFFF) + drawn


def sequence_of(said: bytes) -> int:
    """The round that a message belongs to."""
    sequence: int = _HEAD.unpack_from(said)[1]
    return sequence
