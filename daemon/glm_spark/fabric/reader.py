"""One life of the reading child: its process, its lines, its last words, its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from asyncio.subprocess import PIPE, Process, SubprocessStreamProtocol
from collections.abc import Sequence

_LINE_LIMIT = 8 << 20  # bytes of one reading
_GRACE = 1.0  # seconds for a killed reader to be gone
_LAST_WORDS = 2000  # bytes


class Reader:
    """A started `glm_spark.fabric.child`."""

    def __init__(self, process: Process, transport: asyncio.SubprocessTransport) -> None:
        self._process = process
        self._transport = transport
        self._errors = b""

    @classmethod
    async def start(cls, command: Sequence[str]) -> Reader:
        """Raises OSError. The transport is kept, as asyncio's own short form does not, so that it can be closed."""
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.subprocess_exec(
            lambda: SubprocessStreamProtocol(limit=_LINE_LIMIT, loop=loop),
            *command,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=reader_environment(),
        )
        return cls(Process(transport, protocol, loop), transport)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> bool:
        return self._process.returncode is not None

    def ask(self, number: int) -> None:
        self.say({"ask": number})

    def say(self, what: object) -> None:
        """One JSON line to its standard input."""
        stdin = self._process.stdin
        if stdin is not None and not stdin.is_closing():
            stdin.write(json.dumps(what).encode() + b"\n")

    async def line(self) -> bytes:
        """The next line, b"" at the end. Raises ValueError for one past the limit."""
        assert self._process.stdout is not None
        return await self._process.stdout.readline()

    async def collect_errors(self) -> None:
        """Keeps the end of what it says on standard error, until it has ended."""
        assert self._process.stderr is not None
        while data := await self._process.stderr.read(4096):
            self._errors = (self._errors + data)[-_LAST_WORDS:]

    async def farewell(self, errors: asyncio.Task[None]) -> str:
        """How it ended, with the last line it said; `errors` runs collect_errors."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GRACE):
                await self._process.wait()
                await asyncio.wait([errors])  # its last words come over another pipe
        lines = self._errors.decode(errors="replace").strip().splitlines()
        return f"exit status {self._process.returncode}" + (f": {lines[-1][:200]}" if lines else "")

    async def end(self) -> bool:
        """Kill it; False when it is still there after a second, which only the kernel can bring about."""
        if not self.ended:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GRACE):
                    await self._process.wait()
        self._transport.close()
        return self.ended


def reader_command() -> tuple[str, ...]:
    """The reader's program up to its mode; -P keeps the current directory out of its path."""
    return (sys.executable, "-P", "-m", "glm_spark.fabric.child")


def reader_environment() -> dict[str, str]:
    """Only what Python needs: no secret and nothing of systemd's reaches the reader.

    The import path is passed on as it is here, because a packaged program may have set it for itself alone.
    """
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH") if name in os.environ}
    return {**kept, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "PYTHONUNBUFFERED": "1"}
