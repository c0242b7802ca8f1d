"""One socket between two ranks, cut into frames: length, kind, payload."""

from __future__ import annotations

import asyncio
import json
import struct
from typing import Any

HEAD = struct.Struct("!IB")
LONGEST = 1 << 20
JSON, STEP, PADS = 1, 2, 3


class Lost(Exception):
    """The other end is gone, or sent what no rank sends."""


class Link:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.local_address: str = writer.get_extra_info("sockname")[0]

    def send(self, kind: int, payload: bytes) -> None:
        """Never raises and never waits: like the real collectives, a sender does not learn of a dead peer."""
        if not self._writer.is_closing():
            self._writer.write(HEAD.pack(len(payload), kind) + payload)

    def send_json(self, message: dict[str, Any]) -> None:
        self.send(JSON, json.dumps(message).encode())

    async def receive(self) -> tuple[int, bytes]:
        """The next frame. Raises Lost at its end, and for bytes that are not a frame."""
        try:
            length, kind = HEAD.unpack(await self._reader.readexactly(HEAD.size))
            if length > LONGEST or kind not in (JSON, STEP, PADS):
                raise Lost(f"not a frame: {length} bytes of kind {kind}")
            return kind, await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, OSError) as error:
            raise Lost(str(error)) from error

    async def receive_json(self) -> dict[str, Any]:
        kind, payload = await self.receive()
        try:
            message = json.loads(payload) if kind == JSON else None
        except ValueError as error:
            raise Lost(str(error)) from error
        if not isinstance(message, dict):
            raise Lost(f"not a message: frame of kind {kind}")
        return message

    def close(self) -> None:
        self._writer.close()
