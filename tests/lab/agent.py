"""The QEMU guest agent: commands inside a Spark without any network of the Spark's own."""

from __future__ import annotations

import base64
import itertools
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .wire import JsonWire, Message


class AgentError(RuntimeError):
    """The agent refused a command."""


class CommandFailed(AssertionError):
    """A command in the guest ended with another status than 0; the text carries its output."""


@dataclass(frozen=True)
class Completed:
    """How a command in the guest ended. `status` is negative when a signal ended it."""

    status: int
    stdout: str
    stderr: str


class Agent:
    """One connection to one guest's agent; calls from several threads take turns."""

    _idents = itertools.count(1)

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._wire: JsonWire | None = None

    def call(self, name: str, /, timeout: float = 60.0, **arguments: Any) -> Any:
        """One agent command. Raises AgentError, TimeoutError (guest stopped or gone), WireClosed."""
        with self._lock:
            wire = self._wire or self._connect(timeout)
            try:
                wire.send({"execute": name, "arguments": arguments}, timeout=timeout)
                reply = wire.receive(timeout)
            except Exception:
                # a late answer would be taken for the next command's
                self._drop()
                raise
        if "error" in reply:
            raise AgentError(f"{name}: {reply['error'].get('desc')}")
        return reply["return"]

    def await_up(self, within: float) -> None:
        """Return once the agent answers, for instance after a boot."""
        end = time.monotonic() + within
        while True:
            try:
                self.call("guest-ping", timeout=min(3.0, max(end - time.monotonic(), 0.1)))
                return
            except TimeoutError:
                if time.monotonic() > end:
                    raise TimeoutError(f"{self._path}: no agent within {within:.0f} s") from None

    def _connect(self, timeout: float) -> JsonWire:
        wire = JsonWire(self._path, timeout)
        ident = next(self._idents)
        sync: Message = {"execute": "guest-sync-delimited", "arguments": {"id": ident}}
        end = time.monotonic() + timeout
        try:
            wire.send(sync, prefix=b"\xff", timeout=timeout)
            while True:
                try:
                    # what an earlier connection left in the channel comes first and is no answer to this one
                    if wire.receive(end - time.monotonic()).get("return") == ident:
                        break
                except ValueError:
                    continue
        except Exception:
            wire.close()
            raise
        self._wire = wire
        return wire

    def _drop(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    def close(self) -> None:
        with self._lock:
            self._drop()

    def start(self, command: str, stdin: bytes | None = None) -> GuestCommand:
        """Start a shell command as root; its output is kept until somebody asks."""
        arguments: dict[str, Any] = {"path": "/bin/bash", "arg": ["-c", command], "capture-output": True}
        if stdin is not None:
            arguments["input-data"] = base64.b64encode(stdin).decode()
        return GuestCommand(self, int(self.call("guest-exec", **arguments)["pid"]), command)


@dataclass(frozen=True)
class GuestCommand:
    """A started command of the guest."""

    agent: Agent
    pid: int
    command: str

    def poll(self) -> Completed | None:
        """Its end, once; None while it runs. The agent forgets a command whose end it has told."""
        reply: Mapping[str, Any] = self.agent.call("guest-exec-status", pid=self.pid)
        if not reply["exited"]:
            return None
        out, err = (base64.b64decode(reply.get(key, "")) for key in ("out-data", "err-data"))
        status = int(reply["exitcode"]) if "exitcode" in reply else -int(reply.get("signal", 0))
        return Completed(status, out.decode(errors="replace"), err.decode(errors="replace"))

    def wait(self, timeout: float = 120.0) -> Completed:
        end, pause = time.monotonic() + timeout, 0.02
        while True:
            done = self.poll()
            if done is not None:
                return done
            if time.monotonic() > end:
                raise TimeoutError(f"still running after {timeout:.0f} s in the guest: {self.command}")
            time.sleep(pause)
            pause = min(pause * 1.5, 0.3)
