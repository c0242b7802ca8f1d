"""One daemon on a Spark, as systemd would run it, and what can be seen of it from outside."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from tests.sparks import processes, settings
from tests.sparks.notify import NotifyListener
from tests.sparks.spark import Spark

POLL_SECONDS = 0.02


class NotSeenError(AssertionError):
    """What a test waited for did not come; the text carries the end of the journal."""


async def until(seen: Callable[[], Awaitable[bool]] | Callable[[], bool], timeout: float, what: str) -> float:
    """Waits until `seen` holds; the seconds it took. NotSeenError after `timeout` seconds."""
    start = time.monotonic()
    while True:
        found = seen()
        if await found if isinstance(found, Awaitable) else found:
            return time.monotonic() - start
        if time.monotonic() - start > timeout:
            raise NotSeenError(f"{what}: not seen within {timeout} s")
        await asyncio.sleep(POLL_SECONDS)


class Daemon:
    """`start`, `stop`, `kill9`; its journal is a file, so that nothing is lost whoever ends first."""

    def __init__(
        self,
        spark: Spark,
        config_file: Path,
        *,
        env: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
        watchdog_seconds: float | None = None,
    ) -> None:
        self.spark = spark
        self.config_file = config_file
        self.env = dict(env or {})
        self.arguments = tuple(arguments)
        self.journal_file = spark.directory / "journal.log"
        self.notify = NotifyListener(spark.directory / "notify.sock")
        if watchdog_seconds is not None:
            self.env["WATCHDOG_USEC"] = str(int(watchdog_seconds * 1e6))
        self.process: subprocess.Popen[bytes] | None = None

    # Its life

    def start(self) -> None:
        if self.process is not None and self.process.poll() is None:
            raise RuntimeError(f"the daemon of {self.spark.name} runs already (pid {self.process.pid})")
        argv = [str(settings.DAEMON), "run", "--config", str(self.config_file), *self.arguments]
        env = {"NOTIFY_SOCKET": str(self.notify.path), **self.env}
        with self.journal_file.open("ab") as journal:
            # A session of its own, as a service has: a terminal's Ctrl-C is not the daemon's.
            self.process = self.spark.popen(
                argv,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=journal,
                stderr=journal,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        if self.process is None:
            raise RuntimeError(f"the daemon of {self.spark.name} was never started")
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def returncode(self) -> int | None:
        return None if self.process is None else self.process.poll()

    def signal(self, number: int) -> None:
        if self.running:
            os.kill(self.pid, number)

    async def stop(self, timeout: float = 30.0) -> int:
        """SIGTERM and the exit status; NotSeenError when it does not end in time."""
        self.signal(signal.SIGTERM)
        return await self.exit_status(timeout)

    async def kill9(self) -> None:
        self.signal(signal.SIGKILL)
        await self.exit_status(10)

    async def exit_status(self, timeout: float = 30.0) -> int:
        """Waits for its end. Negative: the signal that ended it."""
        await self._until(lambda: not self.running, timeout, "its end")
        assert self.process is not None
        return self.process.returncode

    def freeze(self) -> None:
        """SIGSTOP: the process stands still, its connections stay open."""
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    def close(self) -> None:
        """Ends it in any case; for clean-up."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            self.process.wait()
        self.notify.close()

    # What is seen of it

    def journal(self) -> list[str]:
        """Its lines so far, over all its lives."""
        if not self.journal_file.exists():
            return []
        return self.journal_file.read_text(errors="replace").splitlines()

    async def wait_journal(self, text: str, timeout: float = 30.0, *, since: int = 0) -> str:
        """The first line, from line number `since` on, that contains `text`."""
        found: list[str] = []

        def seen() -> bool:
            found[:] = [line for line in self.journal()[since:] if text in line][:1]
            return bool(found)

        await self._until(seen, timeout, f"the journal line {text!r}")
        return found[0]

    async def control(self, method: str, path: str, **options: Any) -> tuple[int, Any]:
        """A request over control.sock: HTTP status and the JSON body (None when it is not JSON)."""
        connector = aiohttp.UnixConnector(path=str(self.spark.control_socket))
        timeout = aiohttp.ClientTimeout(total=10)
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
            session.request(method, f"http://localhost{path}", **options) as response,
        ):
            if response.content_type != "application/json":
                return response.status, None
            return response.status, await response.json()

    async def status(self) -> dict[str, Any]:
        """/v1/status; raises aiohttp.ClientError when the daemon does not answer."""
        code, body = await self.control("GET", "/v1/status")
        if code != 200 or not isinstance(body, dict):
            raise NotSeenError(f"{self.spark.name} answered /v1/status with {code}: {body!r}")
        return body

    async def state(self) -> str | None:
        """Its state's name, None while it does not answer."""
        try:
            return str((await self.status())["state"])
        except (aiohttp.ClientError, OSError, TimeoutError):
            return None

    async def wait_state(self, *states: str, timeout: float = 30.0) -> dict[str, Any]:
        """Waits for one of the states; the status then."""
        seen: list[dict[str, Any]] = []
        last: list[str | None] = [None]

        async def reached() -> bool:
            if self.returncode is not None:
                raise NotSeenError(f"{self.spark.name}: the daemon ended with exit status {self.returncode}")
            try:
                status = await self.status()
            except (aiohttp.ClientError, OSError, TimeoutError):
                return False
            last[0] = str(status["state"])
            seen[:] = [status]
            return status["state"] in states

        try:
            await self._until(reached, timeout, f"the state {' or '.join(states)}")
        except NotSeenError as error:
            raise NotSeenError(f"{error}\n(the last state was {last[0]})") from None
        return seen[0]

    async def ready(self) -> int | None:
        """The HTTP status of /readyz on the control port, None while nobody answers."""
        return await self._code("http://127.0.0.1:8899/readyz")

    async def endpoint_ready(self) -> int | None:
        """The HTTP status of /readyz on the endpoint (leader only)."""
        return await self._code("http://127.0.0.1:8888/readyz")

    async def _code(self, url: str) -> int | None:
        try:
            return (await self.spark.http("GET", url, timeout=5)).status
        except (aiohttp.ClientError, OSError, TimeoutError):
            return None

    def ranks(self, generation: int | None = None) -> list[processes.Rank]:
        """Its Spark's living ranks, from /proc."""
        return processes.ranks(self.spark.name, generation)

    async def _until(
        self, seen: Callable[[], Awaitable[bool]] | Callable[[], bool], timeout: float, what: str
    ) -> float:
        try:
            return await until(seen, timeout, f"{self.spark.name}: {what}")
        except NotSeenError as error:
            tail = "\n".join(self.journal()[-25:])
            raise NotSeenError(f"{error}\nits journal ends:\n{tail}") from None
