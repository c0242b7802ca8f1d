"""The path probe tells a path that loses large packets from one that is dead, over real netdevs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from glm_spark.fabric.datagram import ANSWER, ASK, SMALLEST, Datagram, pack, probe_key, unpack
from glm_spark.fabric.inventory import Read
from glm_spark.fabric.probe import ProbeResult, Responder, path_findings, probe
from glm_spark.fabric.responder import ANSWERS_A_SECOND
from glm_spark.finding import Finding, Severity
from tests.unit.fabric import ends
from tests.unit.fabric.room import Room

PORT = "8899"
KEY = probe_key(b"a token of thirty-two bytes or so").hex()[:32]


class _Result(Read):
    mtu: int
    port: int
    sent: int
    received: int
    largest_ok: int
    rtt: float | None
    own_short: bool
    peer_mtu: int | None
    refused: bool
    error: str


@contextlib.contextmanager
def responding(room: Room, addresses: str) -> Iterator[subprocess.Popen[str]]:
    command = room.inside(room.far, sys.executable, str(Path(ends.__file__)), "respond", addresses, PORT, KEY)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        bound = [address.partition("@")[0] for address in addresses.split(",")]
        assert json.loads(process.stdout.readline()) == bound
        yield process
        process.stdin.close()


@pytest.fixture
def responder(room: Room) -> Iterator[subprocess.Popen[str]]:
    with responding(room, "192.168.100.2") as process:
        yield process


def ask(
    room: Room, mtu: int = 9000, key: str = KEY, peer: str = "192.168.100.2", netdev: str = "cable0"
) -> ProbeResult:
    program = (sys.executable, str(Path(ends.__file__)))
    command = room.inside(room.near, *program, "ask", netdev, "192.168.100.1", peer, PORT, str(mtu), key)
    told = _Result.model_validate_json(subprocess.check_output(command, text=True))
    return ProbeResult(**told.model_dump())


def told(result: ProbeResult, *, answering: bool = False) -> Finding:
    (finding,) = path_findings("spark-1", "spark-2", "cable0", "192.168.100.2", result, answering=answering)
    return finding


@pytest.mark.usefixtures("responder")
def test_a_sound_path_carries_full_size_both_ways(room: Room) -> None:
    result = ask(room)
    assert (result.sent, result.received, result.largest_ok, result.error) == (2, 2, 9000, "")
    assert result.rtt is not None
    assert result.rtt < 0.2
    assert path_findings("spark-1", "spark-2", "cable0", "192.168.100.2", result, answering=True) == ()


@pytest.mark.usefixtures("responder")
def test_a_far_end_back_at_1500_is_named_though_small_packets_pass(room: Room) -> None:
    room.ip(room.far, "link", "set", "cable0", "mtu", "1500")
    result = ask(room)
    assert (result.received, result.largest_ok) == (0, 1500)
    finding = told(result)
    assert (finding.code, finding.severity) == ("fabric.path-mtu", Severity.ERROR)
    assert "1500 bytes come back, those of 9000 do not" in finding.measured


@pytest.mark.usefixtures("responder")
def test_an_own_mtu_that_is_too_small_is_named(room: Room) -> None:
    room.ip(room.near, "link", "set", "cable0", "mtu", "1500")
    result = ask(room)
    assert (result.own_short, result.largest_ok) == (True, 1500)
    assert "cable0 cannot send packets of 9000 bytes" in told(result).measured


@pytest.mark.usefixtures("responder")
def test_a_peer_that_cannot_answer_in_full_size_says_so(room: Room) -> None:
    # What comes in over a wide netdev leaves over a narrow one of the same wire.
    room.ip(room.near, "link", "add", "cable1", "type", "veth", "peer", "name", "far1")
    room.ip(room.near, "link", "set", "far1", "netns", str(room.far), "name", "cable1")
    room.ip(room.near, "link", "add", "wire", "type", "bridge")
    room.ip(room.near, "address", "flush", "dev", "cable0")
    room.ip(room.near, "address", "add", "192.168.100.1/24", "dev", "wire")
    for name in ("cable0", "cable1"):
        room.ip(room.near, "link", "set", name, "master", "wire")
    for name, mtu in (("cable1", "1500"), ("wire", "9000")):
        room.ip(room.near, "link", "set", name, "mtu", mtu, "up")
    room.ip(room.far, "link", "set", "cable1", "up")
    room.ip(room.far, "route", "add", "192.168.100.1/32", "dev", "cable1", "src", "192.168.100.2")
    # Both of its netdevs would answer for its address (ARP flux): the asker knows the wide one.
    shown = subprocess.check_output(room.inside(room.far, "ip", "-o", "link", "show", "cable0"), text=True)
    mac = shown.split("link/ether ")[1].split()[0]
    room.ip(room.near, "neigh", "add", "192.168.100.2", "lladdr", mac, "dev", "wire")
    result = ask(room, netdev="wire")
    assert (result.received, result.peer_mtu, result.largest_ok) == (0, 1500, 1500)
    assert "spark-2 cannot answer with 9000 bytes: its MTU is 1500" in told(result).measured


def test_packets_that_arrive_on_the_other_netdev_are_not_taken_for_a_sound_rail(room: Room) -> None:
    room.ip(room.far, "link", "add", "twin0", "type", "bridge")
    room.ip(room.far, "link", "set", "twin0", "up")
    room.ip(room.far, "address", "add", "192.168.100.12/32", "dev", "twin0")
    # The twin's address is answered for by the first netdev, as with ARP flux.
    with responding(room, "192.168.100.12@twin0,192.168.100.2@cable0"):
        assert ask(room).received == 2
        result = ask(room, peer="192.168.100.12")
        assert (result.refused, result.received) == (True, 0)


def test_a_peer_where_nothing_listens_is_unknown(room: Room) -> None:
    result = ask(room)
    assert result.refused
    finding = told(result)
    assert (finding.code, finding.severity) == ("fabric.path-silent", Severity.UNKNOWN)
    assert "glm-spark does not answer" in finding.measured


@pytest.mark.usefixtures("responder")
def test_silence_is_a_fault_only_when_the_peer_is_known_to_answer(room: Room) -> None:
    room.ip(room.far, "route", "add", "blackhole", "192.168.100.1/32")
    result = ask(room)
    assert (result.received, result.largest_ok, result.refused) == (0, 0, False)
    assert told(result).severity is Severity.UNKNOWN
    assert told(result, answering=True).severity is Severity.ERROR
    assert PORT in told(result).fix


def test_a_peer_that_is_not_there(room: Room) -> None:
    result = ask(room, peer="192.168.100.9")
    assert (result.received, result.largest_ok) == (0, 0)
    assert told(result).code == "fabric.path-silent"


@pytest.mark.usefixtures("responder")
def test_another_token_is_not_answered(room: Room) -> None:
    result = ask(room, key=KEY[::-1])
    assert (result.received, result.largest_ok, result.refused) == (0, 0, False)


# The responder as anybody on the cable meets it


async def _answers(data: list[bytes]) -> list[bytes]:
    """What the responder on loopback sends back for these datagrams."""
    async with Responder(["127.0.0.1"], 0, KEY.encode()) as responder:
        ((transport, _),) = responder._open.values()
        at = transport.get_extra_info("sockname")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            asking.setblocking(False)
            asking.connect(at)
            loop, got = asyncio.get_running_loop(), []
            for one in data:
                await loop.sock_sendall(asking, one)
                await asyncio.sleep(0)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.3):
                    while True:
                        got.append(await loop.sock_recv(asking, 1 << 16))
            return got


async def test_only_the_sets_own_asks_are_answered_and_in_their_size() -> None:
    good = Datagram(ASK, 1, b"n" * 16)
    key = KEY.encode()
    bent = bytearray(pack(good, 1000, key))
    bent[-1] ^= 1
    answers = await _answers(
        [
            b"",
            b"x" * 1000,
            bytes(bent),
            pack(good, 1000, b"another key"),
            pack(good, 1000, key)[:500],
            pack(Datagram(ANSWER, 1, b"n" * 16), 1000, key),
            pack(good, 1000, key),
        ]
    )
    assert [len(answer) for answer in answers] == [1000]
    told = unpack(answers[0], key)
    assert told == Datagram(ANSWER, 1, b"n" * 16)


async def test_nobody_gets_more_answers_than_the_bound() -> None:
    answers = await _answers([pack(Datagram(ASK, n, b"n" * 16), SMALLEST, KEY.encode()) for n in range(1000)])
    assert 0 < len(answers) <= 2 * ANSWERS_A_SECOND


async def test_addresses_come_and_go() -> None:
    async with Responder([], 18899, KEY.encode()) as responder:
        await responder.update(["127.0.0.1", "203.0.113.7"])
        assert list(responder.bound) == ["127.0.0.1"]
        assert list(responder.failed) == ["203.0.113.7"]
        found = await probe("lo", "127.0.0.1", "127.0.0.1", 18899, 65536, KEY.encode())
        assert found.received == found.sent == 3
        assert found.largest_ok == found.mtu == 65535
        await responder.update({"127.0.0.1": "lo"})
        assert list(responder.bound) == ["127.0.0.1"]
        await responder.update([])
        assert (await probe("lo", "127.0.0.1", "127.0.0.1", 18899, 9000, KEY.encode())).refused


async def test_late_is_not_lost() -> None:
    loop = asyncio.get_running_loop()
    key = KEY.encode()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as slow:
        slow.setblocking(False)
        slow.bind(("127.0.0.1", 0))

        async def answer() -> None:
            """Keep the first two asks until the third has come; then answer the last one first."""
            asks = [await loop.sock_recvfrom(slow, 1 << 16) for _ in range(3)]
            for data, peer in reversed(asks):
                told = unpack(data, key)
                assert told is not None
                await loop.sock_sendto(slow, pack(Datagram(ANSWER, told.sequence, told.nonce), len(data), key), peer)

        async with asyncio.TaskGroup() as group:
            group.create_task(answer())
            found = await probe("lo", "127.0.0.1", "127.0.0.1", slow.getsockname()[1], 9000, key, timeout=0.1)
    assert (found.sent, found.received) == (3, 3)


async def test_a_peer_that_was_held_up_for_a_while_is_no_path_of_small_packets() -> None:
    loop = asyncio.get_running_loop()
    key = KEY.encode()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as held:
        held.setblocking(False)
        held.bind(("127.0.0.1", 0))

        async def answer() -> None:
            """What comes in the first three asks' time is lost; the rest is answered at once."""
            for _ in range(3):
                await loop.sock_recvfrom(held, 1 << 16)
            while True:
                data, peer = await loop.sock_recvfrom(held, 1 << 16)
                told = unpack(data, key)
                assert told is not None
                await loop.sock_sendto(held, pack(Datagram(ANSWER, told.sequence, told.nonce), len(data), key), peer)

        answering = asyncio.create_task(answer())
        found = await probe("lo", "127.0.0.1", "127.0.0.1", held.getsockname()[1], 9000, key, timeout=0.1)
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)
    assert found.largest_ok == 9000
    assert found.received == found.sent
    assert not told_of(found)


def told_of(result: ProbeResult) -> tuple[Finding, ...]:
    return path_findings("spark-1", "spark-2", "lo", "127.0.0.1", result, answering=True)


def test_some_loss_is_a_warning() -> None:
    finding = told(ProbeResult(mtu=9000, port=8899, sent=3, received=2, largest_ok=9000, rtt=0.1))
    assert (finding.code, finding.severity) == ("fabric.path-loss", Severity.WARNING)
