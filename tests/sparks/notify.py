"""What a daemon tells systemd: the far end of NOTIFY_SOCKET."""

from __future__ import annotations

import socket
import threading
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Notice:
    """One assignment, e.g. READY=1, and when it came (seconds, CLOCK_MONOTONIC)."""

    at: float
    name: str
    value: str


class NotifyListener:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._notices: list[Notice] = []
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._thread = threading.Thread(target=self._listen, name=f"notify {path}", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while datagram := self._socket.recv(65536):
            at = time.monotonic()
            for line in datagram.decode(errors="replace").splitlines():
                name, _, value = line.partition("=")
                self._notices.append(Notice(at, name, value))

    def all(self, name: str | None = None) -> list[Notice]:
        return [notice for notice in list(self._notices) if name in (None, notice.name)]

    def last(self, name: str) -> str | None:
        """The newest value of e.g. STATUS, None when it was never sent."""
        found = self.all(name)
        return found[-1].value if found else None

    def clear(self) -> None:
        self._notices.clear()

    def close(self) -> None:
        # An empty datagram is the one thing systemd's protocol never sends.
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"", str(self.path))
        self._thread.join()
        self._socket.close()
        self.path.unlink(missing_ok=True)
