"""What leader and worker say to each other, and how it is sealed. Pure: bytes in, values out.

A session opens with two openings and two proofs in plain JSON text frames; after that every frame is binary:
8 bytes counter, 32 bytes HMAC-SHA256, JSON. Both proofs and the two directions' keys are HMACs under the cluster
token over the whole of both openings, so neither can be moved to another session, name or boot.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from glm_spark.engine.rank import RankView
from glm_spark.engine.spec import Link, Variant
from glm_spark.fabric.exchange import Answer, Order
from glm_spark.fabric.inventory import Inventory
from glm_spark.fabric.rails import RailFault
from glm_spark.finding import Finding
from glm_spark.status import MemoryStatus, Status, WeightsStatus, WorkerState

PROTOCOL = 1
MAX_FRAME = 1 << 20  # bytes; a status with every finding and log tail stays far below
_COUNTER = 8
_MAC = hashlib.sha256().digest_size


class Wire(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Opening(Wire):
    """The first thing each side says. Nothing in it is secret; the proofs cover all of it."""

    protocol: int
    cluster: str = Field(max_length=64)
    node: str = Field(max_length=64)
    boot_id: str = Field(max_length=64)
    instance_id: str = Field(max_length=64)
    nonce: str = Field(pattern=r"^[0-9a-f]{64}$")


class Proof(Wire):
    proof: str = Field(pattern=r"^[0-9a-f]{64}$")


class Hello(Wire):
    """What must be known and agreed before anything is started. `settings` are dotted keys with their values."""

    version: str = Field(max_length=40)
    generation: int = Field(ge=0)
    settings: dict[str, Any]


class Goal(Wire):
    """What the leader wants of a Spark, whole and absolute: saying it twice changes nothing.

    idle: no rank. prepare: make ready for `generation`. run: have the rank of `generation`, once.
    `hard` ends a rank at once instead of asking it to end; `dump` takes its threads' stacks first, for it may hang.
    """

    generation: int = Field(ge=0)
    phase: Literal["idle", "prepare", "run"]
    links: tuple[Link, ...] = ()
    variant: Variant = Variant()
    hard: bool = False
    dump: bool = False
    reason: Finding | None = None


class Report(Wire):
    """How a Spark is, whole and absolute. `prepared` is the generation it is ready to start."""

    state: WorkerState = "armed"
    generation: int = Field(default=0, ge=0, description="the highest seen")
    prepared: int | None = None
    rank: RankView | None = None
    reason: Finding | None = None
    findings: tuple[Finding, ...] = ()
    bad_rails: tuple[RailFault, ...] = ()  # of those it was to be prepared for
    leaving: bool = False  # its daemon was asked to stop
    image_content: str = Field(
        default="", max_length=64, description="digest of the engine image's content; empty: none"
    )
    memory: MemoryStatus | None = None
    weights: WeightsStatus | None = None
    handover: WeightsStatus | None = None  # of the engine's image, while it is on its way
    doubt: Finding | None = None  # why its rank may not answer although it is alive
    broken: bool = False  # the doubt has lasted too long
    silent_seconds: float = 0.0  # how long its loading rank has made no progress


class Told(Wire):
    """A step of an RDMA exchange that the leader wants, by `number`."""

    number: int = Field(ge=1)
    order: Order


class Did(Wire):
    """What came of the step of that number."""

    number: int = Field(ge=1)
    answer: Answer


class Checked(Wire):
    """The findings of a preflight that the leader asked for by `number`."""

    number: int = Field(ge=1)
    findings: tuple[Finding, ...]


class Beat(Wire):
    """A sign of life. `ack` is the last sequence number received; the parts are there when they changed."""

    seq: int = Field(ge=0)
    ack: int = Field(ge=0)
    hello: Hello | None = None
    goal: Goal | None = None
    report: Report | None = None
    inventory: Inventory | None = None
    status: Status | None = None
    check: int | None = Field(default=None, ge=1, description="the leader wants a preflight of this number")
    checked: Checked | None = None
    orders: tuple[Told, ...] | None = Field(default=None, max_length=64)
    answers: tuple[Did, ...] | None = Field(default=None, max_length=64)
    provide: bool | None = Field(default=None, description="the leader wants the weights brought now")


class ProtocolFault(Exception):
    """The other side said something that cannot be accepted; `code` is the WebSocket close code to answer with."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


