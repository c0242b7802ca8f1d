"""`python -m glm_spark.fabric.rdma DEVICE GID_INDEX listen|connect`: one end of an RDMA exchange, in a child.

Real work requests on a reliable queue pair: small messages to and fro for the round trip, messages of several
packets, then RDMA writes both ways whose content the other end checks. It speaks JSON lines:

    says {"end": {"qpn", "psn", "gid", "mtu"}}    its end of the queue pair
    hears {"end": {...}}, says {"joined": true}   the other end is set; both must be before either runs
    hears {"run": true}, says {"result": {...}}   what was measured, as `fabric.exchange.Measured`
    hears {"stop": true}, or nothing more         ends; a running exchange says {"fault": {...}} first

Any failure is said as {"fault": {"step", "text", "status", "vendor_error", "errno"}}. Works with pyverbs 44 (Debian
12), 50 (Ubuntu 24.04) and those of nixpkgs: constants are numbers, because pyverbs.enums is gone since 60.
"""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import json
import os
import random
import select
import signal
import struct
import sys
import time
import zlib
from dataclasses import dataclass
from typing import Any

PORT = 1
MESSAGE = 32 << 10  # bytes of a long message: eight packets of 4096
CHUNK, SLOTS = 512 << 10, 8  # bytes of one RDMA write, and how many may be under way
WRITE_SECONDS, WRITE_BYTES = 0.25, 256 << 20  # a direction's writes end with whichever comes first
ROUNDS, ROUND_SECONDS = 200, 0.1
LIMIT_SECONDS = 8.0  # of the whole exchange
LIFE_SECONDS = 60  # of this process, whatever its parent forgets

_RC = 2  # ibv_qp_type
_LOCAL_WRITE, _REMOTE_WRITE = 1, 2  # ibv_access_flags
_SEND, _RDMA_WRITE = 2, 0  # ibv_wr_opcode
_SIGNALED = 2  # ibv_send_flags
_TIMEOUT, _RETRIES = 16, 6  # 4.096 us * 2^16 = 0.27 s, seven times; soft-RoCE takes 7 for "without end"
_RECEIVES = 4
_MTU = {1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096}
_STATUS = {
    1: "local length error",
    2: "local queue pair operation error",
    4: "local protection error",
    5: "work request flushed",
    8: "local access error",
    9: "remote invalid request",
    10: "remote access error",
    11: "remote operation error",
    12: "transport retries exhausted",
    13: "receiver-not-ready retries exhausted",
    14: "local RDD violation",
    21: "fatal error",
    22: "response timeout",
    23: "general error",
}
_WORDS = struct.Struct("!4sBxxxIQQ")  # magic, kind, number, two values
_MAGIC = b"GSRX"
_SMALL, _WHERE, _DONE, _VERDICT = 1, 2, 3, 4
_SEND_AT, _RECEIVE_AT = 0, MESSAGE
_SOURCE_AT = MESSAGE * (1 + _RECEIVES)
_TARGET_AT = _SOURCE_AT + CHUNK


class Fault(Exception):
    """The exchange failed in `step`."""

    def __init__(self, step: str, text: str, *, status: int = 0, vendor_error: int = 0, errno: int = 0) -> None:
        super().__init__(text)
        self.told = {"step": step, "text": text[:300], "status": status, "vendor_error": vendor_error, "errno": errno}


def pattern(seed: int, size: int) -> bytes:
    """The content that both ends can make from the writer's packet sequence number."""
    return random.Random(seed).randbytes(size)


@dataclass
class Measured:
    """What this end measured; times in seconds. `received` counts messages that came in whole."""

    step: str = "open"
    received: int = 0
    round_trip: float | None = None
    wrote_bytes: int = 0
    wrote_seconds: float = 0.0


