"""Rank 0's HTTP server: the routes of TensorFold v0.6.0 over plain asyncio streams."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from glm_spark.standin import replies
from glm_spark.standin.faults import FaultSource
from glm_spark.standin.options import ServeOptions
from glm_spark.standin.requests import (
    LONG_ENOUGH,
    BadRequest,
    HttpRequest,
    Wish,
    parsed,
    read_request,
    wish,
)
from glm_spark.standin.rounds import Broken, Full, Request, Scheduler
from glm_spark.standin.wording import detokenize, tokenize

SHAPES = {
    "/v1/chat/completions": ("chatcmpl", replies.chat),
    "/v1/completions": ("cmpl", replies.completion),
    "/v1/responses": ("resp", replies.response),
    "/v1/messages": ("msg", replies.message),
}
STREAMED = ("/v1/chat/completions", "/v1/completions")
RETRY_AFTER_S = 5


class Web:
    def __init__(self, options: ServeOptions, scheduler: Scheduler, faults: FaultSource) -> None:
        self._options = options
        self._scheduler = scheduler
        self._faults = faults
        self._names = (options.served_name, *options.alias)
        self._clients: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Binds. Raises OSError when the port is taken."""
        self._server = await asyncio.start_server(self._serve, self._options.host, self._options.port)

    def cut(self) -> None:
        """Closes the port and drops every connection at once, replies half sent included."""
        if self._server:
            self._server.close()
        for writer in self._clients:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients.add(writer)
        try:
            while (request := await read_request(reader, writer)) and await self._answer(request, writer):
                await writer.drain()
        except BadRequest as error:
            refuse(writer, error)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client left
        finally:
            self._clients.discard(writer)
            writer.close()

    async def _answer(self, request: HttpRequest, writer: asyncio.StreamWriter) -> bool:
        """Writes one reply; True when the connection stays open."""
        keep = request.keep_alive
        if request.method == "HEAD":  # as http.server answers a method that it has no handler for; never with a body
            writer.write(b"HTTP/1.1 501 Unsupported method ('HEAD')\r\nConnection: close\r\n\r\n")
            return False
        try:
            if request.method == "POST" and request.path in SHAPES:
                return await self._generate(request, writer) and keep
            send_json(writer, 200, self._simple(request), keep)
        except BadRequest as error:
            refuse(writer, error, keep)
        except Full:
            busy = replies.error("too many requests are queued", "server_busy")
            send_json(writer, 429, busy, keep, f"Retry-After: {RETRY_AFTER_S}\r\n")
        except Broken as error:
            send_json(writer, 500, {"error": {"message": str(error)}}, keep)
        except LookupError:
            send_json(writer, 404, {"error": "not found"}, keep)
        return keep

    def _simple(self, request: HttpRequest) -> dict[str, Any] | str:
        """The body of every route that does not generate. Raises LookupError for one that is not there."""
        match request.method, request.path:
            case "GET", "/v1/models":
                return replies.models(self._names)
            case "GET", "/health":
                return replies.health(self._scheduler)
            case "GET", "/metrics":
                return replies.metrics(self._scheduler)
            case "POST", "/tokenize":
                body = parsed(request.body)
                tokens = tokenize(str(body.get("prompt", body.get("text", body.get("messages", "")))))
                return {"tokens": tokens, "count": len(tokens), "max_model_len": self._scheduler.context}
            case "POST", "/detokenize":
                try:
                    return {"prompt": detokenize(list(parsed(request.body).get("tokens", [])))}
                except (ValueError, TypeError, AttributeError) as error:
                    raise BadRequest(f"tokens: {error}") from error
        raise LookupError(request.path)

    async def _generate(self, http: HttpRequest, writer: asyncio.StreamWriter) -> bool:
        asked = wish(
            http.path,
            parsed(http.body),
            self._options.thinking,
            self._options.max_tokens,
            self._scheduler.context,
            salt=random.getrandbits(32),
        )
        prefix, shape = SHAPES[http.path]
        ident = f"{prefix}-{random.getrandbits(96):024x}"
        if asked.stream and http.path in STREAMED:
            await self._stream(http.path, ident, asked, writer)
            return False
        thought: list[str] = []
        answer: list[str] = []

        def keep(thoughts: list[str], answers: list[str]) -> None:
            thought.extend(thoughts)
            answer.extend(answers)

        request = self._request(asked, keep)
        self._scheduler.submit(request)
        why = await request.done
        if why == "cut":
            writer.transport.abort()
            return False
        body = shape(self._names[0], ident, request, "".join(thought), "".join(answer), why)
        send_json(writer, 200, body, http.keep_alive)
        return True

    def _request(self, asked: Wish, sink: Callable[[list[str], list[str]], None]) -> Request:
        script = self._faults.now()
        return Request(
            seed=asked.seed,
            prompt_tokens=asked.prompt_tokens,
            think_tokens=script.think_tokens if asked.thinking else 0,
            answer_tokens=LONG_ENOUGH if asked.endless else script.reply_tokens,
            limit=asked.limit,
            sink=sink,
            done=asyncio.get_running_loop().create_future(),
        )

    async def _stream(self, path: str, ident: str, asked: Wish, writer: asyncio.StreamWriter) -> None:
        """Server-sent events. Words go out from within the scheduler's step: no task switch a token."""
        chat = path == "/v1/chat/completions"
        kind = "chat.completion.chunk" if chat else "text_completion"
        head = (
            f'data: {{"id": "{ident}", "object": "{kind}", "created": {int(time.time())}, '
            f'"model": {json.dumps(self._names[0])}, "choices": [{{"index": 0, '
        )
        tail = ', "finish_reason": null}]}\n\n'

        def event(field: str, word: str) -> str:
            return f'{head}"delta": {{"{field}": "{word}"}}{tail}' if chat else f'{head}"text": "{word}"{tail}'

        def emit(thoughts: list[str], answers: list[str]) -> None:
            if writer.is_closing():
                request.cancelled = True
                return
            events = [event("reasoning_content", one) for one in thoughts]
            events += [event("content", one) for one in answers]
            writer.write("".join(events).encode())

        request = self._request(asked, emit)
        self._scheduler.submit(request)
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
            b"Connection: close\r\n\r\n"
        )
        if chat:
            writer.write(f'{head}"delta": {{"role": "assistant", "content": ""}}{tail}'.encode())
        try:
            why = await request.done
        except Broken as error:
            body = replies.error(str(error), "server_error")
            writer.write(f"data: {json.dumps(body)}\n\ndata: [DONE]\n\n".encode())
            return
        if why == "cut":
            writer.transport.abort()
            return
        last = '"delta": {}' if chat else '"text": ""'
        figures = f'"usage": {json.dumps(replies.usage(request))}'
        figures += f', "tensorfold": {json.dumps(replies.own_figures(request))}' if chat else ""
        writer.write(f'{head}{last}, "finish_reason": "{why}"}}], {figures}}}\n\ndata: [DONE]\n\n'.encode())


def send_json(
    writer: asyncio.StreamWriter, status: int, body: dict[str, Any] | str, keep: bool, more: str = ""
) -> None:
    """A whole reply; a str body is Prometheus text."""
    text = body if isinstance(body, str) else json.dumps(body)
    kind = "text/plain; version=0.0.4" if isinstance(body, str) else "application/json"
    payload = text.encode()
    writer.write(
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(payload)}\r\nConnection: {'keep-alive' if keep else 'close'}\r\n{more}\r\n".encode()
        + payload
    )


def refuse(writer: asyncio.StreamWriter, error: BadRequest, keep: bool = False) -> None:
    send_json(writer, error.status, replies.error(str(error), "invalid_request_error", error.code), keep)
