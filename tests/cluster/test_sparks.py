"""The virtual Sparks themselves: cables, hosts and faults, seen with plain programs."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sparks import Spark, Sparks, alive, until

_SERVE = """
import socket, sys
s = socket.create_server((sys.argv[1], 8899), reuse_port=False)
print("up", flush=True)
while True:
    c, _ = s.accept()
    c.sendall(socket.gethostname().encode()); c.close()
"""


def _start(spark: Spark, *argv: str) -> tuple[subprocess.Popen[Any], str]:
    """A program on a Spark, and the first line it printed."""
    process = spark.popen(argv, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline()


def _serve(spark: Spark, address: str) -> subprocess.Popen[Any]:
    process, line = _start(spark, sys.executable, "-c", _SERVE, address)
    assert line == "up\n"
    return process


def _ask(spark: Spark, address: str, timeout: float = 3.0) -> str:
    with spark.connect(address, 8899, timeout) as connection:
        return bytes(connection.recv(100)).decode()


def _carrier(spark: Spark, netdev: str) -> bool:
    return "LOWER_UP" in spark.run(["ip", "link", "show", "dev", netdev]).stdout


def _ping(spark: Spark, address: str) -> bool:
    """Whether an unfragmentable datagram of 9000 bytes arrives: a closed port answers it."""
    text = f"""
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(1)
s.setsockopt(socket.IPPROTO_IP, 10, 2)  # IP_MTU_DISCOVER, IP_PMTUDISC_DO
s.connect(({address!r}, 9))
s.send(b"x" * 8972)
try:
    s.recv(1)
except ConnectionRefusedError:
    print("arrived")
except TimeoutError:
    print("lost")
