"""The LAN between the Sparks: a switch of Unix datagram sockets in a thread of the test's process.

It floods (three ports need no learning). Nothing of it touches the host's own network.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from pathlib import Path


class Lan:
    """`socket_of(spark)` is the switch's end, `nic_of(spark)` the Spark's; both are paths."""

    def __init__(self, directory: Path, sparks: range) -> None:
        self._directory = directory
        self._ports: dict[int, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        for spark in sparks:
            port = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            port.setblocking(False)
            self.socket_of(spark).unlink(missing_ok=True)
            port.bind(str(self.socket_of(spark)))
            self._ports[spark] = port
            self._selector.register(port, selectors.EVENT_READ, spark)
        self._wake, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._run, name="lab-lan", daemon=True)
        self._thread.start()

    def socket_of(self, spark: int) -> Path:
        return self._directory / f"lan{spark}"

    def nic_of(self, spark: int) -> Path:
        return self._directory / f"{spark}.lan"

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    return
                self._forward(self._ports[key.data], int(key.data))

    def _forward(self, port: socket.socket, source: int) -> None:
        with contextlib.suppress(BlockingIOError):
            for _ in range(64):
                frame = port.recv(1 << 16)
                for spark, out in self._ports.items():
                    if spark != source:
                        # a Spark that is off, or too slow to read, loses the frame: that is a LAN
                        with contextlib.suppress(OSError):
                            out.sendto(frame, str(self.nic_of(spark)))

    def close(self) -> None:
        self._wake.close()
        self._thread.join()
        self._selector.close()
        self._woken.close()
        for port in self._ports.values():
            port.close()
