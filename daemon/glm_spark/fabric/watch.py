"""Keeps one reading of this Spark's links and devices up to date, whatever happens to the calls that read them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import count

from glm_spark.fabric.inventory import Inventory
from glm_spark.finding import Finding, Severity

_LINE_LIMIT = 8 << 20  # bytes of one reading
_BACK_OFF = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)  # seconds before the next reader is started
_LONG_LIFE = 30.0  # seconds after which a reader's end starts the back-off anew
_GRACE = 1.0  # seconds for a killed reader to be gone
_ABANDONED = 3  # readers that could not be killed; with so many no further one is started


class _Ended(Exception):
    """The reader has gone; the text says how."""


class _Stuck(Exception):
    """The reader did not answer by the deadline."""


class Watcher:
    """Runs `glm_spark.fabric.child watch` and holds its latest reading.

    A reader that does not answer within `deadline` seconds is killed and replaced; one that a wedged driver
    holds in the kernel cannot be killed and is left behind, at most three of them. Meanwhile `inventory` stays
    the last reading and `findings` says that it is old.
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
        self._process: asyncio.subprocess.Process | None = None
        self._abandoned: list[asyncio.subprocess.Process] = []
        self._failures = 0

    @property
    def pid(self) -> int | None:
        """The reader's process, None between two of them."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def fresh(self, timeout: float) -> Inventory:
        """A reading begun after this call. Raises TimeoutError when none comes within `timeout` seconds."""
        number = next(self._numbers)
        answer: asyncio.Future[Inventory] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        try:
            async with asyncio.timeout(timeout):
                self._ask(number)
                return await answer
        finally:
            self._asked.pop(number, None)

    async def run(self) -> None:
        """Reads until cancelled; no fault of the reader ends it."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                began = loop.time()
                try:
                    await self._one_life()
                except* (_Ended, OSError) as group:
                    self._tell(self._ended_finding(_first(group)))
                except* _Stuck as group:
                    self._tell(self._stuck_finding(_first(group)))
                if loop.time() - began > _LONG_LIFE:
                    self._failures = 0
                await asyncio.sleep(_BACK_OFF[min(self._failures, len(_BACK_OFF) - 1)])
                self._failures += 1
        finally:
            await asyncio.shield(self._put_away())

    async def _one_life(self) -> None:
        self._abandoned = [process for process in self._abandoned if process.returncode is None]
        if len(self._abandoned) >= _ABANDONED:
            raise _Stuck(f"{len(self._abandoned)} readers cannot be ended; the kernel holds them")
        process = await asyncio.create_subprocess_exec(
            *self._command,
            "watch",
            *self._peers,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=_LINE_LIMIT,
            env=reader_environment(),
        )
        self._process = process
        errors: list[bytes] = []
        try:
            async with asyncio.TaskGroup() as group:
                said = group.create_task(_collect(process, errors), name="fabric reader's errors")
                group.create_task(self._listen(process, said, errors), name="fabric reader")
                group.create_task(self._question(), name="fabric reader's deadline")
                for number in self._asked:
                    self._ask(number)
        finally:
            await asyncio.shield(self._put_away())

    async def _listen(self, process: asyncio.subprocess.Process, said: asyncio.Task[None], errors: list[bytes]) -> None:
        assert process.stdout is not None
        while True:
            try:
                line = await process.stdout.readline()
                if not line:
                    break
                told = json.loads(line)
                inventory, ask = self._named(Inventory.model_validate(told["inventory"])), told["ask"]
            except (ValueError, KeyError, TypeError) as error:  # a line past the limit is a ValueError too
                raise _Ended(f"it said something else than a reading: {str(error)[:200]}") from None
            self._take(inventory, ask)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GRACE):
                await process.wait()
                await asyncio.wait([said])  # its last words come over another pipe
        last = b"".join(errors)[-2000:].decode(errors="replace").strip().splitlines()
        raise _Ended(f"exit status {process.returncode}" + (f": {last[-1][:200]}" if last else ""))

    def _take(self, inventory: Inventory, ask: int | None) -> None:
        before, self.inventory = self.inventory, inventory
        self._tell(None)
        if before is None or _steady(before) != _steady(inventory):
            self._on_change(inventory)
        answer = self._asked.get(ask) if ask is not None else None
        if answer is not None and not answer.done():
            answer.set_result(inventory)

    async def _question(self) -> None:
        """Ask for a reading at a regular pace, to tell a stuck reader from a quiet one."""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                await self.fresh(self._deadline)
            except TimeoutError:
                raise _Stuck(f"no reading for {loop.time() - began:.1f} s") from None
            await asyncio.sleep(max(self._deadline / 2, 0.05))

    def _ask(self, number: int) -> None:
        process = self._process
        if process is not None and process.stdin is not None and not process.stdin.is_closing():
            process.stdin.write(b'{"ask": %d}\n' % number)

    async def _put_away(self) -> None:
        """End the reader; remember one that cannot be ended."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            try:
                async with asyncio.timeout(_GRACE):
                    await process.wait()
            except TimeoutError:
                self._abandoned.append(process)
        if process.stdin is not None:
            process.stdin.close()

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
        held = len([process for process in self._abandoned if process.returncode is None])
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
            return await found
    except TimeoutError:
        told = "; ".join(str(finding) for finding in watcher.findings)
        raise TimeoutError(told or f"no reading of links and devices within {deadline:g} s") from None
    finally:
        running.cancel()
        await asyncio.wait([running])


def reader_command() -> tuple[str, ...]:
    """The reader's program up to its mode; -P keeps the current directory out of its path."""
    return (sys.executable, "-P", "-m", "glm_spark.fabric.child")


def reader_environment() -> dict[str, str]:
    """Only what Python needs: no secret and nothing of systemd's reaches the reader.

    The import path is passed on as it is here, because a packaged program may have set it for itself alone.
    """
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH") if name in os.environ}
    return {**kept, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "PYTHONUNBUFFERED": "1"}


async def _collect(process: asyncio.subprocess.Process, errors: list[bytes]) -> None:
    """The end of what the reader says on standard error."""
    assert process.stderr is not None
    while data := await process.stderr.read(4096):
        errors.append(data)
        del errors[:-4]


def _steady(inventory: Inventory) -> Inventory:
    return inventory.model_copy(update={"neighbours": ()})


def _first(group: BaseExceptionGroup[BaseException]) -> str:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error)
