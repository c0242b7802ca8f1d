"""What a client asked for: an HTTP request read off a socket, and the generation in its body."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from glm_spark.standin.wording import seed_of, tokenize

LARGEST_BODY = 96 << 20
LONG_ENOUGH = 1 << 30


class BadRequest(Exception):
    """Answered with `status` and this text."""

    def __init__(self, text: str, status: int = 400, code: str | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.code = code


@dataclass(frozen=True)
class HttpRequest:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def keep_alive(self) -> bool:
        return self.headers.get("connection", "").lower() != "close"


async def read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> HttpRequest | None:
    """The next request on the connection, None at its end. Raises BadRequest.

    A body needs a Content-Length: as with Python's own http.server, a chunked one is taken for an empty one.
    """
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    except asyncio.LimitOverrunError as error:
        raise BadRequest("request header too large", 431) from error
    first, *rest = head.decode("latin-1").split("\r\n")
    parts = first.split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        raise BadRequest(f"bad request line {first[:80]!r}")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
    length = headers.get("content-length", "0")
    if not length.isdecimal():
        raise BadRequest(f"bad Content-Length {length!r}")
    if int(length) > LARGEST_BODY:
        raise BadRequest(f"request body over {LARGEST_BODY >> 20} MiB", 413)
    if headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    body = await reader.readexactly(int(length))
    return HttpRequest(parts[0], parts[1].partition("?")[0], headers, body)


def parsed(body: bytes) -> dict[str, Any]:
    """The JSON object of a body. Raises BadRequest."""
    try:
        table = json.loads(body)
        body.decode() and json.dumps(table, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        # Half a surrogate pair and endless nesting are no text that could be read; neither is put into the log.
        raise BadRequest(f"request body is not JSON: {type(error).__name__}") from error
    if not isinstance(table, dict):
        raise BadRequest("request body is not a JSON object")
    return table


@dataclass(frozen=True)
class Wish:
    """A generation asked for, in the same terms for every route."""

    prompt: str
    prompt_tokens: int
    limit: int
    thinking: bool
    stream: bool
    endless: bool  # ignore_eos: runs to its limit
    seed: int


def prompt_of(path: str, body: dict[str, Any]) -> str:
    """The prompt's text. Raises BadRequest when the route's field is missing."""
    name = {"/v1/completions": "prompt", "/v1/responses": "input"}.get(path, "messages")
    value = body.get(name)
    if not isinstance(value, (str, list)) or not value:
        raise BadRequest(f"{name} is missing or empty")
    if isinstance(value, str):
        return value
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def wish(path: str, body: dict[str, Any], thinking: bool, max_tokens: int, context: int, salt: int) -> Wish:
    """Reads a body; `salt` varies replies that are not greedy.

    Raises BadRequest, with context_length_exceeded for a prompt that leaves no room for a reply.
    """
    prompt = prompt_of(path, body)
    prompt_tokens = len(tokenize(prompt))
    if prompt_tokens >= context:
        raise BadRequest(
            f"the prompt has {prompt_tokens} tokens; the context window is {context}",
            code="context_length_exceeded",
        )
    asked = body.get("max_completion_tokens", body.get("max_tokens", body.get("max_output_tokens")))
    if asked is not None and (type(asked) is not int or asked < 1):
        raise BadRequest(f"max_tokens wants a whole number from 1, got {asked!r}")
    template = body.get("chat_template_kwargs")
    if isinstance(template, dict) and "enable_thinking" in template:
        thinking = bool(template["enable_thinking"])
    return Wish(
        prompt=prompt,
        prompt_tokens=prompt_tokens,
        limit=min(asked or max_tokens, context - prompt_tokens),
        thinking=thinking and path != "/v1/completions",
        stream=bool(body.get("stream")),
        endless=bool(body.get("ignore_eos")),
        seed=seed_of(prompt, salt if body.get("temperature") else 0),
    )
