"""The HTTP servers of this room: quiet about what strangers send, bounded in connections, quick to end."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestHandler

IDLE_SECONDS = 75.0  # a connection that sends no (whole) request head for so long is closed
LINGER_SECONDS = 2.0  # how long a refused upload is read on, so that its sender sees the answer
# systemd gives a service 1024 descriptors; ranks, sessions and the engine's side of each request need theirs.
MOST_CONNECTIONS = 400
_BACKLOG = 256

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class _NoClientFaults(logging.Filter):
    """Garbage sent to an open port, and clients that leave, must not fill the journal, nor put a request's text in."""

    def filter(self, record: logging.LogRecord) -> bool:
        fault = record.exc_info[1] if record.exc_info else None
        return not isinstance(fault, HttpProcessingError | ConnectionError)


_log = logging.getLogger("glm_spark.api.http")
_log.addFilter(_NoClientFaults())


class _Bounded(web.Server):
    """A server that keeps at most MOST_CONNECTIONS: strangers must not use up the daemon's descriptors.

    A newcomer takes the place of the one that has been silent for longest, so that connections held open without a
    request keep nobody out. Only when all of them are being answered is the newcomer dropped.
    """

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        if len(self.connections) >= MOST_CONNECTIONS:
            silent = next((one for one in self.connections if one._current_request is None), None)
            if silent is not None:
                silent.force_close()
            else:
                # Not at once: aiohttp starts the handler's task first, which must find its server.
                asyncio.get_running_loop().call_soon(transport.abort)
        super().connection_made(handler, transport)


class Listeners:
    """One HTTP server and the sockets it listens on, by name.

    `cancels` ends a request's handler as soon as its client leaves.
    """

    def __init__(self, handler: Handler, *, cancels: bool = False) -> None:
        self._server = _Bounded(
            handler,
            handler_cancellation=cancels,
            access_log=None,
            logger=_log,
            auto_decompress=False,
            keepalive_timeout=IDLE_SECONDS,
            lingering_time=LINGER_SECONDS,
        )
        self._listening: dict[str, asyncio.Server] = {}

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._listening)

    async def listen(self, name: str, sock: socket.socket) -> None:
        """Accept on a bound socket, which is closed when that fails. Raises OSError."""
        loop = asyncio.get_running_loop()
        make = loop.create_unix_server if sock.family == socket.AF_UNIX else loop.create_server
        try:
            self._listening[name] = await make(self._server, sock=sock, backlog=_BACKLOG)
        except OSError:
            sock.close()
            raise

    def leave(self, name: str) -> None:
        """Accept no more there; connections that came in there go on."""
        self._listening.pop(name).close()

    async def stop(self, seconds: float) -> None:
        """Accept nothing more; idle connections end now, requests under way within `seconds`, twice at worst."""
        for name in self.names:
            self.leave(name)
        self._server.pre_shutdown()
        await self._server.shutdown(seconds)