# WebSocket close codes of our own (4000-4999 are free for applications, RFC 6455 section 7.4.2).
MALFORMED = 4400
TOKEN_DIFFERS = 4401
PROTOCOL_DIFFERS = 4402
NOT_THE_LEADER = 4403
ANOTHER_CLUSTER = 4404
ANOTHER_NODE = 4405
TAKEN_OVER = 4409
CROWDED = 4429


def nonce() -> str:
    return secrets.token_hex(32)


def parse_opening(text: str | bytes) -> Opening:
    """An opening from the wire; ProtocolFault for anything else, and for another protocol version by its number."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise ProtocolFault(MALFORMED, "the opening is not JSON") from None
    version = value.get("protocol") if isinstance(value, dict) else None
    if isinstance(version, int) and version != PROTOCOL:
        raise ProtocolFault(PROTOCOL_DIFFERS, f"protocol {version} here is {PROTOCOL}")
    try:
        return Opening.model_validate(value)
    except ValidationError:
        raise ProtocolFault(MALFORMED, "the opening is malformed") from None


def parse_proof(text: str | bytes) -> Proof:
    try:
        return Proof.model_validate_json(text)
    except ValidationError:
        raise ProtocolFault(MALFORMED, "the proof is malformed") from None


class Challenge:
    """Both openings under the token: what each side must prove, and the keys that follow."""

    def __init__(self, token: bytes, leader: Opening, worker: Opening) -> None:
        openings = [leader.model_dump(mode="json"), worker.model_dump(mode="json")]
        self._transcript = json.dumps(openings, sort_keys=True, separators=(",", ":")).encode()
        self._token = token

    def _derive(self, purpose: str) -> bytes:
        return hmac.digest(self._token, b"glm-spark " + purpose.encode() + b"\0" + self._transcript, "sha256")

    def proof(self, role: Literal["leader", "worker"]) -> Proof:
        return Proof(proof=self._derive(f"{role} proof").hex())

    def holds(self, role: Literal["leader", "worker"], proof: Proof) -> bool:
        return hmac.compare_digest(proof.proof, self.proof(role).proof)

    def key(self, sender: Literal["leader", "worker"]) -> bytes:
        return self._derive(f"frames of the {sender}")


class Seal:
    """Seals one direction's frames, numbering them."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._next = 0

    def close(self, body: bytes) -> bytes:
        counter = self._next.to_bytes(_COUNTER, "big")
        self._next += 1
        return counter + hmac.digest(self._key, counter + body, "sha256") + body


class Unseal:
    """Opens the other direction's frames; each must be the very next one."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._next = 0

    def open(self, frame: bytes) -> bytes:
        """The body; ProtocolFault when the frame is forged, altered, repeated or out of order."""
        if not _COUNTER + _MAC <= len(frame) <= MAX_FRAME:
            raise ProtocolFault(MALFORMED, "a frame has an impossible length")
        counter, mac, body = frame[:_COUNTER], frame[_COUNTER : _COUNTER + _MAC], frame[_COUNTER + _MAC :]
        if not hmac.compare_digest(mac, hmac.digest(self._key, counter + body, "sha256")):
            raise ProtocolFault(MALFORMED, "a frame's seal does not hold")
        if int.from_bytes(counter, "big") != self._next:
            raise ProtocolFault(MALFORMED, "a frame is out of order or was seen before")
        self._next += 1
        return body


_BEAT: TypeAdapter[Annotated[Beat, Field()]] = TypeAdapter(Beat)


def encode(beat: Beat) -> bytes:
    absent = {name for name in Beat.model_fields if getattr(beat, name) is None}
    return beat.model_dump_json(exclude=absent).encode()


def decode(body: bytes) -> Beat:
    try:
        return _BEAT.validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ProtocolFault(MALFORMED, f"a message is malformed at {place}: {first['msg']}") from None
