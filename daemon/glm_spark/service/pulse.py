"""This daemon's own pulse: tells systemd how it is, and notices when its loop was held up."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping

import sdnotify

from glm_spark.cluster.lease import boottime

log = logging.getLogger(__name__)

BEAT_SECONDS = 1.0
EXTEND_EVERY = 15.0
EXTEND_BY = 60.0
LATE_SECONDS = 1.0  # a loop later than this is worth a line


class Pulse:
    """One loop sends everything: READY=1 once, WATCHDOG=1 after it, EXTEND_TIMEOUT_USEC before it and while stopping.

    It sends signs of life only while `healthy` holds, so that a daemon whose course stands still is restarted
    although its loop turns.
    """

    def __init__(self, environ: Mapping[str, str], healthy: Callable[[], bool], status: Callable[[], str]) -> None:
        self._notifier = sdnotify.SystemdNotifier()
        self._watchdog = _watchdog_seconds(environ)
        self._healthy = healthy
        self._status = status
        self._told = ""
        self._ready = False
        self._stopping = False
        self._extended = float("-inf")
        self._barked = float("-inf")
        self._now = asyncio.Event()

    def ready(self) -> None:
        """The first time this Spark does its part; later calls change nothing."""
        if not self._ready:
            self._ready = True
            self._send("READY=1\n" + self._watchdog_line())
            self._now.set()

    def stopping(self) -> None:
        if not self._stopping:
            self._stopping = True
            self._extended = float("-inf")
            self._send("STOPPING=1")
            self._now.set()

    def reloading(self) -> None:
        usec = int(asyncio.get_running_loop().time() * 1_000_000)
        self._send(f"RELOADING=1\nMONOTONIC_USEC={usec}")

    def reloaded(self) -> None:
        self._send("READY=1" if self._ready else "STATUS=" + self._status())

    def changed(self) -> None:
        """The status line may have changed."""
        self._now.set()

    async def run(self) -> None:
        last = boottime()
        while True:
            self._now.clear()
            self._tell()
            try:
                async with asyncio.timeout(BEAT_SECONDS):
                    await self._now.wait()
            except TimeoutError:
                pass
            now = boottime()
            if now - last > BEAT_SECONDS + LATE_SECONDS:
                log.warning(
                    "this daemon was held up for %.1f s: the machine slept, or its loop was blocked",
                    now - last - BEAT_SECONDS,
                    extra={"code": "daemon.held-up"},
                )
            last = now

    def _tell(self) -> None:
        now = boottime()
        status = self._status()
        if status != self._told:
            self._told = status
            self._send("STATUS=" + status.replace("\n", " "))
        if not self._healthy():
            return
        if (not self._ready or self._stopping) and now - self._extended >= EXTEND_EVERY:
            self._extended = now
            self._send(f"EXTEND_TIMEOUT_USEC={int(EXTEND_BY * 1_000_000)}")
        if self._ready and self._watchdog and now - self._barked >= self._watchdog / 3:
            self._barked = now
            self._send("WATCHDOG=1")

    def _watchdog_line(self) -> str:
        self._barked = boottime()
        return "WATCHDOG=1" if self._watchdog else ""

    def _send(self, text: str) -> None:
        self._notifier.notify(text.strip())


def _watchdog_seconds(environ: Mapping[str, str]) -> float:
    """The watchdog's interval in seconds; 0 where systemd set none for this process."""
    usec = environ.get("WATCHDOG_USEC", "")
    pid = environ.get("WATCHDOG_PID", str(os.getpid()))
    return int(usec) / 1_000_000 if usec.isdigit() and pid == str(os.getpid()) else 0.0
