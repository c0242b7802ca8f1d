"""Bad input from anywhere: a wrong token, other settings, a replayed session, random bytes, taken ports."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from glm_spark.cluster import protocol
from glm_spark.cluster.protocol import Opening
from tests.cluster.conftest import Cluster, MakeCluster
from tests.sparks.daemon import Daemon, until
from tests.sparks.settings import DAEMON


async def reason(daemon: Daemon, code: str) -> dict[str, Any]:
    """Waits until the set's reason is this finding."""
    found: list[dict[str, Any]] = []

    async def seen() -> bool:
        try:
            told = (await daemon.status())["reason"]
        except (aiohttp.ClientError, OSError):
            return False
        found[:] = [told]
        return bool(told) and told["code"] == code

    await until(seen, 20.0, f"the reason {code}, not {found}")
    return found[0]


def other_file(cluster: Cluster, change: tuple[str, str]) -> Path:
    """The shared configuration with one text replaced, for one Spark alone."""
    text = cluster.sparks.config_file.read_text()
    assert change[0] in text
    path = cluster.sparks.config_file.with_name("other.toml")
    path.write_text(text.replace(*change))
    return path


async def test_another_token_is_refused_and_said_on_both_sides(cluster: Cluster) -> None:
    token = cluster.sparks.config_file.with_name("other-token")
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    worker = cluster.workers[0]
    worker.config_file = other_file(cluster, (str(cluster.sparks.token_file), str(token)))
    cluster.start()
    told = await reason(cluster.leader, "cluster.token-differs")
    assert told["node"] == "spark-2"
    assert "token file" in told["fix"]
    await worker.wait_journal("the cluster tokens differ")
    worker.config_file = cluster.sparks.config_file
    await worker.stop()
    await cluster.live()


async def test_other_settings_are_named_with_both_values(cluster: Cluster) -> None:
    worker = cluster.workers[0]
    worker.config_file = other_file(cluster, ("[engine]", "[engine]\nmax_tokens = 1234"))
    cluster.start()
    told = await reason(cluster.leader, "cluster.setting-differs")
    text = json.dumps(told)
    assert "engine.max_tokens" in text
    assert "1234" in text
    assert "32768" in text
    assert not cluster.leader.ranks()


async def test_a_worker_whose_state_is_ahead_is_counted_on_from(cluster: Cluster) -> None:
    state = Path(cluster[1].spark.environment["STATE_DIRECTORY"])
    state.mkdir(parents=True, exist_ok=True)
    (state / "generation").write_text('{"generation": 41}')
    assert (await cluster.live())["generation"] == 42


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"protocol": 99}, protocol.PROTOCOL_DIFFERS),
        ({"node": "spark-9"}, protocol.NOT_THE_LEADER),
        ({"cluster": "other"}, protocol.ANOTHER_CLUSTER),
        ({"nonce": "short"}, protocol.MALFORMED),
    ],
)
async def test_who_is_not_the_leader_is_refused_and_the_set_stays_live(
    cluster: Cluster, changes: dict[str, Any], code: int
) -> None:
    await cluster.live()
    fields = {
        "protocol": protocol.PROTOCOL,
        "cluster": "glm",
        "node": "spark-1",
        "boot_id": "b",
        "instance_id": "i",
        "nonce": protocol.nonce(),
    }
    async with (
        cluster.leader.spark.session() as http,
        http.ws_connect("http://192.168.100.2:8899/v1/session") as stranger,
    ):
        await stranger.send_str(json.dumps({**fields, **changes}))
        answer = await stranger.receive(timeout=10)
        assert answer.type is aiohttp.WSMsgType.CLOSE
        assert answer.data == code
    assert (await cluster.leader.status())["ready"]


async def test_a_stranger_without_the_token_gets_no_proof_and_takes_nothing_over(cluster: Cluster) -> None:
    """The worker shows its own proof only after the leader's: a stranger has nothing to try the token on."""
    await cluster.live()
    opening = Opening(
        protocol=protocol.PROTOCOL, cluster="glm", node="spark-1", boot_id="b", instance_id="i", nonce=protocol.nonce()
    )
    async with (
        cluster.leader.spark.session() as http,
        http.ws_connect("http://192.168.100.2:8899/v1/session") as stranger,
    ):
        await stranger.send_str(opening.model_dump_json())
        theirs = await stranger.receive(timeout=10)
        assert set(json.loads(theirs.data)) == set(Opening.model_fields)
        await stranger.send_str(json.dumps({"proof": "0" * 64}))
        answer = await stranger.receive(timeout=10)
        assert answer.data == protocol.TOKEN_DIFFERS
    assert (await cluster.leader.status())["ready"]


async def test_a_recorded_session_replayed_is_refused(cluster: Cluster) -> None:
    """What the leader sent in one session, played back to the worker, proves nothing in another."""
    recorded: list[str] = []
    worker = cluster.workers[0]
    worker.start()
    await until(lambda: worker.notify.last("READY") == "1", 10.0, "the worker armed")
    await asyncio.wait_for(_record_a_handshake(cluster, recorded), 20)
    async with (
        cluster.leader.spark.session() as http,
        http.ws_connect("http://192.168.100.2:8899/v1/session") as replay,
    ):
        await replay.send_str(recorded[0])
        await replay.receive(timeout=10)
        await replay.send_str(recorded[1])
        answer = await replay.receive(timeout=10)
        assert answer.data == protocol.TOKEN_DIFFERS


