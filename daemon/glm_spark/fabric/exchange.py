"""This Spark's part in RDMA exchanges with the others: a child an exchange, told step by step what to do.

Who takes part in what is the leader's to say (`fabric.proving`). An order names a rail by its two addresses, a step
and a role out of fixed lists, and carries the other end's queue pair as numbers: nothing in it is a device, a path or
a command. Which device and GID index that means is looked up here, as for a rank.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from glm_spark.config.model import Config
from glm_spark.engine.spec import Link
from glm_spark.fabric.inventory import Inventory
from glm_spark.fabric.links import local_rails
from glm_spark.fabric.reader import Reader
from glm_spark.finding import Finding, Severity

STEP_SECONDS = 20.0  # above the child's own limit for a whole exchange; for one that never answers
_MOST = 8  # exchanges at once; three Sparks with both ports cabled have four rails each
_MOST_HELD = 3
_ADDRESS = r"^\d{1,3}(\.\d{1,3}){3}$"

Role = Literal["listen", "connect"]
Step = Literal["open", "join", "run", "end"]


class Said(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class QueuePair(Said):
    """One end of a reliable connection, as the other end must know it. `mtu` is the port's active MTU in bytes."""

    qpn: int = Field(ge=0, lt=1 << 24)
    psn: int = Field(ge=0, lt=1 << 24)
    gid: str = Field(pattern=r"^[0-9a-f:.]{2,45}$")
    mtu: int = Field(ge=0, le=4096)


class Measured(Said):
    """What one end measured; `step` is how far it came ("done" at the end), `received` the messages that came in.

    Times in seconds. Bytes and seconds are of its own RDMA writes.
    """

    step: str = Field(max_length=20)
    received: int = Field(default=0, ge=0)
    round_trip: float | None = None
    wrote_bytes: int = Field(default=0, ge=0)
    wrote_seconds: float = 0.0

    @property
    def gbps(self) -> float | None:
        """Gb/s of its writes."""
        return self.wrote_bytes * 8e-9 / self.wrote_seconds if self.wrote_bytes and self.wrote_seconds else None


class Failed(Said):
    """Where an exchange failed and what verbs said: completion status, the vendor's syndrome, errno; 0 for none."""

    step: str = Field(max_length=20)
    text: str = Field(max_length=300)
    status: int = 0
    vendor_error: int = 0
    errno: int = 0


class Order(Said):
    """One step of an exchange over the rail from `own` to `peer`, as the Spark that is told sees it.

    open: make a queue pair, say its parameters. join: connect it to `end`. run: exchange. end: give it up, saying
    how far it came. A new "open" for the same rail gives the old one up.
    """

    step: Step
    own: str = Field(pattern=_ADDRESS)
    peer: str = Field(pattern=_ADDRESS)
    role: Role
    end: QueuePair | None = None


class Answer(Said):
    """`finding` says why the step could not be done at all; `failed` what verbs said to it."""

    end: QueuePair | None = None
    measured: Measured | None = None
    failed: Failed | None = None
    finding: Finding | None = None


