"""RDMA devices through pyverbs: what a rank opens, registers, sends and hears.

Loaded only where the environment names devices. Works with pyverbs 44 (Debian 12) and later: constants are numbers,
because pyverbs.enums is gone since 60.
"""

from __future__ import annotations

import array
import errno
import fcntl
import ipaddress
import os
import socket
import struct
import sys
import time
from typing import Any

from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context, get_device_list
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsError, PyverbsRDMAError
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

from glm_spark.standin.failures import RegistrationFailed, Unusable
from glm_spark.standin.roce import FLUSHED, LONGEST, MTU, RETRIES, TRANSPORT_RETRIES, Failed, Gid, Port, gid_index

PORT = 1
ACTIVE = 4  # ibv_port_state
# As much as NCCL's buffers of a few channels: above the 8 MiB that a process may lock where nobody raised the limit.
REGISTERED = 16 << 20
RECEIVES = 2  # a peer can be one round ahead, never two
# Soft-RoCE may flush what waits before it tells what broke the queue pair; and where the kernel has no way to send it
# tells no more than that, while a ConnectX tries until its retries are over.
CAUSE_S = 1.0
SIOCGIFNETMASK = 0x891B
_RC, _LOCAL_WRITE, _REMOTE_WRITE, _SEND, _RDMA_WRITE, _SIGNALED = 2, 1, 2, 2, 0, 2
_SENT = 100  # the send's work request; receives are numbered from 0


class Device:
    """One opened device with its memory. Raises Unusable, as NCCL and the engine find it, or RegistrationFailed."""

    def __init__(self, name: str, wanted_gid: str | None) -> None:
        if name not in names():
            raise Unusable(f"RDMA device {name} not found")
        try:
            self._context = Context(name=name)
            port = self._context.query_port(PORT)
        except PyverbsError as error:
            print(f"stand-in: {name} cannot be opened: {error}", file=sys.stderr, flush=True)
            raise Unusable(f"RDMA device {name} not found") from None
        if port.state != ACTIVE:
            raise Unusable(f"{name} port {PORT} is not active")
        table = self._gids(port.gid_tbl_len)
        self.gid_index = gid_index(wanted_gid, (gid for gid, _ in table))
        gid, netdev = next(
            (one for one in table if one[0].index == self.gid_index), (Gid(self.gid_index, "::", 0, ""), 0)
        )
        self.port = Port(name, gid.text, MTU[port.active_mtu], network(gid.address, netdev))
        self._pd = PD(self._context)
        self._memory: Any = None
        self._used = 0

    def _gids(self, slots: int) -> list[tuple[Gid, int]]:
        """The filled slots, each with its netdev's interface index."""
        found = []
        for index in range(slots):
            try:
                entry = self._context.query_gid_ex(PORT, index)
            except PyverbsError:  # an empty slot
                continue
            prefix, interface = entry.gid_subnet_prefix, entry.gid_interface_id
            raw = prefix.to_bytes(8, sys.byteorder) + interface.to_bytes(8, sys.byteorder)
            address = ipaddress.IPv6Address(raw)
            if int(address):
                gid = Gid(index, address.exploded, entry.gid_type, str(address.ipv4_mapped or ""))
                found.append((gid, entry.ndev_ifindex))
        return found

    def register(self) -> None:
        """Raises RegistrationFailed, above all where the memlock limit is too low."""
        try:
            self._memory = MR(self._pd, REGISTERED, _LOCAL_WRITE)
        except PyverbsRDMAError as error:
            raise RegistrationFailed(os.strerror(error.error_code if error.error_code > 0 else errno.ENOMEM)) from None

    def close(self) -> None:
        """With all that was made of it. Left to the interpreter's end, pyverbs spoils the rank's last words."""
        try:
            self._context.close()
        except PyverbsError as error:
            print(f"stand-in: {self.port.device} cannot be closed: {error}", file=sys.stderr, flush=True)

    def channel(self, peer: int, place: int, their_place: int, timeout: int) -> Channel:
        offset = self._used
        self._used += LONGEST * (1 + RECEIVES)
        return Channel(self, self._context, self._pd, self._memory, offset, (peer, place, their_place), timeout)


