"""The endpoint: who may ask, whether now, and then bytes through to the engine, both ways."""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path

import aiohttp
from aiohttp import web

from glm_spark.api import answers, hosts
from glm_spark.api.bind import BindFault, bind_fault, listening_socket
from glm_spark.api.exchange import Exchange
from glm_spark.api.gate import Cut, Gate
from glm_spark.api.keys import Keys
from glm_spark.api.server import Listeners
from glm_spark.api.source import Readiness, Source
from glm_spark.api.upload import Held, Refusal, Upload
from glm_spark.config.model import Config
from glm_spark.finding import Finding

__all__ = ["BindFault", "Front"]

CONNECT_SECONDS = 5.0
STOP_SECONDS = 2.0
_NO_KEY = "-"


class Front:
    """Listens on api.host:api.port of the leader. `start` before anything else, `stop` at the end."""

    def __init__(self, config: Config, gate: Gate, source: Source) -> None:
        self._config = config
        self._gate = gate
        self._source = source
        self._node = config.leader.name
        self._keys = Keys(Path(config.api.keys_file), self._node) if config.api.keys_file else None
        self._held = Held(2 * config.api.max_body_mib << 20)
        self._names: frozenset[str] = frozenset()
        self._session: aiohttp.ClientSession | None = None
        self._listeners: Listeners | None = None
        self.reload(config)

    @property
    def held_bytes(self) -> int:
        """Memory that bodies without a length take now."""
        return self._held.size

    def findings(self) -> tuple[Finding, ...]:
        """What is wrong with the keys file now."""
        finding = self._keys.finding if self._keys is not None else None
        return (finding,) if finding is not None else ()

    def reload(self, config: Config) -> None:
        """Take over what may change while it runs: api.allowed_hosts and api.max_requests."""
        self._config = config
        own = hosts.own_names([socket.gethostname(), self._node])
        self._names = own | {name.lower().rstrip(".") for name in config.api.allowed_hosts}

    async def start(self) -> None:
        """Read the keys and listen. Raises BindFault, and may then be called again."""
        api = self._config.api
        if self._keys is not None:
            await self._keys.refresh()
        # One connection a request: an engine that closes an idle one just as it is used again would fail a request.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
        )
        self._listeners = Listeners(self._handle, cancels=True)
        try:
            await self._listeners.listen("api", listening_socket(api.host, api.port))
        except OSError as fault:
            await self.stop()
            raise await bind_fault(self._node, "api.port", api.host, api.port, fault) from None

    async def stop(self) -> None:
        """Stop listening and end every connection; drain or close the gate first. May be called twice."""
        if self._listeners is not None:
            await self._listeners.stop(STOP_SECONDS)
            self._listeners = None
        if self._session is not None:
            await self._session.close()
            self._session = None
        if self._keys is not None:
            self._keys.close()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if not request.raw_path.startswith("/"):
            return answers.error(
                400, "invalid_request_error", "target", "Only paths of this endpoint can be asked for."
            )
        if request.path == "/healthz":
            return answers.healthy()
        if request.path == "/readyz":
            return answers.ready(self._readiness())
        key = await self._admit(request)
        if isinstance(key, web.Response):
            self._gate.counts[_NO_KEY, "refused"] += 1
            return key
        # From here to the passage nothing may wait: the gate could close in between, and nobody would cut this one.
        readiness = self._readiness()
        if not readiness.live:
            self._gate.counts[key, "refused"] += 1
            return answers.not_ready(self._config.model.name, readiness)
        limit = self._config.api.max_requests
        if self._gate.in_flight >= limit:
            self._gate.counts[key, "refused"] += 1
            message = f"{limit} requests are in flight (api.max_requests)."
            return answers.error(429, "rate_limit_error", "too_many_requests", message, retry_after=5)
        return await self._pass(request, key)

    def _readiness(self) -> Readiness:
        """Both must agree to live; what the daemon says now tells more than what the gate was closed with."""
        now = self._source.readiness()
        gate = self._gate
        return now if gate.state == "open" or (gate.state != "stopping" and not now.live) else gate.readiness

    async def _admit(self, request: web.BaseRequest) -> str | web.Response:
        """The caller's key fingerprint ("-" where none is needed), or the refusal."""
        if self._guards_names() and self._is_foreign(request):
            return answers.error(
                403,
                "permission_error",
                "foreign_host",
                "This Host or Origin is not this Spark's. Use its address or host name, or add the name to "
                "api.allowed_hosts.",
            )
        if self._keys is None:
            return _NO_KEY
        key = await self._keys.admit(request.headers)
        if key is not None:
            return key
        message = "A valid API key is wanted: Authorization: Bearer KEY, or x-api-key: KEY."
        if self._keys.finding is not None:
            message += (
                " No key can be checked now: the keys file on the Spark is unusable; `glm-spark status` says why."
            )
        return answers.error(
            401, "invalid_request_error", "invalid_api_key", message, headers={"WWW-Authenticate": "Bearer"}
        )

    def _guards_names(self) -> bool:
        """Where a page's request could do anything: without keys, or for whoever the network lets in."""
        api = self._config.api
        return api.open or self._keys is None or not ipaddress.ip_address(api.host).is_loopback

    def _is_foreign(self, request: web.BaseRequest) -> bool:
        named = request.headers.getall("Host", ())
        if len(named) > 1:
            return True
        # HTTP/1.0 may leave Host out; a browser never does.
        host = named[0] if named else "localhost"
        if hosts.foreign_host(host, self._names):
            return True
        origins = request.headers.getall("Origin", ())
        return any(hosts.foreign_origin(origin, host, self._names) for origin in origins)

    async def _pass(self, request: web.BaseRequest, key: str) -> web.StreamResponse:
        assert self._session is not None
        upload = Upload(request, self._config.api.max_body_mib << 20, self._held)
        exchange = Exchange(request, upload, self._config.model.name, self._readiness)
        try:
            with self._gate.passage(key) as passage:
                try:
                    return await exchange.run(self._session, self._gate.upstream, passage)
                except Refusal as refusal:
                    passage.outcome = "refused"
                    return refusal.response
        except Cut as cut:
            return await exchange.end_cut(cut.readiness)
        finally:
            upload.end()