class Exchange:
    """One queue pair with its memory."""

    def __init__(self, device: str, gid_index: int, measured: Measured) -> None:
        from pyverbs.cq import CQ
        from pyverbs.device import Context
        from pyverbs.mr import MR
        from pyverbs.pd import PD
        from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr

        self.measured = measured
        self._gid_index = gid_index
        self._context = Context(name=device)
        self._mtu = self._context.query_port(PORT).active_mtu
        self._gid = str(ipaddress.IPv6Address(self._gid_bytes()))
        self._pd = PD(self._context)
        self._memory = MR(self._pd, _TARGET_AT + CHUNK * SLOTS, _LOCAL_WRITE | _REMOTE_WRITE)
        self._cq = CQ(self._context, 64)
        cap = QPCap(max_send_wr=SLOTS + 4, max_recv_wr=_RECEIVES + 2, max_send_sge=1, max_recv_sge=1)
        first = QPAttr(port_num=PORT)
        first.qp_access_flags = _REMOTE_WRITE  # taken over when it is made, not when it is joined
        self._qp = QP(self._pd, QPInitAttr(qp_type=_RC, scq=self._cq, rcq=self._cq, cap=cap), first)
        self._psn = int.from_bytes(os.urandom(3), "big")
        self._peer_psn = 0
        self._until = time.monotonic() + LIMIT_SECONDS
        self._received: list[int] = []  # slots with a message that was not looked at yet
        self._sent = 0  # completions of sends and writes not accounted for yet

    def _gid_bytes(self) -> bytes:
        gid = self._context.query_gid(PORT, self._gid_index)
        return bytes.fromhex(str(gid).replace(":", ""))

    @property
    def end(self) -> dict[str, Any]:
        return {"qpn": self._qp.qp_num, "psn": self._psn, "gid": self._gid, "mtu": _MTU.get(self._mtu, 0)}

    def join(self, end: dict[str, Any]) -> None:
        """Set the other end; afterwards its messages are taken."""
        from pyverbs.addr import GID, AHAttr, GlobalRoute
        from pyverbs.qp import QPAttr

        self.measured.step = "join"
        self._peer_psn = int(end["psn"])
        route = GlobalRoute(
            dgid=GID(ipaddress.IPv6Address(end["gid"]).exploded), sgid_index=self._gid_index, hop_limit=64
        )
        path_mtu = next((code for code, size in _MTU.items() if size == end["mtu"]), self._mtu)
        attributes = QPAttr(port_num=PORT)
        attributes.path_mtu = min(path_mtu, self._mtu)
        attributes.dest_qp_num = int(end["qpn"])
        attributes.rq_psn = self._peer_psn
        attributes.max_dest_rd_atomic = 1
        attributes.max_rd_atomic = 1
        attributes.min_rnr_timer = 12
        attributes.ah_attr = AHAttr(is_global=1, port_num=PORT, gr=route)
        attributes.sq_psn = self._psn
        attributes.timeout = _TIMEOUT
        attributes.retry_cnt = _RETRIES
        attributes.rnr_retry = 6
        self._qp.to_rts(attributes)
        for slot in range(_RECEIVES):
            self._post_receive(slot)

    def run(self, connects: bool) -> None:
        self._until = time.monotonic() + LIMIT_SECONDS
        self._rounds(connects)
        self._long_messages(connects)
        rkey, address = self._tell_where()
        if connects:
            self._write(rkey, address)
            self._check_writes()
        else:
            self._check_writes()
            self._write(rkey, address)
        self.measured.step = "done"

    # -- the parts of an exchange ------------------------------------------------------------------------------

    def _rounds(self, connects: bool) -> None:
        """Small messages to and fro. The connecting end says with the last one that it is the last."""
        self.measured.step = "small"
        best: float | None = None
        end = time.monotonic() + ROUND_SECONDS
        for number in range(ROUNDS):
            if connects:
                last = number == ROUNDS - 1 or (number >= 4 and time.monotonic() > end)
                began = time.perf_counter()
                self._send(_SMALL, number, int(last))
                self._expect(_SMALL, number)
                took = time.perf_counter() - began
                best = took if best is None else min(best, took)
            else:
                last = bool(self._expect(_SMALL, number)[0])
                self._send(_SMALL, number, int(last))
            if last:
                break
        self.measured.round_trip = best

    def _long_messages(self, connects: bool) -> None:
        self.measured.step = "long"
        if connects:
            self._send_long()
            self._take_long()
        else:
            self._take_long()
            self._send_long()

    def _send_long(self) -> None:
        self._memory.write(pattern(self._psn, MESSAGE), MESSAGE, _SEND_AT)
        self._post_send(MESSAGE)

    def _take_long(self) -> None:
        slot = self._next_message()
        whole = self._memory.read(MESSAGE, _RECEIVE_AT + slot * MESSAGE) == pattern(self._peer_psn, MESSAGE)
        self._post_receive(slot)
        if not whole:
            raise Fault("payload", "a long message came in altered")

    def _tell_where(self) -> tuple[int, int]:
        """Each end tells where the other may write; returns the other's key and address."""
        self.measured.step = "where"
        own = pattern(self._psn, CHUNK)
        self._memory.write(own, CHUNK, _SOURCE_AT)
        self._memory.write(bytes(CHUNK * SLOTS), CHUNK * SLOTS, _TARGET_AT)
        self._send(_WHERE, self._memory.rkey, self._memory.buf + _TARGET_AT)
        return self._expect_any(_WHERE)

    def _write(self, rkey: int, address: int) -> None:
        """Write chunks until the time or the amount is up, at most SLOTS under way; then have them checked."""
        self.measured.step = "write"
        posted = done = 0
        began = time.perf_counter()
        most = WRITE_BYTES // CHUNK
        while True:
            enough = posted >= most or (posted >= SLOTS and time.perf_counter() - began > WRITE_SECONDS)
            if enough and done == posted:
                break
            if not enough and posted - done < SLOTS:
                self._post_write(rkey, address + (posted % SLOTS) * CHUNK)
                posted += 1
            else:
                done += self._completed()
        self.measured.wrote_seconds = time.perf_counter() - began
        self.measured.wrote_bytes = posted * CHUNK
        self._send(_DONE, posted, 0)
        if not self._expect(_VERDICT, posted)[0]:
            raise Fault("payload", "what was written did not arrive as it was sent")

    def _check_writes(self) -> None:
        self.measured.step = "check"
        posted = self._expect_any(_DONE)[0]
        wanted = zlib.crc32(pattern(self._peer_psn, CHUNK))
        slots = range(min(posted, SLOTS))
        whole = all(zlib.crc32(self._memory.read(CHUNK, _TARGET_AT + slot * CHUNK)) == wanted for slot in slots)
        self._send(_VERDICT, posted, int(whole))
        if not whole:
            raise Fault("payload", "what was written here is not what the other end sent")

    # -- messages ----------------------------------------------------------------------------------------------

    def _send(self, kind: int, number: int, value: int) -> None:
        words = _WORDS.pack(_MAGIC, kind, number & 0xFFFFFFFF, number, value)
        self._memory.write(words, len(words), _SEND_AT)
        self._post_send(len(words))

    def _expect(self, kind: int, number: int) -> tuple[int]:
        told, value = self._expect_any(kind)
        if told != number:
            raise Fault("payload", f"message {number} was wanted and {told} came")
        return (value,)

    def _expect_any(self, kind: int) -> tuple[int, int]:
        slot = self._next_message()
        magic, told, _, number, value = _WORDS.unpack(self._memory.read(_WORDS.size, _RECEIVE_AT + slot * MESSAGE))
        self._post_receive(slot)
        if magic != _MAGIC or told != kind:
            raise Fault("payload", "a message came in altered")
        return number, value

    def _next_message(self) -> int:
        while not self._received:
            self._poll()
        self.measured.received += 1
        return self._received.pop(0)

    # -- work requests -----------------------------------------------------------------------------------------

    def _post_receive(self, slot: int) -> None:
        from pyverbs.wr import SGE, RecvWR

        sge = SGE(self._memory.buf + _RECEIVE_AT + slot * MESSAGE, MESSAGE, self._memory.lkey)
        self._qp.post_recv(RecvWR(wr_id=slot, num_sge=1, sg=[sge]))

    def _post_send(self, size: int) -> None:
        """Sends the send buffer's first bytes and waits until they arrived."""
        from pyverbs.wr import SGE, SendWR

        sge = SGE(self._memory.buf + _SEND_AT, size, self._memory.lkey)
        self._qp.post_send(SendWR(wr_id=_RECEIVES, opcode=_SEND, num_sge=1, sg=[sge], send_flags=_SIGNALED))
        while not self._completed():
            pass

    def _post_write(self, rkey: int, address: int) -> None:
        from pyverbs.wr import SGE, SendWR

        sge = SGE(self._memory.buf + _SOURCE_AT, CHUNK, self._memory.lkey)
        work = SendWR(wr_id=_RECEIVES, opcode=_RDMA_WRITE, num_sge=1, sg=[sge], send_flags=_SIGNALED)
        work.set_wr_rdma(rkey, address)
        self._qp.post_send(work)

    def _completed(self) -> int:
        """How many sends and writes were completed since it was asked last; waits a moment when none was."""
        if not self._sent:
            self._poll()
        done, self._sent = self._sent, 0
        return done

    def _poll(self) -> None:
        count, completions = self._cq.poll(16)
        if not count:
            self._idle()
            return
        for told in completions:
            if told.status:
                text = _STATUS.get(told.status, f"completion status {told.status}")
                raise Fault(self.measured.step, text, status=told.status, vendor_error=told.vendor_err)
            if told.wr_id < _RECEIVES:
                self._received.append(int(told.wr_id))
            else:
                self._sent += 1

    def _idle(self) -> None:
        os.sched_yield()
        if time.monotonic() > self._until:
            raise Fault(self.measured.step, f"no answer within {LIMIT_SECONDS:g} s")
        if select.select([0], [], [], 0)[0]:
            raise Fault(self.measured.step, "stopped")


