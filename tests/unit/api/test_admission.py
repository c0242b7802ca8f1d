"""Who may ask: keys, Host and Origin, limits, and what is not HTTP at all."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import socket
import threading
from pathlib import Path

import aiohttp
import pytest

from glm_spark.api import keys, server, upload
from glm_spark.api.bind import BindFault
from glm_spark.api.front import Front
from glm_spark.api.gate import Gate
from tests.unit.api.conftest import Opener
from tests.unit.api.parts import DEAD, LIMIT_S, Daemon, Endpoint, configured, until

KEY = "sk-spark-0123456789abcdef"


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.touch(mode=0o600)
    path.write_text(f"# for the chat page\n\n{KEY}\nsk-spark-second\n")
    return path


async def status(client: aiohttp.ClientSession, endpoint: Endpoint, **headers: str) -> int:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with client.get(f"{endpoint.url}/v1/models", headers=named) as reply:
        return reply.status


async def test_a_key_is_taken_as_bearer_or_as_x_api_key(
    opened: Opener, keys_file: Path, client: aiohttp.ClientSession
) -> None:
    endpoint = await opened(keys_file=str(keys_file))
    assert await status(client, endpoint, Authorization=f"Bearer {KEY}") == 200
    assert await status(client, endpoint, x_api_key="sk-spark-second") == 200
    mark = hashlib.sha256(KEY.encode()).hexdigest()[:8]
    assert endpoint.gate.counts[mark, "answered"] == 1
    assert not any(KEY in name for name, _ in endpoint.gate.counts)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": KEY},
        {"Authorization": f"Basic {KEY}"},
        {"Authorization": "Bearer "},
        {"x_api_key": "# for the chat page"},
        {"x_api_key": KEY[:-1]},
        {"Authorization": "Bearer \udcff\udcfe"},
    ],
)
async def test_without_a_valid_key_the_answer_is_openais_401(
    opened: Opener, keys_file: Path, headers: dict[str, str]
) -> None:
    endpoint = await opened(keys_file=str(keys_file))
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    request = f"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{lines}\r\n"
    answer = await endpoint.says(request.encode("utf-8", "surrogateescape"))
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b'"code": "invalid_api_key"' in answer
    assert not endpoint.engine.arrived


async def test_health_needs_no_key(opened: Opener, keys_file: Path, client: aiohttp.ClientSession) -> None:
    endpoint = await opened(keys_file=str(keys_file))
    for path in ("/healthz", "/readyz"):
        async with client.get(f"{endpoint.url}{path}") as reply:
            assert reply.status == 200


async def test_keys_are_read_again_when_the_file_changes(
    opened: Opener, keys_file: Path, client: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "LOOK_SECONDS", 0.0)
    endpoint = await opened(keys_file=str(keys_file))
    assert await status(client, endpoint, x_api_key="sk-new") == 401
    keys_file.write_text("sk-new\n")
    assert await status(client, endpoint, x_api_key="sk-new") == 200
    assert await status(client, endpoint, x_api_key=KEY) == 401


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
async def test_a_keys_file_that_others_may_read_makes_no_key_valid_and_says_so(
    opened: Opener, keys_file: Path, client: aiohttp.ClientSession, mode: int
) -> None:
    keys_file.chmod(mode)
    endpoint = await opened(keys_file=str(keys_file))
    assert await status(client, endpoint, x_api_key=KEY) == 401
    (finding,) = endpoint.front.findings()
    assert f"{mode:04o}" in finding.measured
    assert "chmod 0600" in finding.fix


async def test_mending_the_mode_mends_the_keys(
    opened: Opener, keys_file: Path, client: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "LOOK_SECONDS", 0.0)
    keys_file.chmod(0o644)
    endpoint = await opened(keys_file=str(keys_file))
    keys_file.chmod(0o600)
    assert await status(client, endpoint, x_api_key=KEY) == 200
    assert endpoint.front.findings() == ()


async def test_a_missing_empty_or_odd_keys_file_makes_no_key_valid(
    opened: Opener, tmp_path: Path, client: aiohttp.ClientSession
) -> None:
    empty, fifo = tmp_path / "empty", tmp_path / "fifo"
    empty.touch(mode=0o600)
    os.mkfifo(fifo, 0o600)
    for path in (tmp_path / "missing", empty, fifo, tmp_path):
        endpoint = await opened(keys_file=str(path))
        assert await status(client, endpoint, x_api_key="") == 401
        assert await status(client, endpoint, x_api_key="x") == 401
        assert endpoint.front.findings()


async def test_a_disk_that_never_answers_keeps_the_known_keys_and_is_said(
    opened: Opener, keys_file: Path, client: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = await opened(keys_file=str(keys_file))
    assert await status(client, endpoint, x_api_key=KEY) == 200
    release = threading.Event()

    def stuck(*_: object) -> object:
        release.wait()
        raise OSError("late")

    monkeypatch.setattr(keys, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(keys, "READ_SECONDS", 0.05)
    monkeypatch.setattr(keys, "_read", stuck)
    try:
        assert await status(client, endpoint, x_api_key=KEY) == 200
        assert await status(client, endpoint, x_api_key="wrong") == 401
        (finding,) = endpoint.front.findings()
        assert finding.code == "api.keys-file-late"
        monkeypatch.setattr(keys, "READ_SECONDS", 60.0)  # later requests do not wait for it
        assert await status(client, endpoint, x_api_key=KEY) == 200
    finally:
        release.set()


async def test_a_set_that_dies_while_a_key_is_looked_up_is_not_asked(
    opened: Opener, keys_file: Path, client: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a request would come after the cut, and hang for ever."""
    endpoint = await opened(keys_file=str(keys_file))
    reading, release, read = threading.Event(), threading.Event(), keys._read

    def slow(path: Path, node: str, known: keys._Reading) -> keys._Reading:
        reading.set()
        release.wait(LIMIT_S)
        return read(path, node, known)

    monkeypatch.setattr(keys, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(keys, "_read", slow)
    async with asyncio.TaskGroup() as group:
        asked = group.create_task(status(client, endpoint, x_api_key=KEY))
        await until(reading.is_set)
        endpoint.gate.close(DEAD)
        release.set()
    assert asked.result() == 503
    assert not endpoint.engine.arrived


FOREIGN = [
    {"Host": "evil.example"},
    {"Host": "evil.example:8888"},
    {"Host": "spark-1.evil.example"},
    {"Host": "127.0.0.1.evil.example"},
    {"Host": "localhost@evil.example"},
    {"Host": ""},
    {"Host": "localhost", "Origin": "http://evil.example"},
    {"Host": "localhost", "Origin": "http://203.0.113.5"},
    {"Host": "localhost", "Origin": "null"},
    {"Host": "localhost", "Origin": "http://localhost.evil.example"},
    {"Host": "localhost", "Origin": "chrome-extension://abcdef"},
]
OWN = [
    {"Host": "localhost:8888"},
    {"Host": "127.0.0.1"},
    {"Host": "[::1]:8888"},
    {"Host": "10.0.0.5:8888"},
    {"Host": "SPARK-1"},
    {"Host": "spark-1.local:8888"},
    {"Host": "chat.home"},
    {"Host": "10.0.0.5:8888", "Origin": "http://10.0.0.5:3000"},
    {"Host": "localhost", "Origin": "http://localhost:3000"},
    {"Host": "10.0.0.5", "Origin": "https://chat.home"},
]


@pytest.mark.parametrize("api", [{}, {"open": True, "host": "127.0.0.2"}])
@pytest.mark.parametrize("headers", FOREIGN)
async def test_a_page_from_elsewhere_gets_nothing(
    opened: Opener, headers: dict[str, str], api: dict[str, object]
) -> None:
    """DNS rebinding, and a plain cross-site POST, from the browser on the Spark or on the LAN."""
    endpoint = await opened(**api)
    assert (await ask(endpoint, headers)).startswith(b"HTTP/1.1 403 ")
    assert not endpoint.engine.arrived


@pytest.mark.parametrize("headers", OWN)
async def test_the_sparks_own_names_and_allowed_ones_are_served(opened: Opener, headers: dict[str, str]) -> None:
    endpoint = await opened(allowed_hosts=["Chat.Home"])
    assert (await ask(endpoint, headers)).startswith(b"HTTP/1.1 200 ")


async def ask(endpoint: Endpoint, headers: dict[str, str]) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return await endpoint.says(
        f"POST /v1/chat HTTP/1.1\r\n{lines}Connection: close\r\nContent-Length: 0\r\n\r\n".encode()
    )


async def test_a_preflight_from_another_page_is_not_allowed_anything(endpoint: Endpoint) -> None:
    answer = await endpoint.says(
        b"OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\n"
        b"Access-Control-Request-Method: POST\r\nConnection: close\r\n\r\n"
    )
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert b"access-control" not in answer.lower()


async def test_allowed_hosts_and_the_limit_change_while_it_runs(opened: Opener) -> None:
    endpoint = await opened()
    assert (await ask(endpoint, {"Host": "chat.home"})).startswith(b"HTTP/1.1 403 ")
    api = endpoint.config.api.model_copy(update={"allowed_hosts": ("chat.home",)})
    endpoint.front.reload(endpoint.config.model_copy(update={"api": api}))
    assert (await ask(endpoint, {"Host": "chat.home"})).startswith(b"HTTP/1.1 200 ")


async def test_one_request_too_many_is_told_to_come_back(opened: Opener, client: aiohttp.ClientSession) -> None:
    endpoint = await opened(max_requests=2)
    running = [asyncio.create_task(status_of(client, f"{endpoint.url}/hang")) for _ in range(2)]
    await until(lambda: endpoint.gate.in_flight == 2)
    async with client.get(f"{endpoint.url}/v1/models") as reply:
        assert reply.status == 429
        assert reply.headers["Retry-After"] == "5"
        assert "api.max_requests" in (await reply.json())["error"]["message"]
    endpoint.engine.more.set()
    assert await asyncio.gather(*running)


async def status_of(client: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with client.get(url):
            return True
    except aiohttp.ClientError:
        return True


async def test_a_client_that_sends_nothing_holds_no_place(opened: Opener, client: aiohttp.ClientSession) -> None:
    endpoint = await opened(max_requests=1)
    silent = [await endpoint.connect() for _ in range(20)]
    silent[0][1].write(b"POST /v1/echo HTTP/1.1\r\nHost: local")
    assert await status(client, endpoint) == 200
    for _, writer in silent:
        writer.close()


async def test_a_body_that_stops_in_its_middle_gives_its_place_up(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload, "SILENCE_SECONDS", 0.05)
    for framing in ("Content-Length: 100\r\n\r\nhalf", "Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n"):
        head = await endpoint.head(f"POST /v1/echo HTTP/1.1\r\nHost: localhost\r\n{framing}".encode())
        assert head.startswith(b"HTTP/1.1 408 ")
        await until(lambda: not endpoint.gate.busy)
    assert not endpoint.engine.arrived


async def test_a_connection_without_a_whole_request_head_is_closed(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "IDLE_SECONDS", 0.1)
    endpoint = await opened()
    for sent in (b"", b"GET /v1/models HTTP/1.1\r\nHost: local"):
        assert await endpoint.says(sent) == b""


async def test_connections_held_without_a_request_keep_nobody_out(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MOST_CONNECTIONS", 5)
    endpoint = await opened()
    held = [await endpoint.connect() for _ in range(5)]
    for _, writer in held:
        writer.write(b"GET / HTTP/1.1\r\n")
    for _ in range(3):
        reply = await endpoint.says(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert reply.startswith(b"HTTP/1.1 200 ")
    async with asyncio.timeout(LIMIT_S):
        assert await held[0][0].read() == b"", "the one that was silent for longest made room"
    for _, writer in held:
        writer.close()


async def test_the_endpoint_stops_at_once_with_idle_connections_open(endpoint: Endpoint) -> None:
    idle = [await endpoint.connect() for _ in range(3)]
    idle[0][1].write(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
    async with asyncio.timeout(LIMIT_S):
        await idle[0][0].readuntil(b"\r\n\r\n")
    async with asyncio.timeout(0.5):
        await endpoint.front.stop()
    for _, writer in idle:
        writer.close()


SMUGGLED = [
    "POST /v1/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nX",
    "POST /v1/x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\nX",
    "POST /v1/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhelloX",
    "POST /v1/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
    "POST /v1/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: +5\r\n\r\nhello",
    "POST /v1/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\nhello",
    "POST /v1/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5, 5\r\n\r\nhello",
    "POST /v1/x HTTP/1.1\r\nHost: localhost\r\nContent-Length : 5\r\n\r\nhello",
    "POST /v1/x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "POST /v1/x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "POST /v1/x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "POST /v1/x HTTP/1.1\r\nHost: localhost" + "\r\nTransfer-Encoding: chunked" * 2 + "\r\n\r\n0\r\n\r\n",
    "POST /v1/x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\nx\r\n0\r\n\r\n",
    "POST /v1/x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0x1\r\nx\r\n0\r\n\r\n",
    "POST /v1/x HTTP/1.1\r\nHost: localhost\r\nX: a\r\n folded\r\nContent-Length: 0\r\n\r\n",
    "POST /v1/x HTTP/1.1\r\nHost: localhost\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n",
    "GET http://evil.example/v1/x HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "GET /v1/x HTTP/1.1\nHost: localhost\n\n",
]


@pytest.mark.parametrize("request_text", SMUGGLED)
async def test_requests_that_two_readers_could_read_differently_are_refused(
    endpoint: Endpoint, request_text: str
) -> None:
    reader, writer = await endpoint.connect()
    writer.write(request_text.encode())
    async with asyncio.timeout(LIMIT_S):
        answer = await reader.readline()
    writer.close()
    assert re.match(rb"HTTP/1\.[01] (4\d\d|501) ", answer), answer
    assert not any(arrived.target.endswith("/v1/x") for arrived in endpoint.engine.arrived)


@pytest.mark.parametrize("ambiguous", [SMUGGLED[0], SMUGGLED[2], SMUGGLED[7], SMUGGLED[8], SMUGGLED[9]])
async def test_what_follows_an_ambiguous_request_is_not_read_as_another(endpoint: Endpoint, ambiguous: str) -> None:
    await endpoint.says(ambiguous.encode() + b"GET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert not endpoint.engine.arrived


GARBAGE = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)),
    b"\x00" * 4096,
    b"\r\n" * 1000 + b"\xff\xfe\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: a\r\n" * 10_000 + b"\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    b"CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443\r\nConnection: close\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
]


@pytest.mark.parametrize("garbage", [*GARBAGE, *(os.urandom(2000) for _ in range(5))], ids=lambda _: "")
async def test_garbage_ends_nothing_and_is_not_written_to_the_journal(
    endpoint: Endpoint, client: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture, garbage: bytes
) -> None:
    reader, writer = await endpoint.connect()
    writer.write(garbage)
    writer.write_eof()
    with contextlib.suppress(ConnectionError):  # it may well be thrown out
        async with asyncio.timeout(LIMIT_S):
            await reader.read()
    writer.close()
    assert await status(client, endpoint) == 200
    assert [arrived.target for arrived in endpoint.engine.arrived] == ["/v1/models"]
    assert not caplog.records


async def test_a_busy_port_is_said_with_its_owner() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        front = Front(configured(api={"port": port}), Gate(), Daemon())
        with pytest.raises(BindFault) as fault:
            await front.start()
    await front.start()  # once it is free
    await front.stop()
    finding = fault.value.finding
    assert finding.code == "port.busy"
    assert f"127.0.0.1:{port}" in finding.subject
    assert f"pid {os.getpid()}" in finding.measured
    assert "api.port" in finding.wanted


async def test_an_address_this_spark_does_not_have_is_said() -> None:
    front = Front(configured(api={"host": "192.0.2.1", "open": True}), Gate(), Daemon())
    with pytest.raises(BindFault) as fault:
        await front.start()
    assert fault.value.finding.code == "port.address-missing"
