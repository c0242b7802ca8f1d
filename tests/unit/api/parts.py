"""What stands around the HTTP rooms in their tests: a daemon that says what it is told, and a plain HTTP engine."""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from glm_spark.api.front import Front
from glm_spark.api.gate import Gate
from glm_spark.api.source import Readiness, Refused
from glm_spark.config.model import Config
from glm_spark.finding import Finding, Severity
from glm_spark.status import ApiStatus, Status

LIMIT_S = 5.0
LIVE = Readiness(live=True, state="live", code="live", reason=None)
LOST = Finding(
    code="rank.lost",
    severity=Severity.ERROR,
    node="spark-2",
    subject="rank 1",
    measured="ended by signal 9",
    wanted="running",
    fix="Wait: all ranks are started again.",
)
DEAD = Readiness(live=False, state="recovering", code="rank.lost", reason=LOST)
TOKEN = b"a-token-of-at-least-thirty-two-bytes"


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on now, each another one."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [probe.getsockname()[1] for probe in probes]


def free_port() -> int:
    return free_ports(1)[0]


async def until(holds: Callable[[], bool]) -> None:
    """Wait for what nothing tells of."""
    async with asyncio.timeout(LIMIT_S):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def configured(**sections: dict[str, Any]) -> Config:
    """Two Sparks, every port free."""
    ports = {"api": "port", "control": "port", "engine": "http_port"}
    for (section, name), port in zip(ports.items(), free_ports(len(ports)), strict=True):
        sections[section] = {name: port} | sections.get(section, {})
    nodes = [{"name": "spark-1"}, {"name": "spark-2", "address": "192.168.100.2"}]
    return Config.model_validate({"node": nodes, **sections})


class Daemon:
    """The Source: what it says is set by the test, what it was asked is kept."""

    def __init__(self) -> None:
        self.now = LIVE
        self.refusal: Refused | None = None
        self.asked: list[str] = []
        self.told = Status(
            cluster="glm",
            node="spark-1",
            role="leader",
            state="live",
            ready=True,
            since=1.0,
            version="0.1.0",
            api=ApiStatus(url="http://127.0.0.1:8888/v1", model="GLM-5.3-Flash-EXL3", max_tokens=32768),
        )

    def readiness(self) -> Readiness:
        return self.now

    def status(self) -> Status:
        return self.told

    def restarts(self) -> int:
        return 3

    def incidents(self) -> list[dict[str, Any]]:
        return [{"code": "rank.lost"}]

    async def plan(self) -> dict[str, Any]:
        return {"ranks": []}

    async def check(self) -> dict[str, Any]:
        return {"findings": [LOST.model_dump(mode="json")]}

    async def restart(self) -> Refused | None:
        self.asked.append("restart")
        return self.refusal

    async def sync(self) -> Refused | None:
        self.asked.append("sync")
        return None

    async def stop(self) -> Refused | None:
        self.asked.append("stop")
        return self.refusal


@dataclass
class Arrived:
    """A request as the engine got it."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes

    def named(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name]


EVENT = b'data: {"choices": [{"delta": {"content": "word"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


class Engine:
    """An HTTP/1.1 server that knows Content-Length and nothing else, like rank 0's. `more` lets streams go on."""

    def __init__(self) -> None:
        self.arrived: list[Arrived] = []
        self.came = asyncio.Event()
        self.left = asyncio.Event()
        self.more = asyncio.Event()
        self.writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._routes: dict[str, Callable[[asyncio.StreamWriter], Awaitable[None]]] = {
            "/v1/chat/completions": self._stream,
            "/hang": self._hang,
            "/half-event": self._half_event,
            "/half-body": self._half_body,
            "/no-length": self._no_length,
        }

    async def open(self, port: int) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)

    def die(self) -> None:
        """As a killed process: its port and all its connections at once, what was written before still arrives."""
        if self._server is not None:
            self._server.close()
        for writer in self.writers:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.add(writer)
        try:
            await self._answer(reader, writer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            self.left.set()
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, target, _ = head[0].split(" ")
        headers = [(line.partition(":")[0], line.partition(":")[2].strip()) for line in head[1:] if line]
        length = next((int(value) for name, value in headers if name.lower() == "content-length"), 0)
        request = Arrived(method, target, headers, await reader.readexactly(length))
        self.arrived.append(request)
        self.came.set()
        route = self._routes.get(target.partition("?")[0])
        if route is None:
            _send_json(writer, request)
            return
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(self._watch(reader))
            try:
                await route(writer)
            finally:
                watch.cancel()

    async def _watch(self, reader: asyncio.StreamReader) -> None:
        await reader.read()
        self.left.set()
        self.more.set()

    async def _stream(self, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM + EVENT)
        await self.more.wait()
        writer.write(EVENT + DONE)

    async def _hang(self, writer: asyncio.StreamWriter) -> None:
        await self.more.wait()

    async def _half_event(self, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM + EVENT + EVENT[:20])
        await self.more.wait()

    async def _half_body(self, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
        await self.more.wait()

    async def _no_length(self, writer: asyncio.StreamWriter) -> None:
        writer.write(b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n{"part": 1,')
        await self.more.wait()
        writer.write(b' "whole": true}')


def _send_json(writer: asyncio.StreamWriter, request: Arrived) -> None:
    body = json.dumps({"sha256": hashlib.sha256(request.body).hexdigest(), "length": len(request.body)}).encode()
    writer.write(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nServer: engine\r\nAccess-Control-Allow-Origin: *\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body)
    )
    if request.method != "HEAD":
        writer.write(body)


@dataclass
class Endpoint:
    """The front with everything around it, listening."""

    config: Config
    gate: Gate
    daemon: Daemon
    engine: Engine
    front: Front

    @property
    def url(self) -> str:
        return f"http://{self.config.api.host}:{self.config.api.port}"

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self.config.api.host, self.config.api.port)

    async def says(self, request: bytes) -> bytes:
        """Everything it answers to raw bytes, until it closes the connection."""
        reader, writer = await self.connect()
        try:
            writer.write(request)
            async with asyncio.timeout(LIMIT_S):
                return await reader.read()
        except ConnectionError:
            return b""
        finally:
            writer.close()

    async def none_in_flight(self) -> None:
        assert await self.gate.drain(LIMIT_S), "a request stayed in flight"

    async def head(self, request: bytes) -> bytes:
        """The status line and headers of its answer to raw bytes, as soon as they are there."""
        reader, writer = await self.connect()
        try:
            writer.write(request)
            async with asyncio.timeout(LIMIT_S):
                return await reader.readuntil(b"\r\n\r\n")
        finally:
            writer.close()