def _say(**what: Any) -> None:
    sys.stdout.write(json.dumps(what, separators=(",", ":")) + "\n")
    sys.stdout.flush()


def _heard(word: str) -> Any:
    """What the next line says under `word`; ends the program when it says something else, or nothing."""
    with open(0, "rb", buffering=0, closefd=False) as heard:  # unbuffered, so that select sees what is left
        line = heard.readline()
    told = json.loads(line) if line.strip() else {}
    if word not in told:
        raise SystemExit(0)
    return told[word]


def converse(device: str, gid_index: int, connects: bool) -> None:
    """Raises Fault, and what pyverbs raises."""
    from pyverbs.pyverbs_error import PyverbsError

    measured = Measured()
    try:
        exchange = Exchange(device, gid_index, measured)
        _say(end=exchange.end)
        exchange.join(_heard("end"))
        _say(joined=True)
        _heard("run")
        exchange.run(connects)
        _say(result=vars(measured))
    except Fault as fault:
        _say(fault=fault.told, result=vars(measured))
    except (PyverbsError, OSError) as error:
        number = getattr(error, "error_code", None) or getattr(error, "errno", None) or 0
        _say(fault=Fault(measured.step, str(error), errno=int(number)).told, result=vars(measured))
    _heard("stop")


def main(arguments: list[str]) -> int:
    if len(arguments) != 3 or arguments[2] not in ("listen", "connect"):
        print("usage: python -m glm_spark.fabric.rdma DEVICE GID_INDEX listen|connect", file=sys.stderr)
        return 2
    device, gid_index, role = arguments
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG: ends with the thread that started it
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    signal.alarm(LIFE_SECONDS)
    converse(device, int(gid_index), role == "connect")
    return 0


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main(sys.argv[1:]))
