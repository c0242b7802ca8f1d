"""The connections that weights travel on: apart from the session, proven like it, sealed but for the content itself.

The leader dials. Both sides say an opening and prove the key made for this purpose; then the worker asks and the
leader answers in sealed frames. A chunk's bytes follow their answer as they are: they are proven by the pinned
digest of the whole, wherever they came from.
"""

from __future__ import annotations

import contextlib
import hmac
import socket
import uuid
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from glm_spark.cluster import protocol
from glm_spark.cluster.protocol import Challenge, Opening, ProtocolFault, Seal, Unseal
from glm_spark.config.keys import REPOSITORY, REVISION
from glm_spark.weights.job import Door

HANDSHAKE_SECONDS = 5.0
SILENCE_SECONDS = 15.0  # an answer that does not move for so long is a broken connection
PROBE_SECONDS = 5  # a silent end is asked whether it still knows this connection: a reset host does not
MOST_DIGESTS = 256  # chunks in one answer; keeps it far below a frame's limit
_LENGTH = 4
_BUFFER = 1 << 20  # bytes under way a connection: a beat on the same cable waits for no more than this
_BULK = 2  # TC_PRIO_BULK: queues that know priorities let beats pass
_TOS_THROUGHPUT = 0x08

Digest = Annotated[str, Field(pattern=r"^([0-9a-f]{40}|[0-9a-f]{64})$")]


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Ask(_Message):
    """What the worker asks for. Content is named by its digest; there is no path in any question."""

    ask: Literal["list", "document", "chunk", "digests", "bye"]
    repository: str = Field(default="x/x", pattern=REPOSITORY)
    revision: str = Field(default="0" * 40, pattern=REVISION)
    blob: Digest = "0" * 64
    first: int = Field(default=0, ge=0)
    count: int = Field(default=1, ge=1, le=MOST_DIGESTS)
    complete: bool = False  # with bye: the worker has everything


class Answer(_Message):
    """`length` bytes follow; or the list, a document, digests of chunks; or why not, by its code and in words."""

    length: int = Field(default=0, ge=0)
    list: str = ""
    document: str = ""
    digests: tuple[str, ...] = ()
    refused: Literal["", "not-served", "not-there"] = ""
    text: str = Field(default="", max_length=500)


Kind = TypeVar("Kind", Ask, Answer)


class Broken(Exception):
    """The connection ended or stalled."""


def key_of(token: bytes, goods: Literal["weights", "image"] = "weights") -> bytes:
    """The transfers' own secret: who learns it can neither open a session nor make out the token.

    Each kind of goods has its own, so that a connection for the one is a stranger's to the other.
    """
    return hmac.digest(token, f"glm-spark {goods}, transfers".encode(), "sha256")


def opening(door: Door, node: str) -> Opening:
    return Opening(
        protocol=protocol.PROTOCOL,
        cluster=door.cluster,
        node=node,
        boot_id="",
        instance_id=uuid.uuid4().hex,
        nonce=protocol.nonce(),
    )


def prepare(sock: socket.socket) -> None:
    """Options of a transfer's socket, at either end."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(SILENCE_SECONDS * 1000))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
    with contextlib.suppress(OSError):  # a courtesy to the beats, no more
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, _TOS_THROUGHPUT)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, _BULK)


def receive_into(sock: socket.socket, view: memoryview) -> None:
    """Fills the view. Raises Broken."""
    while view:
        try:
            count = sock.recv_into(view)
        except (OSError, TimeoutError) as error:
            raise Broken(str(error) or "no answer") from None
        if count == 0:
            raise Broken("closed by the other side")
        view = view[count:]


class Wire:
    """An opened connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._seal: Seal | None = None
        self._unseal: Unseal | None = None

    def open_as_leader(self, door: Door) -> None:
        """Raises Broken and ProtocolFault."""
        self.sock.settimeout(HANDSHAKE_SECONDS)
        mine = opening(door, door.leader)
        self._send(mine.model_dump_json().encode())
        theirs = _same(door, protocol.parse_opening(self._receive()), door.worker)
        challenge = Challenge(bytes.fromhex(door.key), leader=mine, worker=theirs)
        self._send(challenge.proof("leader").model_dump_json().encode())
        _hold(challenge, "worker", self._receive())
        self._ready(Seal(challenge.key("leader")), Unseal(challenge.key("worker")))

    def open_as_worker(self, door: Door) -> None:
        """The leader proves itself first. Raises Broken and ProtocolFault."""
        self.sock.settimeout(HANDSHAKE_SECONDS)
        theirs = _same(door, protocol.parse_opening(self._receive()), door.leader)
        mine = opening(door, door.worker)
        self._send(mine.model_dump_json().encode())
        challenge = Challenge(bytes.fromhex(door.key), leader=theirs, worker=mine)
        _hold(challenge, "leader", self._receive())
        self._send(challenge.proof("worker").model_dump_json().encode())
        self._ready(Seal(challenge.key("worker")), Unseal(challenge.key("leader")))

    def _ready(self, seal: Seal, unseal: Unseal) -> None:
        self._seal, self._unseal = seal, unseal
        self.sock.settimeout(SILENCE_SECONDS)

    def say(self, message: Ask | Answer) -> None:
        assert self._seal is not None
        self._send(self._seal.close(message.model_dump_json(exclude_defaults=True).encode()))

    def hear_ask(self) -> Ask:
        """The next question, waited for without end: the worker may be hashing."""
        self.sock.settimeout(None)
        try:
            head = bytearray(_LENGTH)
            receive_into(self.sock, memoryview(head))
        finally:
            self.sock.settimeout(SILENCE_SECONDS)
        return _parse(Ask, self._open(self._body(head)))

    def hear_answer(self) -> Answer:
        return _parse(Answer, self._open(self._receive()))

    def close(self) -> None:
        self.sock.close()

    def _open(self, frame: bytes) -> bytes:
        assert self._unseal is not None
        return self._unseal.open(frame)

    def _send(self, body: bytes) -> None:
        try:
            self.sock.sendall(len(body).to_bytes(_LENGTH, "big") + body)
        except OSError as error:
            raise Broken(str(error)) from None

    def _receive(self) -> bytes:
        head = bytearray(_LENGTH)
        receive_into(self.sock, memoryview(head))
        return self._body(head)

    def _body(self, head: bytearray) -> bytes:
        length = int.from_bytes(head, "big")
        limit = protocol.MAX_FRAME if self._unseal is not None else 4096
        if length > limit:
            raise ProtocolFault(protocol.MALFORMED, "a frame has an impossible length")
        body = bytearray(length)
        receive_into(self.sock, memoryview(body))
        return bytes(body)


def _same(door: Door, theirs: Opening, name: str) -> Opening:
    if (theirs.cluster, theirs.node) != (door.cluster, name):
        raise ProtocolFault(protocol.ANOTHER_NODE, f"{theirs.node} of {theirs.cluster} answers where {name} is due")
    return theirs


def _hold(challenge: Challenge, role: Literal["leader", "worker"], text: bytes) -> None:
    if not challenge.holds(role, protocol.parse_proof(text)):
        raise ProtocolFault(protocol.TOKEN_DIFFERS, "the cluster tokens differ")


def _parse(kind: type[Kind], body: bytes) -> Kind:
    try:
        return kind.model_validate_json(body)
    except ValidationError:
        raise ProtocolFault(protocol.MALFORMED, "a message is malformed") from None
