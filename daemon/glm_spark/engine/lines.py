"""The engine's output as lines, whatever it writes: bounded, cleaned, in order.

Engine lines carry no prompt and no key (TensorFold logs neither), so they are passed on as they are. What the daemon
itself sends to the model or hears from it is never logged.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import AsyncIterator
from typing import Protocol

LINE_BYTES = 8192  # kept of one line; the rest is counted and dropped
TAIL_LINES = 200  # what a fault's report can show
READ_BYTES = 65536

_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffd]+")


class Source(Protocol):
    """A byte stream, as asyncio.StreamReader is one: b"" at its end."""

    async def read(self, n: int = -1, /) -> bytes: ...


def clean(raw: bytes) -> str:
    """A line a journal can hold: colour codes gone, every run of other unprintable bytes shown as one "?"."""
    text = _ESCAPE.sub("", raw.decode("utf-8", errors="replace"))
    return _UNPRINTABLE.sub("?", text).rstrip()


class Splitter:
    """Bytes in, lines out. Holds at most LINE_BYTES of an unfinished line.

    A carriage return starts the line over, as on a terminal, so that of a progress bar the last state stays.
    """

    def __init__(self) -> None:
        self._kept = bytearray()
        self._dropped = 0
        self._restart = False  # a carriage return was seen: the next byte that is no newline starts the line over

    def feed(self, data: bytes) -> list[str]:
        """The lines that these bytes complete."""
        lines = []
        *ended, rest = data.split(b"\n")
        for piece in ended:
            self._add(piece)
            lines.append(self._take())
        self._add(rest)
        return lines

    def finish(self) -> list[str]:
        """What was left without a newline at the end of the stream."""
        return [self._take()] if self._kept or self._dropped else []

    def _add(self, piece: bytes) -> None:
        trimmed = piece.rstrip(b"\r")
        if not trimmed:
            self._restart = self._restart or bool(piece)
            return
        if self._restart or b"\r" in trimmed:
            self._start_over()
            trimmed = trimmed.rpartition(b"\r")[2]
        self._restart = piece.endswith(b"\r")
        room = LINE_BYTES - len(self._kept)
        self._kept += trimmed[:room]
        self._dropped += max(0, len(trimmed) - room)

    def _start_over(self) -> None:
        self._kept.clear()
        self._dropped = 0
        self._restart = False

    def _take(self) -> str:
        text = clean(bytes(self._kept))
        if self._dropped:
            text += f" [... {self._dropped} more bytes]"
        self._start_over()
        return text


class Tail:
    """The last lines of a stream."""

    def __init__(self, size: int = TAIL_LINES) -> None:
        self._lines: deque[str] = deque(maxlen=size)

    def add(self, line: str) -> None:
        self._lines.append(line)

    def last(self, count: int, width: int) -> tuple[str, ...]:
        """The newest `count` lines, oldest first, each cut to `width` characters."""
        newest = list(self._lines)[-count:] if count else []
        return tuple(line if len(line) <= width else f"{line[: width - 1]}…" for line in newest)


async def follow(source: Source) -> AsyncIterator[str]:
    """Every line of a stream until its end; empty ones are left out."""
    splitter = Splitter()
    while data := await source.read(READ_BYTES):
        for line in splitter.feed(data):
            if line:
                yield line
    for line in splitter.finish():
        if line:
            yield line
