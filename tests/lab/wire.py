"""Lines of JSON over a Unix socket: what QMP and the guest agent have in common."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from typing import Any, cast

Message = dict[str, Any]


class WireClosed(ConnectionError):
    """The other end is gone: QEMU has ended."""


class JsonWire:
    """One connection. Not thread-safe; its owner holds a lock."""

    def __init__(self, path: Path, within: float) -> None:
        """Connect, trying again until `within` seconds are over: QEMU makes the socket when it starts."""
        end = time.monotonic() + within
        while True:
            self._socket = socket.socket(socket.AF_UNIX)
            try:
                self._socket.connect(str(path))
                break
            except OSError as error:
                self._socket.close()
                if time.monotonic() > end:
                    raise WireClosed(f"{path}: {error}") from error
                time.sleep(0.02)
        self._path = path
        self._buffer = b""

    def send(self, message: Message, prefix: bytes = b"", timeout: float = 60.0) -> None:
        self._socket.settimeout(timeout)
        try:
            self._socket.sendall(prefix + json.dumps(message).encode() + b"\n")
        except (BrokenPipeError, ConnectionResetError) as error:
            raise WireClosed(f"{self._path}: {error}") from error

    def receive(self, timeout: float) -> Message:
        """The next message. Raises TimeoutError, WireClosed, or ValueError for a line that is not JSON."""
        end = time.monotonic() + timeout
        while True:
            while b"\n" not in self._buffer:
                self._socket.settimeout(max(end - time.monotonic(), 0.001))
                try:
                    data = self._socket.recv(1 << 20)
                except ConnectionResetError as error:
                    raise WireClosed(f"{self._path}: {error}") from error
                if not data:
                    raise WireClosed(f"{self._path}: closed")
                self._buffer += data
            line, self._buffer = self._buffer.split(b"\n", 1)
            # the agent answers guest-sync-delimited with a 0xff before the line
            line = line.rpartition(b"\xff")[2].strip()
            if line:
                return cast(Message, json.loads(line))

    def close(self) -> None:
        self._socket.close()
