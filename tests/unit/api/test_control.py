"""The control port: with the token on loopback, by user on the socket, and next to nothing on the cable."""

from __future__ import annotations

import json
import os
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from glm_spark.api import peer
from glm_spark.api.bind import BindFault
from glm_spark.api.control import Control
from glm_spark.api.gate import Gate
from glm_spark.api.source import Refused
from tests.unit.api.parts import DEAD, LOST, TOKEN, Daemon, configured

CABLE = "127.0.0.2"
BEARER = {"Authorization": f"Bearer {TOKEN.decode()}"}
ROUTES = [
    ("GET", "/v1/status"),
    ("GET", "/v1/incidents"),
    ("GET", "/metrics"),
    ("POST", "/v1/restart"),
    ("POST", "/v1/stop"),
]


async def echo(request: web.BaseRequest) -> web.StreamResponse:
    ws = web.WebSocketResponse()
    await ws.prepare(request)
    async for message in ws:
        await ws.send_str(f"heard {message.data}")
    return ws


class Desk:
    def __init__(self, control: Control, daemon: Daemon, port: int) -> None:
        self.control = control
        self.daemon = daemon
        self.loopback = f"http://127.0.0.1:{port}"
        self.cable = f"http://{CABLE}:{port}"
        self.port = port


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    config, daemon = configured(), Daemon()
    control = Control(config, daemon, TOKEN, echo, gate=Gate(), runtime=tmp_path)
    await control.start()
    assert await control.rebind({CABLE}) == ()
    yield Desk(control, daemon, config.control.port)
    await control.stop()


@pytest.fixture
async def local(desk: Desk) -> AsyncIterator[aiohttp.ClientSession]:
    """A client of control.sock."""
    connector = aiohttp.UnixConnector(str(desk.control.socket_path))
    async with aiohttp.ClientSession("http://localhost", connector=connector) as session:
        yield session


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_on_loopback_every_route_needs_the_token(
    desk: Desk, client: aiohttp.ClientSession, method: str, path: str
) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN.decode()}):
        async with client.request(method, desk.loopback + path, headers=headers) as reply:
            assert reply.status == 401
            assert TOKEN.decode() not in await reply.text()
    assert desk.daemon.asked == []
    async with client.request(method, desk.loopback + path, headers=BEARER) as reply:
        assert reply.status == (200 if method == "GET" else 202)


@pytest.mark.parametrize(("method", "path"), [*ROUTES, ("GET", "/v1/plan"), ("GET", "/v1/check"), ("GET", "/")])
@pytest.mark.parametrize("headers", [{}, BEARER, {"Host": "127.0.0.1", "X-Forwarded-For": "127.0.0.1"} | BEARER])
async def test_on_the_cable_there_is_nothing_of_it_even_with_the_token(
    desk: Desk, client: aiohttp.ClientSession, method: str, path: str, headers: dict[str, str]
) -> None:
    async with client.request(method, desk.cable + path, headers=headers) as reply:
        assert reply.status == 404
    assert desk.daemon.asked == []


@pytest.mark.parametrize("where", ["loopback", "cable"])
async def test_health_and_readiness_need_no_token_and_tell_state_and_code_only(
    desk: Desk, client: aiohttp.ClientSession, where: str
) -> None:
    url = getattr(desk, where)
    async with client.get(f"{url}/healthz") as reply:
        assert reply.status == 200
    async with client.get(f"{url}/readyz") as reply:
        assert (reply.status, await reply.json()) == (200, {"state": "live", "code": "live"})
    desk.daemon.now = DEAD
    async with client.get(f"{url}/readyz") as reply:
        assert (reply.status, await reply.json()) == (503, {"state": "recovering", "code": "rank.lost"})


async def test_the_session_is_a_websocket_on_the_cable_only(desk: Desk, client: aiohttp.ClientSession) -> None:
    async with client.ws_connect(f"{desk.cable}/v1/session") as ws:
        await ws.send_str("hello")
        assert (await ws.receive()).data == "heard hello"
    async with client.get(f"{desk.cable}/v1/session") as reply:
        assert reply.status == 426
    with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
        await client.ws_connect(f"{desk.loopback}/v1/session", headers=BEARER)
    assert refusal.value.status == 404


