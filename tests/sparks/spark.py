"""One Spark as namespaces: a process that holds them, and what a test does inside."""

from __future__ import annotations

import concurrent.futures
import json
import os
import queue
import signal
import socket as sockets
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

from tests.enclosure import ROOT, kernel
from tests.sparks import processes
from tests.sparks.layout import SparkPlan

T = TypeVar("T")

# A Spark's memory as its kernel shows it with nothing loaded: 128 GB unified, 121.7 GiB of it usable.
TOTAL_KIB = int(121.7 * 1024**2)
AVAILABLE_GIB = 118.0

# Each Spark sees a boot id and a memory of its own. The process ends with its standard input.
_HOLD = """set -e
hostname "$1"
mount --bind "$2/boot_id" /proc/sys/kernel/random/boot_id
mount --bind "$2/meminfo" /proc/meminfo
mount -t sysfs sysfs /sys 2>/dev/null || true
echo ready
exec cat >/dev/null
"""


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


class Holder:
    """A process in namespaces of its own, and a thread in the same network namespace.

    A socket belongs to the network namespace of the thread that makes it, whoever uses it later."""

    def __init__(self, name: str, arguments: Sequence[str], script: str) -> None:
        self.process = subprocess.Popen(
            ["unshare", "--net", "--uts", "--mount", "sh", "-c", script, name, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        if self.process.stdout.readline().strip() != "ready":
            self.process.wait()
            raise RuntimeError(f"the namespaces of {name} could not be made (exit {self.process.returncode})")
        self.pid = self.process.pid
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"inside {name}", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        descriptor = os.open(f"/proc/{self.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            kernel.setns(descriptor, kernel.NEWNET)
        finally:
            os.close(descriptor)
        while (job := self._jobs.get()) is not None:
            job()

    def call(self, function: Callable[[], T]) -> T:
        """Runs a quick function in the network namespace; its exception is raised here."""
        done: concurrent.futures.Future[T] = concurrent.futures.Future()

        def job() -> None:
            try:
                done.set_result(function())
            except BaseException as error:  # noqa: BLE001  handed to the caller, who waits for it
                done.set_exception(error)

        self._jobs.put(job)
        return done.result(timeout=30)

    def enter(self, *, cwd: Path) -> list[str]:
        """What stands before a command so that it runs inside; the command keeps the process id."""
        return ["nsenter", "-t", str(self.pid), "-n", "-u", "-m", "--", "env", "-C", str(cwd)]

    def ip(self, lines: Sequence[str]) -> None:
        """Runs `ip -batch`; CalledProcessError with ip's own words when a line fails."""
        result = subprocess.run(
            ["nsenter", "-t", str(self.pid), "-n", "ip", "-batch", "-"],
            input="\n".join(lines) + "\n",
            text=True,
            capture_output=True,
        )
        if result.returncode != 0:
            raise RuntimeError(f"ip refused: {result.stderr.strip()} (lines: {list(lines)})")

    def close(self) -> None:
        self._jobs.put(None)
        self._thread.join()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.kill()
        self.process.wait()


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
        self.holder = Holder(plan.name, [plan.name, str(directory)], _HOLD)

    @property
    def environment(self) -> dict[str, str]:
        """The three directories as systemd sets them for a service."""
        return {
            "RUNTIME_DIRECTORY": str(self.directory / "run"),
            "STATE_DIRECTORY": str(self.directory / "state"),
            "CACHE_DIRECTORY": str(self.directory / "cache"),
        }

    @property
    def control_socket(self) -> Path:
        return self.directory / "run" / "control.sock"

    def new_boot_id(self) -> str:
        """What a reboot changes and a restart of the daemon does not."""
        value = str(uuid.uuid4())
        (self.directory / "boot_id").write_text(value + "\n")
        return value

    def set_memory(self, available_gib: float) -> None:
        """What /proc/meminfo says inside this Spark from now on."""
        kib = int(available_gib * 1024**2)
        rows = {
            "MemTotal": TOTAL_KIB,
            "MemFree": kib,
            "MemAvailable": kib,
            "Buffers": 0,
            "Cached": 0,
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
        return subprocess.Popen([*self.holder.enter(cwd=ROOT), *argv], env=full, **options)

    def run(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program inside to its end, output captured as text."""
        full = {**os.environ, **self.environment, **(env or {})}
        return subprocess.run(
            [*self.holder.enter(cwd=ROOT), *argv], env=full, timeout=timeout, capture_output=True, text=True
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
