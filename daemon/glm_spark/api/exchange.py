"""One request and its reply through the engine, byte by byte, and the honest ends it can come to."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from urllib.parse import urlsplit

import aiohttp
from aiohttp import web
from yarl import URL

from glm_spark.api import answers, headers
from glm_spark.api.gate import Passage
from glm_spark.api.source import Readiness
from glm_spark.api.upload import Upload

CUT_SECONDS = 0.5  # a client that does not take the last words within this is dropped
# aiohttp's client would add these by itself; the engine gets what the client sent.
_NOT_ADDED = ("Accept", "Accept-Encoding", "User-Agent", "Content-Type")
_EVENT_ENDS = (b"\n\n", b"\r\n\r\n")
_DONE = (b"data: [DONE]\n\n", b"data: [DONE]\r\n\r\n", b"data: [DONE]\n", b"data: [DONE]")
# Streams of these end with [DONE] (TensorFold v0.6.0 serve).
_ENDS_WITH_DONE = ("/v1/chat/completions", "/v1/completions")


class Exchange:
    """Relays one request to the engine and its reply back; keeps how far the reply came, for an end before its end."""

    def __init__(
        self, request: web.BaseRequest, upload: Upload, model: str, readiness: Callable[[], Readiness]
    ) -> None:
        self._request = request
        self._upload = upload
        self._model = model
        self._readiness = readiness
        self._response: web.StreamResponse | None = None
        self._is_stream = False
        self._tail = b""  # the last bytes passed on: whether an event, or the stream, is whole

    async def run(self, session: aiohttp.ClientSession, upstream: str, passage: Passage) -> web.StreamResponse:
        """Relay. Raises ConnectionResetError when the client must see a broken transfer, and Cut as the gate does."""
        await self._upload.begin()
        try:
            return await self._relay(session, upstream)
        except aiohttp.ClientConnectorError as fault:
            passage.outcome = "failed"
            return await self._end_early(503, "engine.refused", f"the engine took no connection ({fault.strerror})")
        except (aiohttp.ClientError, TimeoutError) as fault:
            if self._upload.fault is not None:
                raise self._upload.fault from fault
            if self._client_left():
                raise ConnectionResetError("the client left") from fault
            passage.outcome = "failed"
            what = "the engine ended the connection before its reply was whole"
            return await self._end_early(502, "engine.broken", what)

    async def _relay(self, session: aiohttp.ClientSession, upstream: str) -> web.StreamResponse:
        request, upload = self._request, self._upload
        sent = headers.for_engine(request.headers)
        body = None
        if upload.length is not None:
            sent["Content-Length"] = str(upload.length)
            body = upload.chunks() if upload.length else None
        async with session.request(
            request.method,
            URL(upstream + request.raw_path, encoded=True),
            headers=sent,
            data=body,
            allow_redirects=False,
            skip_auto_headers=_NOT_ADDED,
        ) as reply:
            return await self._pass_back(reply, upstream)

    async def _pass_back(self, reply: aiohttp.ClientResponse, upstream: str) -> web.StreamResponse:
        response = web.StreamResponse(
            status=reply.status, reason=reply.reason, headers=headers.for_client(reply.headers)
        )
        self._is_stream = reply.headers.get("Content-Type", "").lower().startswith("text/event-stream")
        self._response = response
        await response.prepare(self._request)
        content, write = reply.content, response.write
        while chunk := await content.readany():
            # Before the write: cancelled while it waits for the client, the chunk is on its way all the same.
            self._tail = chunk[-32:] if len(chunk) >= 32 else (self._tail + chunk)[-32:]
            await write(chunk)
        if self._request.method != "HEAD" and not await self._whole(reply, upstream):
            raise aiohttp.ClientPayloadError("the engine's reply ended without its end")
        await response.write_eof()
        return response

    async def _whole(self, reply: aiohttp.ClientResponse, upstream: str) -> bool:
        """Whether a reply that ended with its connection was finished: a killed engine's looks the same."""
        by_length = "Content-Length" in reply.headers or "Transfer-Encoding" in reply.headers
        if self._is_stream and self._request.path in _ENDS_WITH_DONE and reply.status == 200:
            return self._tail.endswith(_DONE)
        return by_length or reply.status in (204, 304) or await _listens(upstream)

    async def end_cut(self, readiness: Readiness) -> web.StreamResponse:
        """The set is gone: the last words, according to how far the reply had come."""
        return await self._last_words(answers.why(self._model, readiness), answers.not_ready(self._model, readiness))

    async def _end_early(self, status: int, code: str, what: str) -> web.StreamResponse:
        """The engine failed this request; often the daemon knows by now that it is gone, and why."""
        now = self._readiness()
        if not now.live:
            return await self.end_cut(now)
        message = (
            f"{self._model}: {what}, while the set was {now.state}. Ask again; `glm-spark status` tells how it is."
        )
        return await self._last_words(message, answers.error(status, "server_error", code, message, retry_after=2))

    async def _last_words(self, message: str, answer: web.Response) -> web.StreamResponse:
        response = self._response
        if response is None:
            return answer
        if not response.prepared or not self._is_stream or not self._between_events():
            self._break()
        try:
            async with asyncio.timeout(CUT_SECONDS):
                if not self._tail.endswith(_DONE):
                    await response.write(answers.stream_fault(message))
                await response.write_eof()
        except TimeoutError:
            self._break()
        return response

    def _between_events(self) -> bool:
        return not self._tail or self._tail.endswith(_EVENT_ENDS)

    def _client_left(self) -> bool:
        transport = self._request.transport
        return transport is None or transport.is_closing()

    def _break(self) -> None:
        """End the client's connection with a reset: a plain close would look like the end of a reply without length."""
        transport = self._request.transport
        if transport is not None:
            sock = transport.get_extra_info("socket")
            if sock is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            transport.abort()
        raise ConnectionResetError("cut in the middle of a reply")


async def _listens(origin: str) -> bool:
    """Whether the engine still listens: its sockets close together when it ends."""
    parts = urlsplit(origin)
    try:
        async with asyncio.timeout(1.0):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port)
    except (OSError, TimeoutError):
        return False
    writer.transport.abort()
    return True