class Channel:
    """A reliable queue pair between this rank's device at `place` and the peer's at `their_place`."""

    def __init__(
        self,
        device: Device,
        context: Any,
        domain: Any,
        memory: Any,
        offset: int,
        who: tuple[int, int, int],
        timeout: int,
    ) -> None:
        self.peer, self.place, self.their_place = who
        self.device = device
        self._memory = memory
        self._offset = offset
        self._timeout = timeout
        self._size = 0
        self._cq = CQ(context, 16)
        cap = QPCap(max_send_wr=4, max_recv_wr=RECEIVES + 2, max_send_sge=1, max_recv_sge=1)
        self._qp = QP(domain, QPInitAttr(qp_type=_RC, scq=self._cq, rcq=self._cq, cap=cap), QPAttr(port_num=PORT))
        self._psn = int.from_bytes(os.urandom(3), "big")
        self._sent = True
        self._flushed = 0.0
        self._heard: list[bytes] = []

    @property
    def end(self) -> tuple[int, int]:
        """What the peer needs besides the port: queue pair number, first packet's number."""
        return self._qp.qp_num, self._psn

    def join(self, theirs: Port, end: tuple[int, int], mtu: int) -> None:
        """Connects to the peer's end; packets hold `mtu` bytes. Raises OSError with what the kernel says."""
        route = GlobalRoute(dgid=GID(theirs.gid), sgid_index=self.device.gid_index, hop_limit=64)
        attributes = QPAttr(port_num=PORT)
        attributes.qp_access_flags = _REMOTE_WRITE
        attributes.path_mtu = next(code for code, size in MTU.items() if size == mtu)
        attributes.dest_qp_num, attributes.rq_psn = end
        attributes.max_dest_rd_atomic = attributes.max_rd_atomic = 1
        attributes.min_rnr_timer = 12
        attributes.ah_attr = AHAttr(is_global=1, port_num=PORT, gr=route)
        attributes.sq_psn = self._psn
        attributes.timeout = self._timeout
        attributes.retry_cnt = RETRIES
        attributes.rnr_retry = 7  # for ever: a peer that is slow to listen is late, not unreachable
        try:
            self._qp.to_rts(attributes)
        except PyverbsRDMAError as error:
            raise OSError(error.error_code, os.strerror(abs(error.error_code))) from None
        self._size = mtu
        for slot in range(RECEIVES):
            self._receive(slot)

    def send(self, said: bytes) -> None:
        """One packet's worth of it."""
        self._memory.write(said[: self._size], self._size, self._offset)
        self._sent = False
        sge = SGE(self._memory.buf + self._offset, self._size, self._memory.lkey)
        self._qp.post_send(SendWR(wr_id=_SENT, opcode=_SEND, num_sge=1, sg=[sge], send_flags=_SIGNALED))

    def poke(self) -> None:
        """An empty write, which the peer's device answers whatever its rank does."""
        self._sent = False
        sge = SGE(self._memory.buf + self._offset, 0, self._memory.lkey)  # pyverbs wants one, however empty
        self._qp.post_send(SendWR(wr_id=_SENT, opcode=_RDMA_WRITE, num_sge=1, sg=[sge], send_flags=_SIGNALED))

    @property
    def answered(self) -> bool:
        """As of the last look: whether everything sent has arrived there."""
        return self._sent

    def look(self) -> bool:
        """Takes in what has completed; True when the last message has arrived there and one from there is here.

        Raises Failed.
        """
        count, completions = self._cq.poll(8)
        for done in completions if count else ():
            if done.status == FLUSHED:
                self._flushed = self._flushed or time.monotonic()
            elif done.status:
                raise Failed(done.status, done.vendor_err)
            elif done.wr_id == _SENT:
                self._sent = True
            else:
                self._heard.append(self._memory.read(done.byte_len, self._place_of(done.wr_id)))
                self._receive(done.wr_id)
        if self._flushed and time.monotonic() - self._flushed > CAUSE_S:
            raise Failed(TRANSPORT_RETRIES, 0)
        return self._sent and bool(self._heard)

    def hear(self) -> bytes:
        """The oldest message from the peer."""
        return self._heard.pop(0)

    def _place_of(self, slot: int) -> int:
        return self._offset + LONGEST * (1 + slot)

    def _receive(self, slot: int) -> None:
        sge = SGE(self._memory.buf + self._place_of(slot), LONGEST, self._memory.lkey)
        self._qp.post_recv(RecvWR(wr_id=slot, num_sge=1, sg=[sge]))


def names() -> list[str]:
    """The devices of this Spark; a kernel without RDMA has none."""
    try:
        listed = get_device_list()
    except PyverbsRDMAError:
        return []
    return [one.name.decode() if isinstance(one.name, bytes) else str(one.name) for one in listed]


def network(address: str, interface: int) -> str:
    """The subnet an IPv4 address of a netdev lies in, "" for none."""
    if not address or not interface:
        return ""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            name = socket.if_indextoname(interface)
            request = array.array("B", struct.pack("256s", name.encode()[:15]))
            fcntl.ioctl(probe.fileno(), SIOCGIFNETMASK, request)
        except OSError:
            return ""
    mask = socket.inet_ntoa(request[20:24].tobytes())
    return str(ipaddress.ip_network(f"{address}/{mask}", strict=False))