async def _record_a_handshake(cluster: Cluster, recorded: list[str]) -> None:
    """A real handshake by the leader's half with the real token, written down."""
    token = cluster.sparks.token_file.read_text().strip().encode()
    mine = Opening(
        protocol=protocol.PROTOCOL, cluster="glm", node="spark-1", boot_id="b", instance_id="i", nonce=protocol.nonce()
    )
    async with (
        cluster.leader.spark.session() as http,
        http.ws_connect("http://192.168.100.2:8899/v1/session") as true_one,
    ):
        recorded.append(mine.model_dump_json())
        await true_one.send_str(recorded[0])
        theirs = protocol.parse_opening((await true_one.receive(timeout=10)).data)
        challenge = protocol.Challenge(token, leader=mine, worker=theirs)
        recorded.append(challenge.proof("leader").model_dump_json())
        await true_one.send_str(recorded[1])
        proof = protocol.parse_proof((await true_one.receive(timeout=10)).data)
        assert challenge.holds("worker", proof)


def garbage() -> Iterator[bytes]:
    yield os.urandom(4096)
    yield b"\x00" * 100
    yield b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 5000
    yield b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999\r\n\r\n"
    yield b"GET /v1/session HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"


@pytest.mark.parametrize(("host", "port"), [("192.168.100.2", 8899), ("127.0.0.1", 8899), ("127.0.0.1", 8888)])
async def test_random_bytes_on_a_port_end_nothing(cluster: Cluster, host: str, port: int) -> None:
    generation = (await cluster.live())["generation"]
    for bytes_sent in garbage():
        with cluster.leader.spark.connect(host, port) as connection:
            try:
                connection.sendall(bytes_sent)
                connection.settimeout(0.2)
                connection.recv(1000)
            except OSError:
                continue
    with cluster.leader.spark.socket(kind=socket.SOCK_DGRAM) as datagrams:
        for bytes_sent in garbage():
            datagrams.sendto(bytes_sent[:1400], ("192.168.100.2", 8899))
    status = await cluster.leader.status()
    assert status["ready"]
    assert status["generation"] == generation
    assert all(daemon.running for daemon in cluster.daemons)


@pytest.mark.parametrize("port", [8888, 8889, 29551, 8899])
async def test_a_taken_port_is_named_with_its_owner_and_freed_it_goes_live(cluster: Cluster, port: int) -> None:
    with cluster.leader.spark.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1" if port in (8899, 8888, 8889) else "0.0.0.0", port))
        taken.listen()
        cluster.start()

        async def said() -> bool:
            if await cluster.leader.state() is None:
                return False
            text = json.dumps(await cluster.leader.status())
            return "port.busy" in text and f"pid {os.getpid()}" in text

        await until(said, 20.0, f"port {port} named with its owner")
        assert cluster.leader.running
    await cluster.live()


async def test_a_missing_engine_program_keeps_the_daemon_up_with_the_reason(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(2, config={"engine": {"command": ["/nowhere/tensorfold"]}})
    cluster.start()
    told = await reason(cluster.leader, "engine.program-missing")
    assert "/nowhere/tensorfold" in json.dumps(told)
    assert cluster.leader.running
    assert await cluster.leader.endpoint_ready() == 503


async def test_the_token_shows_nowhere(cluster: Cluster) -> None:
    await cluster.live()
    token = cluster.sparks.token_file.read_text().strip()
    for daemon in cluster.daemons:
        assert token not in json.dumps(await daemon.status())
        assert token not in "\n".join(daemon.journal())
        for pid in daemon.spark.pids():
            for kind in ("cmdline", "environ"):
                assert token.encode() not in Path(f"/proc/{pid}/{kind}").read_bytes()


async def test_a_rank_inherits_nothing_of_the_daemons_service(make_cluster: MakeCluster) -> None:
    leaks = {"CREDENTIALS_DIRECTORY": "/x", "INVOCATION_ID": "i", "LISTEN_FDS": "3", "LISTEN_PID": "1"}
    cluster = make_cluster(2, env=leaks, watchdog_seconds=30)
    await cluster.live()
    for daemon in cluster.daemons:
        for rank in daemon.ranks():
            environment = Path(f"/proc/{rank.pid}/environ").read_bytes().decode()
            for name in (*leaks, "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"):
                assert f"{name}=" not in environment


async def test_a_second_daemon_on_a_spark_ends_at_once_and_touches_nothing(cluster: Cluster) -> None:
    """Started by hand beside the service: it must not take the living one's rank for a leftover."""
    generation = (await cluster.live())["generation"]
    leader = cluster.leader
    second = leader.spark.run([str(DAEMON), "run", "--config", str(leader.config_file)])
    assert second.returncode == 1
    assert "another glm-spark runs here" in second.stdout + second.stderr
    status = await leader.status()
    assert status["ready"]
    assert status["generation"] == generation
