"""A request body on its way to the engine, which is a plain HTTP/1.1 server: it gets a Content-Length, always."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from aiohttp import web

from glm_spark.api import answers

SILENCE_SECONDS = 60.0  # a client that sends nothing for so long in the middle of a body gives its place up


class Refusal(Exception):
    """The body cannot be taken; `response` says why."""

    def __init__(self, response: web.Response) -> None:
        super().__init__(response.status)
        self.response = response


class Held:
    """Bytes of bodies kept in memory, all requests together. Only bodies without a length are kept.

    A Spark's memory is the model's: the bound keeps many large uploads from freezing the host.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.size = 0


class Upload:
    """One body. `length` in bytes is known once `begin` returned; `chunks` yields it, once.

    `fault` is set when reading it failed after the engine was already being sent to.
    """

    def __init__(self, request: web.BaseRequest, max_bytes: int, held: Held) -> None:
        self._request = request
        self._max_bytes = max_bytes
        self._held = held
        self._kept: list[bytes] = []
        self._kept_bytes = 0
        self.length: int | None = None
        self.fault: Refusal | None = None

    async def begin(self) -> None:
        """Judge the framing, ask for the body where the client waits to be asked, collect it when it has no length.

        Raises Refusal (400, 408, 411, 413, 417, 429, 501).
        """
        request = self._request
        coding = ",".join(request.headers.getall("Transfer-Encoding", ())).strip().lower()
        if coding not in ("", "chunked"):
            message = f"Transfer-Encoding {coding[:40]!r} is not known here; send chunked, or a Content-Length."
            response = answers.error(501, "invalid_request_error", "transfer_encoding", message)
            response.force_close()  # where its body ends is anybody's guess
            raise Refusal(response)
        if not coding and request.content_length is None:
            return  # no body
        if not coding and (request.content_length or 0) > self._max_bytes:
            raise self._too_large()
        await self._ask_for_it()
        if coding:
            await self._collect()
        else:
            self.length = request.content_length

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes; what was collected first is let go piece by piece."""
        if self._request.content_length is None:
            for index, chunk in enumerate(self._kept):
                yield chunk
                self._kept[index] = b""
            return
        try:
            while chunk := await self._read():
                yield chunk
        except Refusal as refusal:
            self.fault = refusal
            raise

    def end(self) -> None:
        """Give back what it held."""
        self._kept.clear()
        self._held.size -= self._kept_bytes
        self._kept_bytes = 0

    async def _ask_for_it(self) -> None:
        expected = self._request.headers.get("Expect")
        if expected is None:
            return
        if expected.strip().lower() != "100-continue":
            raise Refusal(
                answers.error(417, "invalid_request_error", "expectation", "Only Expect: 100-continue is known here.")
            )
        writer = self._request.writer
        await writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        writer.output_size = 0  # this was not yet the response

    async def _read(self) -> bytes:
        try:
            async with asyncio.timeout(SILENCE_SECONDS):
                return await self._request.content.readany()
        except TimeoutError:
            raise Refusal(
                answers.error(
                    408,
                    "invalid_request_error",
                    "body_timeout",
                    f"The request's body stopped for {SILENCE_SECONDS:g} s.",
                )
            ) from None
        except web.RequestPayloadError:
            raise Refusal(
                answers.error(
                    400, "invalid_request_error", "body_framing", "The request's body is not well-formed HTTP."
                )
            ) from None

    async def _collect(self) -> None:
        while chunk := await self._read():
            if self._kept_bytes + len(chunk) > self._max_bytes:
                raise self._too_large()
            if self._held.size + len(chunk) > self._held.limit:
                raise Refusal(
                    answers.error(
                        429,
                        "rate_limit_error",
                        "uploads",
                        "Too many large bodies without a Content-Length at once.",
                        retry_after=5,
                    )
                )
            self._held.size += len(chunk)
            self._kept_bytes += len(chunk)
            self._kept.append(chunk)
        self.length = self._kept_bytes

    def _too_large(self) -> Refusal:
        limit = self._max_bytes >> 20
        return Refusal(
            answers.error(
                413,
                "invalid_request_error",
                "body_too_large",
                f"The request's body is larger than {limit} MiB (api.max_body_mib).",
            )
        )
