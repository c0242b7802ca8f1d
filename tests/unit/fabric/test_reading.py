"""The reader tells what the kernel has, and every change of it, from a real network namespace."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from glm_spark.fabric.inventory import Inventory, NetDev, Route
from glm_spark.fabric.reader import reader_command, reader_environment
from glm_spark.fabric.watch import Watcher, read_once
from glm_spark.finding import Severity
from tests.unit.fabric.room import Room

PEERS = ("192.168.100.2", "10.9.9.9")
LONG = 10.0  # seconds in which anything here has happened, however busy the machine


class Seen:
    """What a Watcher told, to wait on."""

    def __init__(self) -> None:
        self.inventories: list[Inventory] = []
        self.codes: list[str] = []
        self._news = asyncio.Event()

    def inventory(self, inventory: Inventory) -> None:
        self.inventories.append(inventory)
        self._news.set()

    def findings(self, findings: tuple[object, ...]) -> None:
        self.codes += [getattr(finding, "code", "") for finding in findings]
        self._news.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(LONG):
            while not holds():
                self._news.clear()
                await self._news.wait()

    def netdev(self) -> NetDev | None:
        return self.inventories[-1].netdev("cable0") if self.inventories else None


@contextlib.asynccontextmanager
async def watching(
    room: Room, deadline: float = 5.0, command: tuple[str, ...] = ()
) -> AsyncIterator[tuple[Watcher, Seen]]:
    seen = Seen()
    watcher = Watcher(
        PEERS,
        seen.inventory,
        deadline,
        node="spark-1",
        on_findings=seen.findings,
        command=command or room.inside(room.near, *reader_command()),
    )
    running = asyncio.create_task(watcher.run())
    try:
        yield watcher, seen
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def test_one_reading_has_links_addresses_and_routes(room: Room) -> None:
    room.ip(room.near, "address", "add", "192.168.100.11/24", "dev", "cable0")
    room.ip(room.near, "link", "add", "br0", "type", "bridge")
    room.ip(room.near, "link", "add", "member", "type", "veth", "peer", "name", "other")
    room.ip(room.near, "link", "set", "member", "master", "br0")
    read = await read_once(PEERS, LONG, command=room.inside(room.near, *reader_command()))
    cable, bridge, member = (read.netdev(name) for name in ("cable0", "br0", "member"))
    assert cable is not None
    assert bridge is not None
    assert member is not None
    assert (cable.mtu, cable.carrier, cable.operstate, cable.kind) == (9000, True, "up", "veth")
    assert cable.addresses == ("192.168.100.1/24", "192.168.100.11/24")
    assert len(cable.mac) == len("02:00:00:00:00:00")
    assert (bridge.kind, bridge.carrier) == ("bridge", False)
    assert (member.master, member.carrier) == ("br0", False)
    assert read.routes == (
        Route(destination="192.168.100.2", netdev="cable0", source="192.168.100.1"),
        Route(destination="10.9.9.9"),
    )
    assert (read.default_netdev, read.default_address, read.devices, read.findings) == ("", "", (), ())


async def test_the_default_route_is_the_one_with_the_lowest_metric(room: Room) -> None:
    room.ip(room.near, "link", "add", "lan0", "type", "veth", "peer", "name", "lan1")
    for name, address in (("lan0", "10.0.0.11/24"), ("lan1", "10.0.1.11/24")):
        room.ip(room.near, "address", "add", address, "dev", name)
        room.ip(room.near, "link", "set", name, "up")
    room.ip(room.near, "address", "add", "10.0.7.7/24", "dev", "lan0")
    room.ip(room.near, "route", "add", "default", "via", "10.0.1.254", "metric", "700")
    room.ip(room.near, "route", "add", "default", "via", "10.0.0.254", "metric", "100")
    read = await read_once(PEERS, LONG, command=room.inside(room.near, *reader_command()))
    assert (read.default_netdev, read.default_address) == ("lan0", "10.0.0.11")
    assert {netdev.name for netdev in read.netdevs if netdev.default_route} == {"lan0", "lan1"}
    assert read.route_to("10.9.9.9") == Route(
        destination="10.9.9.9", netdev="lan0", source="10.0.0.11", gateway="10.0.0.254"
    )


async def test_the_peer_that_answers_on_the_cable_is_seen(room: Room) -> None:
    far = await read_once((), LONG, command=room.inside(room.far, *reader_command()))
    mac = getattr(far.netdev("cable0"), "mac", "")
    room.ip(room.near, "neigh", "add", "192.168.100.2", "lladdr", mac, "dev", "cable0")
    read = await read_once(PEERS, LONG, command=room.inside(room.near, *reader_command()))
    assert [(one.netdev, one.address, one.mac) for one in read.neighbours] == [("cable0", "192.168.100.2", mac)]


async def test_a_route_that_forbids_is_no_route(room: Room) -> None:
    room.ip(room.near, "route", "add", "unreachable", "10.9.9.9")
    read = await read_once(PEERS, LONG, command=room.inside(room.near, *reader_command()))
    assert read.route_to("10.9.9.9") == Route(destination="10.9.9.9")


async def test_every_change_is_told(room: Room) -> None:
    async with watching(room) as (_, seen):
        await seen.until(lambda: seen.netdev() is not None)
        room.ip(room.near, "link", "set", "cable0", "mtu", "1500")
        await seen.until(lambda: getattr(seen.netdev(), "mtu", 0) == 1500)
        room.ip(room.far, "link", "set", "cable0", "down")
        await seen.until(lambda: not getattr(seen.netdev(), "carrier", True))
        room.ip(room.far, "link", "set", "cable0", "up")
        await seen.until(lambda: getattr(seen.netdev(), "carrier", False))
        room.ip(room.near, "address", "del", "192.168.100.1/24", "dev", "cable0")
        await seen.until(lambda: getattr(seen.netdev(), "addresses", None) == ())
        assert seen.inventories[-1].route_to("192.168.100.2") == Route(destination="192.168.100.2")
        room.ip(room.near, "link", "del", "cable0")
        await seen.until(lambda: seen.netdev() is None)
        assert seen.codes == []


async def test_a_burst_of_changes_is_told_as_one(room: Room) -> None:
    async with watching(room) as (watcher, seen):
        await seen.until(lambda: bool(seen.inventories))
        await watcher.fresh(LONG)
        before = len(seen.inventories)
        for last in range(20):
            room.ip(room.near, "address", "add", f"192.168.101.{last + 1}/32", "dev", "cable0")
        await seen.until(lambda: len(getattr(seen.netdev(), "addresses", ())) == 21)
        assert len(seen.inventories) - before <= 4


async def test_nothing_new_is_not_told(room: Room) -> None:
    async with watching(room) as (watcher, seen):
        await seen.until(lambda: bool(seen.inventories))
        for _ in range(5):
            await watcher.fresh(LONG)
        assert len(seen.inventories) == 1


async def test_a_fresh_reading_is_begun_after_it_was_asked_for(room: Room) -> None:
    async with watching(room) as (watcher, _):
        for mtu in ("1500", "9000", "4000"):
            room.ip(room.near, "link", "set", "cable0", "mtu", mtu)
            read = await watcher.fresh(LONG)
            assert getattr(read.netdev("cable0"), "mtu", 0) == int(mtu)


async def test_a_reader_that_never_answers_is_told_apart_from_a_quiet_one(room: Room) -> None:
    async with watching(room, deadline=0.4) as (watcher, seen):
        await seen.until(lambda: watcher.inventory is not None and watcher.findings == ())
        first = watcher.pid
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        with pytest.raises(TimeoutError):
            await watcher.fresh(0.1)
        await seen.until(lambda: watcher.findings != ())
        assert watcher.inventory is not None
        (stuck,) = watcher.findings
        assert (stuck.code, stuck.severity, stuck.node) == ("fabric.reader-stuck", Severity.UNKNOWN, "spark-1")
        await seen.until(lambda: watcher.findings == ())
        assert watcher.pid != first
        assert not Path(f"/proc/{first}").exists()


async def test_a_reader_that_is_only_late_is_told_and_kept(room: Room) -> None:
    """Ended at once it would be replaced by one that is late too, on a machine that is merely slow."""
    async with watching(room, deadline=1.0) as (watcher, seen):
        await seen.until(lambda: watcher.inventory is not None and watcher.findings == ())
        first = watcher.pid
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        await seen.until(lambda: watcher.findings != ())
        os.kill(first, signal.SIGCONT)
        await seen.until(lambda: watcher.findings == ())
        assert watcher.pid == first


async def test_asks_that_meet_a_dead_reader_are_answered_by_the_next(room: Room) -> None:
    async with watching(room) as (watcher, seen):
        await seen.until(lambda: watcher.inventory is not None)
        assert watcher.pid is not None
        os.kill(watcher.pid, signal.SIGKILL)
        assert (await watcher.fresh(LONG)).netdev("cable0") is not None
        assert "fabric.reader-ended" in seen.codes


async def test_a_reader_that_cannot_be_started_is_said_and_tried_again(room: Room) -> None:
    async with watching(room, command=("/nonexistent/reader",)) as (watcher, seen):
        await seen.until(lambda: "fabric.reader-ended" in seen.codes)
        assert "No such file" in watcher.findings[0].measured
    for nonsense in ("nonsense", "[1]", "{}", '{"ask": null, "inventory": {"netdevs": 7}}'):
        async with watching(room, command=("sh", "-c", f"echo '{nonsense}'; exec cat")) as (watcher, seen):
            await seen.until(lambda: "fabric.reader-ended" in seen.codes)
            assert "something else than a reading" in watcher.findings[0].measured
    async with watching(room, command=("sh", "-c", "echo it broke >&2; exit 3")) as (watcher, seen):
        await seen.until(lambda: "fabric.reader-ended" in seen.codes)
        assert "exit status 3: it broke" in watcher.findings[0].measured


async def test_the_reader_ends_with_its_watcher(room: Room) -> None:
    async with watching(room) as (watcher, seen):
        await seen.until(lambda: watcher.inventory is not None)
        pid = watcher.pid
    assert not Path(f"/proc/{pid}").exists()


def test_the_reader_ends_when_its_starter_is_killed() -> None:
    starter = (
        "import subprocess, sys, time\n"
        "from glm_spark.fabric.reader import reader_command, reader_environment\n"
        "child = subprocess.Popen([*reader_command(), 'watch'], env=reader_environment(), stdin=subprocess.PIPE,"
        " stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", starter], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        gone = os.pidfd_open(child)
        process.kill()
        process.wait()
    poll = select.poll()
    poll.register(gone, select.POLLIN)
    assert poll.poll(LONG * 1000)
    os.close(gone)


def test_no_secret_reaches_the_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "LISTEN_FDS", "CREDENTIALS_DIRECTORY", "INVOCATION_ID", "API_KEY"):
        monkeypatch.setenv(name, "secret")
    assert "secret" not in reader_environment().values()


def test_the_reader_is_small() -> None:
    command = [*reader_command(), "watch"]
    with subprocess.Popen(command, env=reader_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        child.stdout.readline()
        status = Path(f"/proc/{child.pid}/status").read_text()
        child.stdin.close()
        assert child.wait() == 0
    (resident,) = [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")]
    assert resident < 35 * 1024
