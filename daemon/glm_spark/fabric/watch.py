"""Keeps one reading of this Spark's links and devices up to date, whatever happens to the calls that read them."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any

from glm_spark.fabric.inventory import Inventory
from glm_spark.fabric.reader import Reader, reader_command
from glm_spark.finding import Finding, Severity

_BACK_OFF = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)  # seconds before the next reader is started
_LONG_LIFE = 30.0  # seconds after which a reader's end starts the back-off anew
_MOST_PATIENCE = 6  # deadlines that a late reader is given on top
_ABANDONED = 3  # readers that could not be killed; with so many no further one is started


class _Ended(Exception):
    """The reader has gone; the text says how."""


class _Stuck(Exception):
    """The reader did not answer by the deadline."""


class Watcher:
    """Runs `glm_spark.fabric.child watch` and holds its latest reading.

    A reader that does not answer within `deadline` seconds is told, and with some patience killed and replaced; one
    that a wedged driver holds in the kernel cannot be killed and is left behind, at most three of them. Meanwhile
    `inventory` stays the last reading and `findings` says that it is old.
    """

    def __init__(
        self,
        peers: Iterable[str],
        on_change: Callable[[Inventory], None],
        deadline: float = 5.0,
        *,
        node: str = "",
        on_findings: Callable[[tuple[Finding, ...]], None] | None = None,
        command: Sequence[str] | None = None,
    ) -> None:
        """`on_change` is called in the loop with each reading that differs from the one before (neighbours aside).

        `node` names this Spark in findings; `command` replaces the reader's program up to its mode.
        """
        self.inventory: Inventory | None = None
        self.findings: tuple[Finding, ...] = ()
        self._peers = tuple(dict.fromkeys(peer for peer in peers if peer))
        self._on_change = on_change
        self._on_findings = on_findings
        self._deadline = deadline
        self._node = node or socket.gethostname()
        self._command = tuple(command) if command is not None else reader_command()
        self._numbers = count(1)
        self._asked: dict[int, asyncio.Future[Inventory]] = {}
        self._reader: Reader | None = None
        self._ending: asyncio.Task[None] | None = None
        self._abandoned: list[Reader] = []
        self._failures = 0

    @property
    def pid(self) -> int | None:
        """The reader's process, None between two of them."""
        return self._reader.pid if self._reader is not None and not self._reader.ended else None

    async def fresh(self, timeout: float) -> Inventory:
        """A reading begun after this call. Raises TimeoutError when none comes within `timeout` seconds."""
        number = next(self._numbers)
        answer: asyncio.Future[Inventory] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        try:
            async with asyncio.timeout(timeout):
                if self._reader is not None:
                    self._reader.ask(number)
                return await answer
        finally:
            self._asked.pop(number, None)

    def late(self, seconds: float) -> Finding:
        """That a fresh reading did not come within `seconds`, for somebody who cannot go on without."""
        return self._stuck_finding(f"no reading for {seconds:g} s")

    async def run(self) -> None:
        """Reads until cancelled; no fault of the reader ends it."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                began = loop.time()
                try:
                    await self._apart()
                except* (_Ended, OSError) as group:
                    self._tell(self._ended_finding(_first(group)))
                except* _Stuck as group:
                    self._tell(self._stuck_finding(_first(group)))
                if loop.time() - began > _LONG_LIFE:
                    self._failures = 0
                await asyncio.sleep(_BACK_OFF[min(self._failures, len(_BACK_OFF) - 1)])
                self._failures += 1
        finally:
            await self._put_away()

    async def _apart(self) -> None:
        """One life of the reader in a task of its own, ended with this.

        A TaskGroup of Python 3.11 and 3.12 forgets a cancellation of its task that arrives together with a
        child's fault (CPython issue 116720): a signal that ended daemon and reader at once left a daemon that
        never stopped.
        """
        life = asyncio.create_task(self._one_life(), name="fabric reader's life")
        try:
            await asyncio.wait({life})
        except asyncio.CancelledError:
            life.cancel()
            await asyncio.wait({life})
            if not life.cancelled():
                life.exception()  # retrieved: it ended by a fault of its own meanwhile
            raise
        life.result()

    async def _one_life(self) -> None:
        self._abandoned = [reader for reader in self._abandoned if not reader.ended]
        if len(self._abandoned) >= _ABANDONED:
            raise _Stuck(f"{len(self._abandoned)} readers cannot be ended; the kernel holds them")
        self._reader = reader = await Reader.start((*self._command, "watch", *self._peers))
        try:
            async with asyncio.TaskGroup() as group:
                errors = group.create_task(reader.collect_errors(), name="fabric reader's errors")
                group.create_task(self._listen(reader, errors), name="fabric reader")
                group.create_task(self._question(), name="fabric reader's deadline")
                for number in self._asked:
                    reader.ask(number)
        finally:
            await self._put_away()

    async def _listen(self, reader: Reader, errors: asyncio.Task[None]) -> None:
        while True:
            try:
                line = await reader.line()
                if not line:
                    break
                told = json.loads(line)
                inventory, ask = self._named(Inventory.model_validate(told["inventory"])), told["ask"]
            except (ValueError, KeyError, TypeError) as error:
                raise _Ended(f"it said something else than a reading: {str(error)[:200]}") from None
            self._take(inventory, ask)
        raise _Ended(await reader.farewell(errors))

    def _take(self, inventory: Inventory, ask: int | None) -> None:
        before, self.inventory = self.inventory, inventory
        self._tell(None)
        if before is None or _steady(before) != _steady(inventory):
            self._on_change(inventory)
        answer = self._asked.get(ask) if ask is not None else None
        if answer is not None and not answer.done():
            answer.set_result(inventory)

    async def _question(self) -> None:
        """Ask for a reading at a regular pace, to tell a stuck reader from a quiet one.

        One that is late is told at once and ended later, each time a little later: on a machine that is merely slow
        readers would else be ended for ever before they could answer.
        """
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                await self.fresh(self._deadline)
            except TimeoutError:
                self._tell(self._stuck_finding(f"no reading for {loop.time() - began:.1f} s"))
                try:
                    await self.fresh(self._deadline * min(1 + self._failures, _MOST_PATIENCE))
                except TimeoutError:
                    raise _Stuck(f"no reading for {loop.time() - began:.1f} s") from None
            await asyncio.sleep(max(self._deadline / 2, 0.05))

    async def _put_away(self) -> None:
        """End the reader, also when this is cancelled meanwhile: run() waits for it once more before it returns."""
        reader, self._reader = self._reader, None
        if reader is not None:
            self._ending = asyncio.create_task(self._end(reader), name="fabric reader's end")
        if self._ending is not None:
            await asyncio.shield(self._ending)

    async def _end(self, reader: Reader) -> None:
        if not await reader.end():
            self._abandoned.append(reader)

    def _named(self, inventory: Inventory) -> Inventory:
        """The reader does not know the Spark's name; its findings get it here."""
        named = tuple(finding.model_copy(update={"node": self._node}) for finding in inventory.findings)
        return inventory.model_copy(update={"findings": named})

    def _tell(self, finding: Finding | None) -> None:
        findings = (finding,) if finding is not None else ()
        if findings != self.findings:
            self.findings = findings
            if self._on_findings is not None:
                self._on_findings(findings)

    def _stuck_finding(self, text: str) -> Finding:
        held = len([reader for reader in self._abandoned if not reader.ended])
        return Finding(
            code="fabric.reader-stuck",
            severity=Severity.UNKNOWN,
            node=self._node,
            subject="reading of links and RoCE devices",
            measured=text + (f"; {held} of {_ABANDONED} stuck readers left behind in the kernel" if held else ""),
            wanted=f"an answer within {self._deadline:g} s",
            fix="A network driver may hold the kernel's lock: see journalctl -k. Only a reboot frees it if the "
            "message stays.",
        )

    def _ended_finding(self, text: str) -> Finding:
        return Finding(
            code="fabric.reader-ended",
            severity=Severity.UNKNOWN,
            node=self._node,
            subject="reading of links and RoCE devices",
            measured=f"the reader ended: {text}",
            wanted="a reader that runs",
            fix="It is started again. If the message stays, run: python3 -m glm_spark.fabric.child once",
        )


async def read_once(
    peers: Iterable[str], deadline: float = 5.0, *, node: str = "", command: Sequence[str] | None = None
) -> Inventory:
    """One reading by a child of its own, for programs that do not watch. Raises TimeoutError, OSError."""
    found: asyncio.Future[Inventory] = asyncio.get_running_loop().create_future()

    def take(inventory: Inventory) -> None:
        if not found.done():
            found.set_result(inventory)

    watcher = Watcher(peers, take, deadline, node=node, command=command)
    running = asyncio.create_task(watcher.run(), name="one reading")
    try:
        async with asyncio.timeout(deadline):
            either: list[asyncio.Future[Any]] = [found, running]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()  # run() ends by itself only with an exception
        return found.result()
    except TimeoutError:
        told = "; ".join(str(finding) for finding in watcher.findings)
        raise TimeoutError(told or f"no reading of links and devices within {deadline:g} s") from None
    finally:
        running.cancel()
        await asyncio.wait([running])


def _steady(inventory: Inventory) -> Inventory:
    return inventory.model_copy(update={"neighbours": ()})


def _first(group: BaseExceptionGroup[BaseException]) -> str:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error)
