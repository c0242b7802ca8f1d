"""Runs the owner's program for an event: one at a time, the latest event next, never longer than its time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
from collections.abc import Callable, Mapping
from typing import Any

from glm_spark.config.model import Hook

log = logging.getLogger(__name__)

INHERITED = ("PATH", "LANG", "LC_ALL", "TZ")
FALLBACK_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SAID = 200  # characters of the program's last line
HEARD_BYTES = 16_384
END_SECONDS = 2.0  # from SIGKILL to the end


class HookRunner:
    """`tell` hands over an event and returns at once; an event that still waits when a newer one comes is dropped."""

    def __init__(self, hook: Callable[[], Hook], here: Mapping[str, str] | None = None) -> None:
        self._hook = hook
        self._here = os.environ if here is None else here
        self._next: Mapping[str, Any] | None = None
        self._wake = asyncio.Event()

    def tell(self, event: Mapping[str, Any]) -> None:
        self._next = event
        self._wake.set()

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            event, self._next = self._next, None
            if event is not None and self._hook().command:
                await self._once(event, self._hook())

    async def _once(self, event: Mapping[str, Any], hook: Hook) -> None:
        try:
            trouble = await run_once(hook.command, event, hook.timeout_seconds, self._here)
        except OSError as error:
            trouble = f"it cannot be started: {error.strerror or error}"
        if trouble is not None:
            log.warning("hook.command for the event %s: %s", event.get("event"), trouble, extra={"code": "hook.failed"})


async def run_once(
    command: tuple[str, ...], event: Mapping[str, Any], seconds: float, here: Mapping[str, str]
) -> str | None:
    """Why it did not go well, None when it did. OSError when it cannot be started.

    The program leads a session of its own, so that what it started is ended with it. It inherits no environment but a
    PATH, a language and a time zone.
    """
    told = _file(json.dumps(event).encode() + b"\n")
    try:
        child = await asyncio.create_subprocess_exec(
            *command,
            stdin=told,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={"PATH": FALLBACK_PATH, **{name: here[name] for name in INHERITED if here.get(name)}},
            cwd="/",
            start_new_session=True,
        )
    finally:
        os.close(told)
    said = bytearray()
    try:
        async with asyncio.timeout(seconds):
            await _hear(child, said)
            status = await child.wait()
    except TimeoutError:
        return f"no end within {seconds:g} s, so it was killed{_last(said)}"
    finally:
        await _end(child)
    if status == 0:
        return None
    how = f"signal {-status}" if status < 0 else f"exit status {status}"
    return f"{how}{_last(said)}"


def _file(content: bytes) -> int:
    """The event as a file in memory: a program that never reads it holds nobody up."""
    number = os.memfd_create("event", os.MFD_CLOEXEC)
    try:
        os.write(number, content)  # a file in memory takes all of it
        os.lseek(number, 0, os.SEEK_SET)
    except OSError:
        os.close(number)
        raise
    return number


async def _hear(child: asyncio.subprocess.Process, said: bytearray) -> None:
    """Keeps the end of what it says; the rest is read so that it is never held up by a full pipe."""
    assert child.stdout is not None
    while data := await child.stdout.read(4096):
        said += data
        del said[:-HEARD_BYTES]


async def _end(child: asyncio.subprocess.Process) -> None:
    """Nothing it started in its session stays."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(END_SECONDS):
            await child.wait()


def _last(said: bytearray) -> str:
    lines = [line.strip() for line in said.decode(errors="replace").splitlines() if line.strip()]
    if not lines:
        return ""
    text = "".join(letter if letter.isprintable() else " " for letter in lines[-1])
    return f"; it said: {text[:SAID]}"