class Exchanges:
    """The children of this Spark, at most one a rail. Used by one task at a time for each rail."""

    def __init__(
        self,
        me: str,
        config: Callable[[], Config],
        inventory: Callable[[], Inventory | None],
        command: tuple[str, ...] = (sys.executable, "-P", "-m", "glm_spark.fabric.rdma"),
    ) -> None:
        self._me = me
        self._config = config
        self._inventory = inventory
        self._command = command
        self._children: dict[tuple[str, str], _Child] = {}
        self._held: list[_Child] = []  # that could not be killed

    async def obey(self, order: Order) -> Answer:
        """One step. Never raises for what the other side, the device or the child does."""
        rail = (order.own, order.peer)
        try:
            async with asyncio.timeout(STEP_SECONDS):
                if order.step == "open":
                    return await self._open(rail, order.role)
                child = self._children.get(rail)
                if child is None:
                    return Answer(finding=self._finding(rail, "no exchange is open there", Severity.UNKNOWN))
                if order.step == "end":
                    return await self._end(rail)
                return await child.step(order)
        except TimeoutError:
            await self._give_up(rail)
            text = f"no answer within {STEP_SECONDS:g} s at step {order.step}"
            return Answer(finding=self._finding(rail, text, Severity.UNKNOWN))
        except (OSError, ValueError, _Gone) as error:
            await self._give_up(rail)
            return Answer(finding=self._finding(rail, str(error), Severity.UNKNOWN))

    async def close(self) -> None:
        """Ends all of them."""
        for rail in list(self._children):
            await self._give_up(rail)

    async def _open(self, rail: tuple[str, str], role: Role) -> Answer:
        await self._give_up(rail)
        if len(self._children) >= _MOST:
            return Answer(finding=self._finding(rail, f"{_MOST} exchanges are open already", Severity.UNKNOWN))
        self._held = [child for child in self._held if not child.ended]
        if len(self._held) >= _MOST_HELD:
            text = f"{len(self._held)} exchanges cannot be ended; the kernel holds them"
            return Answer(finding=self._finding(rail, text, Severity.UNKNOWN))
        found = self._device(rail)
        if isinstance(found, Finding):
            return Answer(finding=found)
        device, index = found
        child = self._children[rail] = await _Child.start((*self._command, device, str(index), role))
        return await child.answer()

    def _device(self, rail: tuple[str, str]) -> tuple[str, int] | Finding:
        """The device and GID index that a rank would use for this rail, as last read."""
        config, inventory = self._config(), self._inventory()
        if inventory is None:
            return self._finding(rail, "links and devices have not been read", Severity.UNKNOWN)
        others = [node.name for node in config.node if node.name != self._me]
        link = Link(a=self._me, b=others[0], rails=(rail,))
        rails, findings = local_rails(config, self._me, inventory, (link,))
        if not rails:
            return findings[0] if findings else self._finding(rail, "no such rail here", Severity.UNKNOWN)
        device, index = rails[0].device, rails[0].gid_index
        if device is None or index is None:
            return self._finding(rail, "no RoCE device on it", Severity.ERROR)
        return device, index

    async def _end(self, rail: tuple[str, str]) -> Answer:
        child = self._children[rail]
        try:
            async with asyncio.timeout(1.0):
                return await child.stop()
        except (TimeoutError, _Gone):
            return Answer()
        finally:
            await self._give_up(rail)

    async def _give_up(self, rail: tuple[str, str]) -> None:
        child = self._children.pop(rail, None)
        if child is not None and not await child.end():
            self._held.append(child)

    def _finding(self, rail: tuple[str, str], text: str, severity: Severity) -> Finding:
        return Finding(
            code="fabric.rdma-untested",
            severity=severity,
            node=self._me,
            subject=f"RDMA exchange from {rail[0]} to {rail[1]}",
            measured=text[:1000],
            wanted="an exchange of messages over verbs",
            fix=f"See journalctl -u glm-spark and journalctl -k on {self._me}.",
        )


class _Gone(Exception):
    """The child ended or said something else."""


class _Child:
    """A started `glm_spark.fabric.rdma`. What it says out of turn (a fault) answers the next step."""

    def __init__(self, reader: Reader, errors: asyncio.Task[None]) -> None:
        self._reader = reader
        self._errors = errors
        self._turn = asyncio.Lock()
        self._last: Answer | None = None

    @classmethod
    async def start(cls, command: tuple[str, ...]) -> _Child:
        reader = await Reader.start(command)
        return cls(reader, asyncio.create_task(reader.collect_errors(), name="last words of an exchange"))

    async def step(self, order: Order) -> Answer:
        if self._last is not None:
            return self._last
        if order.step == "join":
            if order.end is None:
                raise _Gone("no queue pair was given to join")
            self._reader.say({"end": order.end.model_dump()})
        else:
            self._reader.say({"run": True})
        return await self.answer()

    async def answer(self) -> Answer:
        """Its next word. A fault or a result is its last one, and is kept."""
        async with self._turn:
            if self._last is not None:
                return self._last
            line = await self._reader.line()
            if not line:
                raise _Gone(f"the exchange's program ended: {await self._reader.farewell(self._errors)}")
            answer = _answer(line)
            if answer.failed is not None or answer.measured is not None:
                self._last = answer
            return answer

    async def stop(self) -> Answer:
        """How far it came; a step that is under way is ended by this and gets the same answer."""
        if self._last is None:
            self._reader.say({"stop": True})
        return await self.answer()

    async def end(self) -> bool:
        """False when the kernel holds it."""
        ended = await self._reader.end()
        self._errors.cancel()
        await asyncio.wait([self._errors])
        return ended

    @property
    def ended(self) -> bool:
        return self._reader.ended


def _answer(line: bytes) -> Answer:
    try:
        told: dict[str, Any] = json.loads(line)
        return Answer(
            end=QueuePair.model_validate(told["end"]) if "end" in told else None,
            measured=Measured.model_validate(told["result"]) if "result" in told else None,
            failed=Failed.model_validate(told["fault"]) if "fault" in told else None,
        )
    except (ValueError, ValidationError, TypeError) as error:
        raise _Gone(f"the exchange's program said something else: {str(error)[:200]}") from None
