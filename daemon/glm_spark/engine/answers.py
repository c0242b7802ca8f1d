"""Reading an engine's HTTP answer without trusting its length."""

from __future__ import annotations

import aiohttp


async def body(reply: aiohttp.ClientResponse, most: int) -> bytes:
    """The whole body. ValueError when it is longer than `most` bytes."""
    held = bytearray()
    async for piece in reply.content.iter_any():
        held += piece
        if len(held) > most:
            raise ValueError(f"an answer of more than {most} bytes")
    return bytes(held)
