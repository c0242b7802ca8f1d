"""What the endpoint may do now, and which requests are under way: the daemon turns it, the front obeys."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal

from glm_spark.api.source import Readiness

GateState = Literal["open", "paused", "closed", "stopping"]
# How a request ended: the engine's reply went through whole; it broke on the engine's side; the gate cut it; the
# client left; it was never let in.
Outcome = Literal["answered", "failed", "cut", "abandoned", "refused"]

_STARTING = Readiness(live=False, state="waiting", code="starting", reason=None)
STOPPING = Readiness(live=False, state="stopping", code="stopping", reason=None)


class Cut(Exception):
    """Raised out of a passage whose request must be ended now; `readiness` says why."""

    def __init__(self, readiness: Readiness) -> None:
        super().__init__(readiness.code)
        self.readiness = replace(readiness, live=False)


class Passage:
    """One request between its admission and its last byte; who relays it sets `outcome` when it did not go well."""

    __slots__ = ("cut", "outcome", "task")

    def __init__(self, task: asyncio.Task[object]) -> None:
        self.task = task
        self.cut: Readiness | None = None
        self.outcome: Outcome = "answered"


class Gate:
    """Closed when made. All calls belong on the event loop's thread; `open`, `pause` and `close` return at once.

    `upstream` is the engine's origin while open ("http://127.0.0.1:8889"). `idle_since` is time.monotonic() of the
    last request's end (or of the gate's making). `counts` maps (key fingerprint, outcome) to requests; "-" stands
    for requests without a key.
    """

    def __init__(self) -> None:
        self.state: GateState = "closed"
        self.upstream = ""
        self.readiness = _STARTING
        self.idle_since = time.monotonic()
        self.counts: Counter[tuple[str, Outcome]] = Counter()
        self._running: set[Passage] = set()
        self._none_running = asyncio.Event()
        self._none_running.set()

    @property
    def in_flight(self) -> int:
        return len(self._running)

    @property
    def busy(self) -> bool:
        """A canary that gets no answer while this holds has met a busy engine, not a dead one."""
        return bool(self._running)

    def open(self, upstream: str) -> None:
        """Let requests through to `upstream`."""
        self.state = "open"
        self.upstream = upstream.rstrip("/")
        self.readiness = Readiness(live=True, state="live", code="live", reason=None)

    def pause(self, readiness: Readiness) -> None:
        """Suspect: new requests are refused, running ones go on. A gate that is stopping stays so."""
        if self.state in ("open", "paused"):
            self.state = "paused"
            self.readiness = replace(readiness, live=False)

    def close(self, readiness: Readiness) -> None:
        """Dead: new requests are refused, and those under way are answered or cut before this second is over."""
        self.state = "closed"
        self.readiness = replace(readiness, live=False)
        for running in self._running:
            if running.cut is None:
                running.cut = self.readiness
                running.task.cancel()

    async def drain(self, seconds: float) -> bool:
        """Refuse new requests with code "stopping"; True when none is left, False when `seconds` are over first."""
        if self.state != "closed":
            self.state = "stopping"
            self.readiness = STOPPING
        try:
            async with asyncio.timeout(seconds):
                await self._none_running.wait()
        except TimeoutError:
            return False
        return True

    @contextmanager
    def passage(self, key: str) -> Iterator[Passage]:
        """Hold while a request is under way; raises Cut when the gate closes meanwhile."""
        task = asyncio.current_task()
        assert task is not None
        running = Passage(task)
        self._running.add(running)
        self._none_running.clear()
        try:
            yield running
        except BaseException as fault:
            if running.outcome == "answered":  # who relays it may have said more
                left = isinstance(fault, asyncio.CancelledError | ConnectionError)
                running.outcome = "abandoned" if left else "failed"
            # As asyncio.timeout does: the cancellation that close() asked for ends here; one that came besides it
            # (the client left, the daemon ends) goes on.
            if running.cut is None or task.uncancel() > 0:
                raise
            running.outcome = "cut"
            raise Cut(running.cut) from None
        finally:
            self.counts[key, running.outcome] += 1
            self._running.discard(running)
            self.idle_since = time.monotonic()
            if not self._running:
                self._none_running.set()
