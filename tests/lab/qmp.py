"""QEMU's machine protocol: stop, continue, reset, pull a virtual plug, save the state."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from .wire import JsonWire


class QmpError(RuntimeError):
    """QEMU refused a command."""


class Qmp:
    def __init__(self, path: Path, within: float = 20.0) -> None:
        self._lock = threading.Lock()
        self._wire = JsonWire(path, within)
        self._wire.receive(within)
        self.command("qmp_capabilities")

    def command(self, name: str, /, timeout: float = 120.0, **arguments: Any) -> Any:
        """Run one command and return its value. Raises QmpError, TimeoutError, WireClosed."""
        with self._lock:
            self._wire.send({"execute": name, "arguments": arguments})
            while True:
                reply = self._wire.receive(timeout)
                if "error" in reply:
                    raise QmpError(f"{name}: {reply['error'].get('desc')}")
                if "return" in reply:
                    return reply["return"]

    def monitor(self, line: str, timeout: float = 120.0) -> None:
        """A command that only the human monitor has (savevm); it says nothing when all went well."""
        said = str(self.command("human-monitor-command", timeout, **{"command-line": line})).strip()
        if said:
            raise QmpError(f"{line}: {said}")

    def close(self) -> None:
        self._wire.close()
