"""Two network namespaces joined by a cable (a veth pair), made for one test and gone with it."""

from __future__ import annotations

import os
import subprocess
from types import TracebackType

_ROOT = os.geteuid() == 0
_UNSHARE = ("unshare", "--net") if _ROOT else ("unshare", "--map-root-user", "--net")
_ENTER = ("nsenter", "--net") if _ROOT else ("nsenter", "--user", "--preserve-credentials", "--net")


class Room:
    """`near` and `far`, each with `cable0` at its end of the cable: 192.168.100.1/24 and .2/24, MTU 9000."""

    def __init__(self) -> None:
        self._holders: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Room:
        self.near, self.far = self._namespace(), self._namespace()
        mtu = ("mtu", "9000")
        self.ip(self.near, "link", "add", "cable0", *mtu, "type", "veth", "peer", "name", "far0", *mtu)
        self.ip(self.near, "link", "set", "far0", "netns", str(self.far), "name", "cable0")
        for pid, address in ((self.near, "192.168.100.1/24"), (self.far, "192.168.100.2/24")):
            self.ip(pid, "link", "set", "lo", "up")
            self.ip(pid, "link", "set", "cable0", "up")
            self.ip(pid, "address", "add", address, "dev", "cable0")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for holder in self._holders:
            assert holder.stdin is not None
            holder.stdin.close()
            holder.wait()

    def _namespace(self) -> int:
        """The pid of a process that holds a new namespace until its standard input is closed."""
        holder = subprocess.Popen((*_UNSHARE, "sh", "-c", "echo; cat"), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._holders.append(holder)
        assert holder.stdout is not None
        holder.stdout.readline()
        holder.stdout.close()
        return holder.pid

    def inside(self, pid: int, *command: str) -> tuple[str, ...]:
        """`command` as it is run in one of the namespaces; the process that starts is the command itself."""
        return (*_ENTER, "--target", str(pid), *command)

    def ip(self, pid: int, *arguments: str) -> None:
        subprocess.run(self.inside(pid, "ip", *arguments), check=True)
