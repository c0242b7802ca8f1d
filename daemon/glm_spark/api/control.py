"""Health, status, metrics and commands: loopback with the token, control.sock for its group, a little on the cable.

Which of the three a request came in on is the address its connection was accepted on, never a header.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import json
import logging
import os
import socket
import stat
from collections.abc import Awaitable, Callable
from enum import Enum
from pathlib import Path
from typing import Any

from aiohttp import web

from glm_spark.api import answers, peer
from glm_spark.api.bind import BindFault, bind_fault, listening_socket
from glm_spark.api.gate import Gate
from glm_spark.api.keys import presented_key
from glm_spark.api.metrics import Metrics
from glm_spark.api.server import Listeners
from glm_spark.api.source import Refused, Source
from glm_spark.config import directories
from glm_spark.config.model import Config
from glm_spark.finding import Finding, Severity

log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
SOCKET_NAME = "control.sock"
STOP_SECONDS = 1.0
SessionHandler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
_Route = Callable[[], Awaitable[web.Response]]


class Way(Enum):
    """What a connection came in on."""

    LOOPBACK = "loopback"
    CABLE = "cable"
    SOCKET = "socket"


def way_of(sockname: object) -> Way:
    """A unix socket's name is a string; 127.0.0.1 is bound by itself; every other address is one of the cable's."""
    if not isinstance(sockname, tuple):
        return Way.SOCKET
    return Way.LOOPBACK if sockname[0] == LOOPBACK else Way.CABLE


def _json(body: Any, status: int = 200) -> web.Response:
    return web.Response(status=status, body=json.dumps(body).encode(), content_type="application/json")


def _not_found() -> web.Response:
    return answers.error(404, "invalid_request_error", "not_found", "There is no such thing here.")


def _asker(request: web.BaseRequest, way: Way) -> str:
    """Who sent a command, for the journal."""
    transport = request.transport
    if way is Way.SOCKET and transport is not None:
        return peer.name_of(transport.get_extra_info("socket"))
    return "a holder of the cluster's token on this Spark"


class Control:
    """`start`, then `rebind` at every change of the cable's addresses, `stop` at the end.

    `node` is this Spark's name for findings; `runtime` holds control.sock.
    """

    def __init__(
        self,
        config: Config,
        source: Source,
        token: bytes,
        session_handler: SessionHandler,
        *,
        node: str = "",
        gate: Gate | None = None,
        runtime: Path | None = None,
    ) -> None:
        self._port = config.control.port
        self._source = source
        self._token = token
        self._session_handler = session_handler
        self._node = node or socket.gethostname()
        self._metrics = Metrics(config, source, gate)
        self.socket_path = (runtime or directories.runtime(os.environ)) / SOCKET_NAME
        self._listeners: Listeners | None = None
        self._door: Listeners | None = None  # control.sock has a server of its own: no flood on a port shuts it

    @property
    def bound(self) -> frozenset[str]:
        """The addresses it listens on."""
        return self._listeners.names if self._listeners is not None else frozenset()

    async def start(self) -> None:
        """Listen on control.sock, by which its owner reaches this Spark even when every port is taken.

        Raises BindFault, and may then be called again. `rebind` opens the ports.
        """
        self._listeners, self._door = Listeners(self._handle), Listeners(self._handle)
        try:
            await self._listen_on_socket()
        except BindFault:
            await self.stop()
            raise

    async def rebind(self, addresses: set[str]) -> tuple[Finding, ...]:
        """Listen on loopback and exactly these addresses of the cable.

        One that this Spark does not have (any more) is passed over: the next call may find it. What keeps loopback, a
        present address, or metrics.listen, from being bound is returned.
        """
        assert self._listeners is not None
        wanted = addresses | {LOOPBACK}
        for gone in self.bound - wanted:
            self._listeners.leave(gone)
        findings = []
        for address in sorted(wanted - self.bound):
            try:
                await self._listen(address)
            except OSError as fault:
                if fault.errno != errno.EADDRNOTAVAIL:
                    told = await bind_fault(self._node, "control.port", address, self._port, fault)
                    findings.append(told.finding)
        try:
            await self._metrics.start(self._node)
        except BindFault as told:
            findings.append(told.finding)
        return tuple(findings)

    async def stop(self) -> None:
        """Stop listening and end every connection. May be called twice."""
        if self._door is not None:
            if self._door.names:
                self.socket_path.unlink(missing_ok=True)  # first: later it could be a successor's
            await self._door.stop(STOP_SECONDS)
            self._door = None
        if self._listeners is not None:
            await self._listeners.stop(STOP_SECONDS)
            self._listeners = None
        await self._metrics.stop()

    async def _listen(self, address: str) -> None:
        assert self._listeners is not None
        await self._listeners.listen(address, listening_socket(address, self._port))

    async def _listen_on_socket(self) -> None:
        assert self._door is not None
        path = self.socket_path
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._clear(path)
            sock.bind(str(path))
            # Nobody can connect before listen(): the mode is right from the first moment.
            os.chmod(path, 0o660)
            group = peer.group_id()
            if group is not None:
                with contextlib.suppress(PermissionError):  # unprivileged and no member: only its own user gets in
                    os.chown(path, -1, group)
            sock.setblocking(False)
            await self._door.listen(SOCKET_NAME, sock)
        except OSError as fault:
            sock.close()
            raise self._socket_fault(fault.strerror or str(fault), "a writable runtime directory") from None
        except BindFault:
            sock.close()
            raise

    def _clear(self, path: Path) -> None:
        """Remove the socket that a killed daemon left; never one that is answered."""
        try:
            if not stat.S_ISSOCK(path.lstat().st_mode):
                raise self._socket_fault("exists and is not a socket", "that name free")
        except FileNotFoundError:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
            outcome = probe.connect_ex(str(path))
        if outcome in (0, errno.EAGAIN):
            raise self._socket_fault("another daemon answers there", "one daemon a runtime directory")
        path.unlink(missing_ok=True)

    def _socket_fault(self, measured: str, wanted: str) -> BindFault:
        return BindFault(
            Finding(
                code="control.socket",
                severity=Severity.ERROR,
                node=self._node,
                subject=str(self.socket_path),
                measured=measured,
                wanted=wanted,
                fix="Stop the other glm-spark, or set RUNTIME_DIRECTORY to a directory of this daemon's own.",
            )
        )

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        transport = request.transport
        if transport is None:
            raise ConnectionResetError("the client left")
        way = way_of(transport.get_extra_info("sockname"))
        if "Origin" in request.headers:
            return answers.error(403, "permission_error", "origin", "Web pages have no business here.")
        if way is Way.SOCKET and not peer.is_allowed(transport.get_extra_info("socket")):
            return answers.error(
                403, "permission_error", "peer", f"Only root and members of group {peer.GROUP} may use this socket."
            )
        if request.method in ("GET", "HEAD"):
            if request.path == "/healthz":
                return answers.healthy()
            if request.path == "/readyz":
                return answers.ready(self._source.readiness())
        if way is Way.CABLE:
            return await self._session(request)
        if way is Way.LOOPBACK and not self._has_token(request):
            return answers.error(
                401,
                "invalid_request_error",
                "token",
                "The cluster's token is wanted: Authorization: Bearer TOKEN. `glm-spark status` needs none.",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return await self._command(request, way)

    async def _session(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method != "GET" or request.path != "/v1/session":
            return _not_found()
        if request.headers.get("Upgrade", "").lower() != "websocket":
            return answers.error(426, "invalid_request_error", "websocket", "A WebSocket is wanted here.")
        return await self._session_handler(request)

    def _has_token(self, request: web.BaseRequest) -> bool:
        key = presented_key(request.headers)
        return key is not None and hmac.compare_digest(key, self._token)

    async def _command(self, request: web.BaseRequest, way: Way) -> web.Response:
        routes: dict[str, dict[str, _Route]] = {
            "/v1/status": {"GET": self._status},
            "/v1/incidents": {"GET": self._incidents},
            "/metrics": {"GET": self._metrics_now},
            "/v1/restart": {"POST": self._restart},
            "/v1/stop": {"POST": self._stop_set},
            "/v1/sync": {"POST": self._sync},
        }
        if way is Way.SOCKET:
            routes["/v1/plan"] = {"GET": self._plan}
            routes["/v1/check"] = {"GET": self._check}
        methods = routes.get(request.path)
        if methods is None:
            return _not_found()
        route = methods.get(request.method)
        if route is None:
            allow = ", ".join(methods)
            return answers.error(
                405, "invalid_request_error", "method", f"Only {allow} works here.", headers={"Allow": allow}
            )
        if request.method == "POST":
            log.info("%s asked for by %s", request.path.rpartition("/")[2], _asker(request, way))
        return await route()

    @staticmethod
    def _begun(verb: str, refused: Refused | None) -> web.Response:
        """202: it was begun, /v1/status tells how it goes. 409: it was not, and why."""
        if refused is None:
            return _json({"begun": True, "findings": []}, 202)
        for finding in refused.findings:
            log.warning("%s refused: %s", verb, finding, extra={"code": finding.code})
        return _json({"begun": False, "findings": [f.model_dump(mode="json") for f in refused.findings]}, 409)

    async def _status(self) -> web.Response:
        return _json(self._source.status().model_dump(mode="json"))

    async def _incidents(self) -> web.Response:
        return _json(self._source.incidents())

    async def _metrics_now(self) -> web.Response:
        return self._metrics.response()

    async def _plan(self) -> web.Response:
        return _json(await self._source.plan())

    async def _check(self) -> web.Response:
        return _json(await self._source.check())

    async def _restart(self) -> web.Response:
        return self._begun("restart", await self._source.restart())

    async def _sync(self) -> web.Response:
        return self._begun("sync", await self._source.sync())

    async def _stop_set(self) -> web.Response:
        return self._begun("stop", await self._source.stop())