@pytest.mark.parametrize("path", ["/healthz", "/v1/status", "/v1/session"])
async def test_web_pages_are_refused_everywhere(
    desk: Desk, client: aiohttp.ClientSession, local: aiohttp.ClientSession, path: str
) -> None:
    headers = BEARER | {"Origin": "http://localhost"}
    for session, url in ((client, desk.loopback), (client, desk.cable), (local, "")):
        async with session.get(url + path, headers=headers) as reply:
            assert reply.status == 403


async def test_the_status_is_the_daemons(desk: Desk, client: aiohttp.ClientSession) -> None:
    async with client.get(f"{desk.loopback}/v1/status", headers=BEARER) as reply:
        told = await reply.json()
    assert told == json.loads(desk.daemon.told.model_dump_json())
    assert (told["cluster"], told["role"], told["ready"]) == ("glm", "leader", True)


async def test_a_refused_command_says_why_and_the_journal_too(
    desk: Desk, client: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    desk.daemon.refusal = Refused((LOST,))
    async with client.post(f"{desk.loopback}/v1/restart", headers=BEARER) as reply:
        assert reply.status == 409
        assert (await reply.json())["findings"][0]["code"] == "rank.lost"
    assert f"restart refused: {LOST}" in caplog.messages
    async with client.get(f"{desk.loopback}/v1/restart", headers=BEARER) as reply:
        assert (reply.status, reply.headers["Allow"]) == (405, "POST")


async def test_on_the_socket_the_owner_needs_no_token(desk: Desk, local: aiohttp.ClientSession) -> None:
    for method, path in [*ROUTES, ("GET", "/v1/plan"), ("GET", "/v1/check"), ("GET", "/readyz")]:
        async with local.request(method, path) as reply:
            assert reply.status == (200 if method == "GET" else 202), path
    assert desk.daemon.asked == ["restart", "stop"]


async def test_plan_and_check_are_not_on_loopback(desk: Desk, client: aiohttp.ClientSession) -> None:
    for path in ("/v1/plan", "/v1/check"):
        async with client.get(desk.loopback + path, headers=BEARER) as reply:
            assert reply.status == 404


async def test_a_user_who_is_neither_root_nor_a_member_is_refused_on_the_socket(
    desk: Desk, local: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer, "credentials", lambda sock: (4242, frozenset({4242})))
    for method, path in [*ROUTES, ("GET", "/healthz")]:
        async with local.request(method, path) as reply:
            assert reply.status == 403
    assert desk.daemon.asked == []


def test_root_the_daemons_user_and_the_groups_members_may() -> None:
    nobody: frozenset[int] = frozenset({65534})
    assert peer.may_control(0, nobody, own_uid=500, group=None)
    assert peer.may_control(500, nobody, own_uid=500, group=None)
    assert peer.may_control(1000, frozenset({1000, 77}), own_uid=500, group=77)
    assert not peer.may_control(1000, frozenset({1000}), own_uid=500, group=77)
    assert not peer.may_control(1000, frozenset({1000}), own_uid=500, group=None)


def test_the_kernel_tells_the_peers_user_and_all_its_groups() -> None:
    one, other = socket.socketpair(socket.AF_UNIX)
    with one, other:
        uid, gids = peer.credentials(one)
    assert uid == os.geteuid()
    assert gids == {os.getegid(), *os.getgroups()}


async def test_the_socket_is_private_and_goes_with_the_daemon(desk: Desk) -> None:
    path = desk.control.socket_path
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    await desk.control.stop()
    assert not path.exists()


async def test_a_socket_left_by_a_killed_daemon_is_no_obstacle_but_a_living_ones_is(desk: Desk, tmp_path: Path) -> None:
    second = Control(configured(), Daemon(), TOKEN, echo, runtime=tmp_path)
    with pytest.raises(BindFault) as fault:
        await second.start()
    assert "another daemon answers there" in fault.value.finding.measured
    await second.stop()
    assert desk.control.socket_path.exists()

    left = tmp_path / "left"
    left.mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(left / "control.sock"))
    third = Control(configured(), Daemon(), TOKEN, echo, runtime=left)
    await third.start()
    await third.stop()


