"""One Spark as namespaces: a process that holds them, and what a test does inside."""

from __future__ import annotations

import json
import os
import signal
import socket as sockets
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from tests.enclosure import ROOT
from tests.sparks import processes
from tests.sparks.holder import Holder, entering
from tests.sparks.layout import SparkPlan

# A Spark's memory as its kernel shows it with nothing loaded: 128 GB unified, 121.7 GiB of it usable.
TOTAL_KIB = int(121.7 * 1024**2)
AVAILABLE_GIB = 118.0

# Each Spark sees a boot id, a memory and a kernel's log of its own. The process ends with its standard input.
_HOLD = """set -e
hostname "$1"
mount --bind "$2/boot_id" /proc/sys/kernel/random/boot_id
mount --bind "$2/meminfo" /proc/meminfo
[ ! -e /dev/kmsg ] || mount --bind "$2/kmsg" /dev/kmsg
mount -t sysfs sysfs /sys 2>/dev/null || true
echo ready
exec cat >/dev/null
"""


def directories(directory: Path) -> dict[str, str]:
    """The three directories of a Spark's daemon, as systemd sets them for a service."""
    return {
        "RUNTIME_DIRECTORY": str(directory / "run"),
        "STATE_DIRECTORY": str(directory / "state"),
        "CACHE_DIRECTORY": str(directory / "cache"),
    }


@dataclass(frozen=True)
class Reply:
    """An HTTP answer, read whole."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        return self.body.decode(errors="replace")


class Spark:
    """A Spark that is switched on. `number` counts from 1, `rank` from 0."""

    def __init__(self, plan: SparkPlan, directory: Path) -> None:
        self.plan = plan
        self.name = plan.name
        self.number = plan.number
        self.rank = plan.number - 1
        self.directory = directory
        for part in ("run", "state", "cache"):
            (directory / part).mkdir(parents=True, exist_ok=True, mode=0o700)
        self.new_boot_id()
        self.set_memory(AVAILABLE_GIB)
        os.mkfifo(directory / "kmsg", 0o600)
        self._kmsg = os.open(directory / "kmsg", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self.holder = Holder(plan.name, [plan.name, str(directory)], _HOLD)

    @property
    def environment(self) -> dict[str, str]:
        return directories(self.directory)

    @property
    def control_socket(self) -> Path:
        return self.directory / "run" / "control.sock"

    def new_boot_id(self) -> str:
        """What a reboot changes and a restart of the daemon does not."""
        value = str(uuid.uuid4())
        (self.directory / "boot_id").write_text(value + "\n")
        return value

    def kernel_says(self, text: str) -> None:
        """A line in this Spark's /dev/kmsg, as the kernel's own error."""
        os.write(self._kmsg, f"3,1,1,-;{text}\n".encode())

    def set_memory(self, available_gib: float, free_gib: float | None = None) -> None:
        """What /proc/meminfo says inside this Spark from now on. What is available and not free is page cache."""
        kib = int(available_gib * 1024**2)
        free = kib if free_gib is None else int(free_gib * 1024**2)
        rows = {
            "MemTotal": TOTAL_KIB,
            "MemFree": free,
            "MemAvailable": kib,
            "Buffers": 0,
            "Cached": kib - free,
            "SwapTotal": 0,
            "SwapFree": 0,
        }
        text = "".join(f"{key + ':':<16}{value:>9} kB\n" for key, value in rows.items())
        (self.directory / "meminfo").write_text(text)

    def popen(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[Any]:
        """Starts a program inside; the Popen's pid is the program's own. `env` is added to this process's
        environment and the Spark's directories."""
        full = {**os.environ, **self.environment, **(env or {})}
        return subprocess.Popen([*entering(self.holder.pid, ROOT), *argv], env=full, **options)

    def run(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program inside to its end, output captured as text."""
        full = {**os.environ, **self.environment, **(env or {})}
        return subprocess.run(
            [*entering(self.holder.pid, ROOT), *argv], env=full, timeout=timeout, capture_output=True, text=True
        )

    def socket(self, family: int = sockets.AF_INET, kind: int = sockets.SOCK_STREAM) -> sockets.socket:
        """A socket of this Spark's network, usable from any thread."""
        return self.holder.call(lambda: sockets.socket(family, kind))

    def connect(self, host: str, port: int, timeout: float = 5.0) -> sockets.socket:
        """A blocking TCP connection made from this Spark."""
        made = self.socket()
        made.settimeout(timeout)
        try:
            made.connect((host, port))
        except BaseException:
            made.close()
            raise
        return made

    def session(self, timeout: float | None = 30.0) -> aiohttp.ClientSession:
        """An HTTP client on this Spark; `async with` it."""

        def make(info: aiohttp.AddrInfoType) -> sockets.socket:
            return self.socket(info[0], info[1])

        connector = aiohttp.TCPConnector(socket_factory=make, limit=0)
        return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=timeout))

    async def http(self, method: str, url: str, *, timeout: float = 30.0, **options: Any) -> Reply:
        """One request from this Spark, the answer read whole."""
        async with (
            self.session(timeout) as session,
            session.request(method, url, **options) as response,
        ):
            return Reply(response.status, dict(response.headers), await response.read())

    def pids(self) -> list[int]:
        """Every process on this Spark, the holder of its namespaces aside."""
        return [pid for pid in processes.in_network_of(self.holder.pid) if pid != self.holder.pid]

    def freeze(self) -> None:
        """Stops every process, as a host that hangs: connections stay open, nothing answers."""
        for pid in self._settled():
            processes.send(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        for pid in self.pids():
            processes.send(pid, signal.SIGCONT)

    def kill_everything(self) -> None:
        """Ends every process at once, as a host that loses its power."""
        self.freeze()
        for pid in self._settled():
            processes.send(pid, signal.SIGKILL)

    def _settled(self) -> Iterator[int]:
        """Process ids until no new one turns up (a fork may win against one look)."""
        seen: set[int] = set()
        while new := set(self.pids()) - seen:
            seen |= new
            yield from new

    def set_link(self, netdev: str, *, up: bool) -> None:
        self.holder.ip([f"link set {netdev} {'up' if up else 'down'}"])

    def set_mtu(self, netdev: str, mtu: int) -> None:
        self.holder.ip([f"link set {netdev} mtu {mtu}"])

    def remove_address(self, netdev: str) -> None:
        self.holder.ip([f"address flush dev {netdev} scope global"])

    def add_address(self, netdev: str, address: str) -> None:
        """`address` with its prefix length, e.g. 192.168.100.2/24."""
        self.holder.ip([f"address add {address} brd + dev {netdev}"])

    def close(self) -> None:
        self.kill_everything()
        self.holder.close()
        os.close(self._kmsg)