"""
    return "arrived" in spark.run([sys.executable, "-c", text]).stdout


@pytest.fixture
def two() -> Iterator[Sparks]:
    with Sparks(2) as sparks:
        yield sparks


def test_each_spark_has_its_host_name_boot_id_and_memory(two: Sparks) -> None:
    for spark in two:
        seen = spark.run(
            ["sh", "-c", "hostname; cat /proc/sys/kernel/random/boot_id; grep MemAvailable /proc/meminfo"]
        ).stdout.split()
        assert seen[0] == spark.name
        assert seen[1] == (spark.directory / "boot_id").read_text().strip()
        assert int(seen[3]) == 118 * 1024**2
    assert two[0].new_boot_id() != two[1].new_boot_id()
    two[0].set_memory(61.5)
    row = two[0].run(["grep", "MemAvailable", "/proc/meminfo"]).stdout
    assert int(row.split()[1]) == int(61.5 * 1024**2)


def test_both_rails_carry_full_size_frames(two: Sparks) -> None:
    for twin in ("a", "b"):
        address = two.layout.address(2, 1, twin)
        assert _ping(two[0], address)
        _serve(two[1], address)
        assert _ask(two[0], address) == "spark-2"


@pytest.mark.parametrize("pair", [(1, 2), (2, 3), (3, 1)])
def test_in_a_triangle_every_pair_talks_over_its_own_cable(pair: tuple[int, int]) -> None:
    with Sparks(3) as sparks:
        first, second = pair
        address = sparks.layout.address(second, first)
        route = sparks[first - 1].run(["ip", "route", "get", address]).stdout
        assert " dev enp1s0f0np0 " in route
        _serve(sparks[second - 1], address)
        assert _ask(sparks[first - 1], address) == f"spark-{second}"


def test_a_cut_cable_takes_the_carrier_at_both_ends_and_plugging_brings_it_back(two: Sparks) -> None:
    address = two.layout.address(2, 1)
    _serve(two[1], address)
    two.cut_cable()
    for spark in two:
        assert not _carrier(spark, "enp1s0f0np0")
        assert not _carrier(spark, "enP2p1s0f0np0")
        assert _carrier(spark, "enP7s7")
    with pytest.raises(OSError, match=r"timed out|No route"):
        _ask(two[0], address, timeout=0.3)
    two.plug_cable()
    assert _ask(two[0], address) == "spark-2"


def test_one_twin_can_be_cut_alone(two: Sparks) -> None:
    two.cut_cable(twin="b")
    assert _carrier(two[0], "enp1s0f0np0")
    assert not _carrier(two[0], "enP2p1s0f0np0")


def test_a_silent_loss_keeps_the_carrier(two: Sparks) -> None:
    address = two.layout.address(2, 1)
    _serve(two[1], address)
    two.lose_silently()
    assert _carrier(two[0], "enp1s0f0np0")
    with pytest.raises(OSError, match=r"timed out|No route"):
        _ask(two[0], address, timeout=0.3)
    two.find_again()
    assert _ask(two[0], address) == "spark-2"


def test_an_mtu_of_1500_at_one_end_loses_large_frames_only(two: Sparks) -> None:
    address = two.layout.address(2, 1)
    two[1].set_mtu("enp1s0f0np0", 1500)
    _serve(two[1], address)
    assert _ask(two[0], address) == "spark-2"
    assert not _ping(two[0], address)


def test_the_lan_joins_the_sparks_and_is_the_default_route(two: Sparks) -> None:
    assert " dev enP7s7 " in two[0].run(["ip", "route", "get", "8.8.8.8"]).stdout
    _serve(two[1], "10.77.0.12")
    assert _ask(two[0], "10.77.0.12") == "spark-2"


def test_an_address_can_go_and_come_back(two: Sparks) -> None:
    two[1].remove_address("enp1s0f0np0")
    assert "192.168.100.2" not in two[1].run(["ip", "-4", "address"]).stdout
    two[1].add_address("enp1s0f0np0", "192.168.100.2/24")
    assert _ping(two[0], "192.168.100.2")


async def test_a_client_on_a_spark_reaches_what_only_that_spark_hears(two: Sparks) -> None:
    here = str(two[0].directory)
    argv = [sys.executable, "-u", "-m", "http.server", "8888", "--bind", "127.0.0.1", "-d", here]
    assert "Serving" in _start(two[0], *argv)[1]
    (two[0].directory / "hello").write_text("from spark-1")
    reply = await two[0].http("GET", "http://127.0.0.1:8888/hello")
    assert (reply.status, reply.text) == (200, "from spark-1")
    with pytest.raises(OSError, match="refused"):
        two[1].connect("127.0.0.1", 8888)


async def test_a_reset_host_loses_every_process_and_no_other(two: Sparks) -> None:
    here, there = (_serve(spark, "127.0.0.1") for spark in two)
    child, line = _start(two[1], "sh", "-c", "sleep 1000 & echo $!; wait")
    grandchild = int(line)
    old = (two[1].directory / "boot_id").read_text()
    two.reset_host(2)
    await until(lambda: not any(map(alive, (there.pid, child.pid, grandchild))), 5, "the end of spark-2")
    assert alive(here.pid)
    assert two[1].run(["cat", "/proc/sys/kernel/random/boot_id"]).stdout != old


def test_a_frozen_spark_keeps_its_connections_and_says_nothing(two: Sparks) -> None:
    address = two.layout.address(2, 1)
    _serve(two[1], address)
    two[1].freeze()
    with two[0].connect(address, 8899, timeout=0.3) as connection, pytest.raises(TimeoutError):
        connection.recv(1)
    two[1].thaw()
    assert _ask(two[0], address) == "spark-2"


def test_nothing_is_left_when_the_sparks_are_closed() -> None:
    with Sparks(2) as sparks:
        process = _serve(sparks[0], "127.0.0.1")
        namespaces = {os.readlink(f"/proc/{spark.holder.pid}/ns/net") for spark in sparks}
    assert process.wait(5) != 0
    left = {os.readlink(path) for path in Path("/proc").glob("[0-9]*/ns/net") if alive(int(path.parts[2]))}
    assert not left & namespaces
    assert subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout == ""


def test_the_config_and_the_token_are_what_a_careful_owner_has(two: Sparks) -> None:
    assert two.token_file.stat().st_mode & 0o777 == 0o600
    assert len(two.token_file.read_text().strip()) >= 32
    assert socket.gethostname() != "spark-1"