async def test_a_start_that_failed_leaves_nothing_behind_and_can_be_tried_again(tmp_path: Path) -> None:
    config = configured()
    control = Control(config, Daemon(), TOKEN, echo, runtime=tmp_path)
    (tmp_path / "control.sock").mkdir()
    for _ in range(2):
        with pytest.raises(BindFault) as fault:
            await control.start()
        assert fault.value.finding.code == "control.socket"
    (tmp_path / "control.sock").rmdir()
    await control.start()
    assert await control.rebind(set()) == ()
    assert control.bound == {"127.0.0.1"}
    await control.stop()


async def test_a_missing_runtime_directory_or_a_path_too_long_is_said(tmp_path: Path) -> None:
    for runtime in (tmp_path / "missing", tmp_path / ("x" * 150)):
        control = Control(configured(), Daemon(), TOKEN, echo, runtime=runtime)
        with pytest.raises(BindFault) as fault:
            await control.start()
        assert str(runtime) in fault.value.finding.subject
        assert fault.value.finding.measured not in ("", "Success")


async def test_a_taken_metrics_port_does_not_keep_the_control_port_closed(
    tmp_path: Path, client: aiohttp.ClientSession
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        control = Control(configured(metrics={"listen": listen}), Daemon(), TOKEN, echo, runtime=tmp_path)
        await control.start()
        (finding,) = await control.rebind(set())
    assert (finding.code, finding.wanted) == ("port.busy", "free, for metrics.listen")
    assert await control.rebind(set()) == ()
    async with client.get(f"http://{listen}/metrics") as reply:
        assert reply.status == 200
    await control.stop()


async def test_addresses_are_bound_as_they_come_and_go(desk: Desk, client: aiohttp.ClientSession) -> None:
    assert desk.control.bound == {"127.0.0.1", CABLE}
    # 192.0.2.1 is on no netdev: the address of a cable that is not plugged in.
    assert await desk.control.rebind({"127.0.0.3", "192.0.2.1"}) == ()
    assert desk.control.bound == {"127.0.0.1", "127.0.0.3"}
    async with client.get(f"http://127.0.0.3:{desk.port}/readyz") as reply:
        assert reply.status == 200
    with pytest.raises(aiohttp.ClientConnectorError):
        await client.get(f"{desk.cable}/readyz")
    async with client.get(f"{desk.loopback}/readyz") as reply:
        assert reply.status == 200
    await desk.control.rebind({CABLE})
    async with client.get(f"{desk.cable}/readyz") as reply:
        assert reply.status == 200


async def test_a_taken_address_is_a_finding_and_the_socket_answers_all_the_same(desk: Desk, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.4", desk.port)):
        (finding,) = await desk.control.rebind({CABLE, "127.0.0.4"})
    assert finding.code == "port.busy"
    assert f"pid {os.getpid()}" in finding.measured
    (tmp_path / "b").mkdir()
    second = Control(configured(control={"port": desk.port}), Daemon(), TOKEN, echo, runtime=tmp_path / "b")
    await second.start()
    (finding,) = await second.rebind(set())
    assert finding.code == "port.busy"
    async with (
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(second.socket_path))) as session,
        session.get("http://localhost/healthz") as reply,
    ):
        assert reply.status == 200
    await second.stop()


async def test_garbage_on_the_cable_ends_nothing(
    desk: Desk, client: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    for garbage in (os.urandom(5000), b"\x16\x03\x01" + bytes(200), b"GET / HTTP/1.1\r\nX: " + b"y" * 50_000):
        for address in (CABLE, "127.0.0.1"):
            with socket.create_connection((address, desk.port)) as sender:
                sender.sendall(garbage)
            async with client.get(f"{desk.cable}/healthz") as reply:
                assert reply.status == 200
    assert not caplog.records
