"""Where the kernel's lines come from: /dev/kmsg where it may be read, else the journal; and how they are parsed.

A unit with ProtectKernelLogs=true, or a user without CAP_SYSLOG, has no /dev/kmsg: there journalctl follows the
kernel's lines, as members of the group systemd-journal may.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

log = logging.getLogger(__name__)

KMSG = Path("/dev/kmsg")
RECORD_BYTES = 8192  # the kernel hands out one record a read, never a longer one
FIRST_PAUSE, LONGEST_PAUSE = 5.0, 300.0  # between two tries to follow a journal that ends
JOURNALCTL = (
    "journalctl",
    "--dmesg",
    "--follow",
    "--lines=0",
    "--no-pager",
    "--quiet",
    "--output=json",
    "--output-fields=MESSAGE,SYSLOG_FACILITY",
)
_FALLBACK_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/run/current-system/sw/bin"


def kmsg_lines(data: bytes) -> list[str]:
    """The kernel's own lines in what /dev/kmsg gave. What programs wrote there is another facility's and left out."""
    lines = []
    for raw in data.split(b"\n"):
        head, found, text = raw.partition(b";")
        number = head.split(b",")[0]
        if not found or not number.isdigit() or raw.startswith(b" ") or int(number[:9]) >> 3:
            continue
        lines.append(_unescaped(text.decode(errors="replace")))
    return lines


def _unescaped(text: str) -> str:
    """The kernel writes unprintable bytes as \\xNN; a line break in the middle of a record is one too."""
    return text.replace("\\x0a", " ").replace("\\x09", " ")


def journal_line(raw: bytes) -> str | None:
    """The kernel's line in one of journalctl's JSON objects; None for anything else."""
    try:
        told = json.loads(raw)
        if not isinstance(told, dict) or told.get("SYSLOG_FACILITY", "0") != "0":
            return None
        message = told.get("MESSAGE")
        if isinstance(message, list):  # bytes that are no text
            message = bytes(message).decode(errors="replace")
    except (ValueError, TypeError, RecursionError):
        return None
    return message if isinstance(message, str) else None


async def follow(hear: Callable[[str], None], kmsg: Path | None = None) -> None:
    """Hands every new kernel line to `hear`, for ever. Lines from before this call are not told."""
    try:
        descriptor = os.open(kmsg or KMSG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        log.debug("%s: %s; the journal is followed instead", kmsg or KMSG, error.strerror)
        await _follow_journal(hear)
        return
    with contextlib.suppress(OSError):
        os.lseek(descriptor, 0, os.SEEK_END)
    await _follow_kmsg(descriptor, hear)


async def _follow_kmsg(descriptor: int, hear: Callable[[str], None]) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        while True:
            await ready.wait()
            ready.clear()
            for line in _drained(descriptor):
                hear(line)
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def _drained(descriptor: int) -> list[str]:
    lines: list[str] = []
    for _ in range(1000):  # a kernel that talks faster than this is heard on the next turn of the loop
        try:
            data = os.read(descriptor, RECORD_BYTES)
        except BrokenPipeError:  # lines were overwritten before they were read: go on with the oldest one left
            continue
        except OSError:
            break
        if not data:
            break
        lines += kmsg_lines(data)
    return lines


async def _follow_journal(hear: Callable[[str], None]) -> None:
    pause = FIRST_PAUSE
    while True:
        try:
            async for line in journal(JOURNALCTL, os.environ):
                pause = FIRST_PAUSE
                hear(line)
            how = "journalctl ended"
        except OSError as error:
            how = f"journalctl cannot be started: {error.strerror}"
        if pause == FIRST_PAUSE:
            log.warning(
                "the kernel's lines are not read: %s; a failing GPU or network card is not recognised until they are",
                how,
                extra={"code": "host.kernel-log-unread"},
            )
        await asyncio.sleep(pause)
        pause = min(pause * 2, LONGEST_PAUSE)


async def journal(argv: tuple[str, ...], here: Mapping[str, str]) -> AsyncIterator[str]:
    """The lines that this journalctl prints until it ends. It is ended when nobody listens. OSError: no such program.

    It gets a PATH and nothing else of the daemon's environment.
    """
    child = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={"PATH": here.get("PATH") or _FALLBACK_PATH, "LANG": "C"},
        limit=1 << 20,
    )
    try:
        assert child.stdout is not None
        while raw := await _read_line(child.stdout):
            line = journal_line(raw)
            if line is not None:
                yield line
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(signal.SIGKILL)
        await child.wait()


async def _read_line(stream: asyncio.StreamReader) -> bytes:
    while True:
        try:
            return await stream.readline()
        except ValueError:  # longer than any kernel line
            continue
