"""A client that asks for streams and does little else: what it measures must not be itself."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass

from tests.sparks.settings import CHECKPOINT
from tests.sparks.spark import Spark

_TOKEN = b"data: {"


@dataclass(frozen=True)
class Stream:
    """Seconds from the request to its first token, events after the first, the seconds they took, the
    longest wait between two reads, and whether [DONE] came."""

    first_s: float
    events: int
    seconds: float
    longest_gap_s: float
    whole: bool


def request(tokens: int) -> bytes:
    body = json.dumps(
        {
            "model": CHECKPOINT,
            "stream": True,
            "max_tokens": tokens,
            "temperature": 0,
            "messages": [{"role": "user", "content": "count"}],
            "chat_template_kwargs": {"enable_thinking": False},
        }
    ).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


async def stream(spark: Spark, port: int, tokens: int, timeout: float = 60.0) -> Stream:
    """One streamed chat completion. RuntimeError when it is not answered with 200."""
    sock = spark.socket()
    sock.setblocking(False)
    async with asyncio.timeout(timeout):
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        reader, writer = await asyncio.open_connection(sock=sock)
        try:
            return await _read(reader, writer, tokens)
        finally:
            writer.close()


async def _read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, tokens: int) -> Stream:
    sent = time.perf_counter()
    writer.write(request(tokens))
    head = await reader.readuntil(b"\r\n\r\n")
    if b" 200 " not in head.split(b"\r\n", 1)[0]:
        raise RuntimeError(f"port {writer.get_extra_info('peername')[1]} answered {head[:60]!r}")
    # The first event names the role only; the first token is the second event.
    events, seen = 0, b""
    while events < 2:
        seen += await _chunk(reader)
        events = seen.count(_TOKEN)
    first = last = time.perf_counter()
    gap, counted, tail = 0.0, 0, seen[-16:]
    while chunk := await reader.read(65536):
        now = time.perf_counter()
        gap, last = max(gap, now - last), now
        # An event may be cut in two by a read.
        counted += (tail[-len(_TOKEN) + 1 :] + chunk).count(_TOKEN)
        tail = (tail + chunk)[-32:]
    return Stream(first - sent, counted, last - first, gap, b"[DONE]" in tail)


async def _chunk(reader: asyncio.StreamReader) -> bytes:
    chunk = await reader.read(65536)
    if not chunk:
        raise RuntimeError("the stream ended before its first token")
    return chunk
