"""This Spark's weights under the daemon: looked at in a moment, brought by a process of their own when they lack."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from glm_spark.config.model import Config
from glm_spark.engine import processes
from glm_spark.finding import Finding
from glm_spark.status import WeightsStatus
from glm_spark.weights import pins, process, secret, wire
from glm_spark.weights.faults import Fault, amount, finding
from glm_spark.weights.job import Door, Hub, Job, Word
from glm_spark.weights.look import Look, Store, look, told
from glm_spark.weights.pins import Pin

log = logging.getLogger(__name__)

LOOK_SECONDS = 30.0  # 200 files are looked at in a hundredth of a second; a disk that needs this long is in trouble
RATE_SECONDS = 5.0  # what a rate is measured over
PAUSES = (0.0, 10.0, 30.0, 60.0)  # between tries that failed the same way
_BUSY_SECONDS = 1.0
_GIB, _MIB = 1 << 30, 1 << 20
Goods = Literal["weights", "image"]
_GOODS: tuple[Goods, ...] = ("weights", "image")


class Unprovided(Exception):
    """The weights are not complete, and why."""

    def __init__(self, findings: tuple[Finding, ...]) -> None:
        super().__init__("; ".join(map(str, findings)))
        self.findings = findings


class Steward:
    """`addresses` are this Spark's on the cable, each with its netdev. `status` is how it stands."""

    def __init__(
        self,
        node: str,
        state: Path,
        token: bytes,
        config: Callable[[], Config],
        addresses: Callable[[], Mapping[str, str]],
        on_change: Callable[[], None],
    ) -> None:
        self.node = node
        self.status = WeightsStatus()
        self._state = state / "weights"
        self._keys = {goods: wire.key_of(token, goods).hex() for goods in _GOODS}
        self.at_work = asyncio.Lock()  # one transfer at a time comes in through weights.port
        self._config = config
        self._addresses = addresses
        self._on_change = on_change
        self._asked = asyncio.Event()
        self._answer: asyncio.Future[None] | None = None
        self._effort_for: Config | None = None
        self._pace = Pacer()
        self._failed: tuple[str, int, float] = ("", 0, 0.0)  # the code, how often, when it is tried again

    @property
    def store(self) -> Store:
        config = self._config()
        return Store(self.node, config.model.cache, self._state, config.weights.roots, self._derives)

    @property
    def _derives(self) -> bool:
        """Only a leader that must not ask the Hub has nobody to tell it which files there are."""
        config = self._config()
        return self.node == config.leader.name and not config.weights.fetch

    @property
    def complete(self) -> bool:
        """As of the last look: everything that a start needs is here and proven."""
        return self.status.phase == "complete"

    async def look(self) -> tuple[Look, ...]:
        """Raises Unprovided when the disk does not answer."""
        store, wanted = self.store, pins.wanted(self._config())
        try:
            return await processes.aside(lambda: look(store, wanted), LOOK_SECONDS)
        except TimeoutError:
            measured = f"no answer within {LOOK_SECONDS:g} s"
            slow = finding(self.node, "disk", store.cache, measured, "a disk that answers", "See journalctl -k.")
            raise Unprovided((slow,)) from None

    async def run(self) -> None:
        """Owns what `provide` asks for. A transfer goes on while a start is set back and tried anew: its waiters
        come and go. Ends, with the transfer's process, only when it is cancelled.
        """
        while True:
            await self._asked.wait()
            self._asked.clear()
            answer = self._answer
            assert answer is not None
            try:
                await self._provide()
            except Unprovided as trouble:
                self._note(trouble.findings[0])
                answer.set_exception(trouble)
                answer.exception()  # seen: whoever waited may have left
            else:
                answer.set_result(None)

    async def provide(self) -> None:
        """Returns when the weights are complete; at once when they are already. Raises Unprovided.

        Several callers share one effort, which `run` makes. One that failed is not repeated at once: the same fault
        is told meanwhile.
        """
        while True:
            if self._answer is None or self._answer.done():
                self._answer = asyncio.get_running_loop().create_future()
                self._effort_for = self._config()
                self._asked.set()
            effort_for = self._effort_for
            await asyncio.shield(self._answer)
            if effort_for is self._config():
                return

    async def _provide(self) -> None:
        looks = await self.look()
        if not all(one.complete for one in looks):
            self._hold_off()
            await self._bring(looks)
            looks = await self.look()
        lacking = told(self.node, looks)
        if lacking:
            raise Unprovided(lacking)
        self._failed = ("", 0, 0.0)
        if not self.complete:
            for one in looks:
                size = amount(one.manifest.size) if one.manifest else "served as it is"
                log.info("%s is here: %s (%s)", one.pin.kind, one.pin.path or one.pin.name, size)
            self._tell(WeightsStatus(phase="complete"))

    async def _bring(self, looks: tuple[Look, ...]) -> None:
        config = self._config()
        served = tuple(found for one in looks for found in one.findings)
        if served:
            raise Unprovided(served)
        verb = self._verb(config, looks)
        try:
            job = self.job(verb, tuple(one.pin for one in looks))
        except Fault as trouble:
            raise Unprovided((trouble.finding,)) from None
        while True:
            log.info("weights: %s begins", verb)
            async with self.at_work:
                findings = await process.run(job, self._take)
            if not findings:
                return
            if findings[0].code != "weights.busy":
                raise Unprovided(findings)
            # The command line is at it: what it brings need not be brought again.
            self._tell(WeightsStatus(phase="waiting", finding=findings[0]))
            await asyncio.sleep(_BUSY_SECONDS)

    def _verb(self, config: Config, looks: tuple[Look, ...]) -> str:
        if self.node != config.leader.name:
            return "receive"
        return "fetch" if config.weights.fetch else "verify"

    def job(self, verb: str, wanted: tuple[Pin, ...], *, again: bool = False) -> Job:
        """A job on this Spark. Raises Fault for a token that cannot be used."""
        config = self._config()
        hub = Hub()
        if verb == "fetch":
            hub = Hub(endpoint=config.weights.endpoint, token=secret.read(config, os.environ, self.node))
        return Job.model_validate(
            {
                "verb": verb,
                "node": self.node,
                "cache": config.model.cache,
                "state": str(self._state),
                "roots": config.weights.roots,
                "pins": wanted,
                "keep_free": int(config.weights.keep_free_gib * _GIB),
                "again": again,
                "derive": self._derives,
                "accept_noncommercial": config.model.accept_noncommercial,
                "hub": hub,
                "door": self.door(self.node) if verb == "receive" else None,
            }
        )

    def door(self, worker: str, goods: Goods = "weights") -> Door:
        """How `worker` and the leader meet; the sender adds the way it dials."""
        config = self._config()
        return Door(
            key=self._keys[goods],
            cluster=config.cluster.name,
            leader=config.leader.name,
            worker=worker,
            port=config.weights.port,
            connections=config.weights.connections,
            addresses=tuple(self._addresses().items()),
            rate=config.weights.rate_mib * _MIB,
        )

    def _take(self, word: Word) -> None:
        if word.ended:
            return
        rate = self._pace.rate(word.phase, word.done, time.monotonic())
        self._tell(WeightsStatus(phase=word.phase, done=word.done, total=word.total, rate=rate))

    def _tell(self, status: WeightsStatus) -> None:
        if status != self.status:
            self.status = status
            self._on_change()

    def remark(self, trouble: Finding | None) -> None:
        """What keeps this Spark's weights from a worker: told beside its own."""
        if self.complete:
            self._tell(WeightsStatus(phase="complete", finding=trouble))

    def _note(self, trouble: Finding) -> None:
        code, times, until = self._failed
        if time.monotonic() >= until:
            times = times + 1 if code == trouble.code else 1
            pause = PAUSES[min(times - 1, len(PAUSES) - 1)]
            self._failed = (trouble.code, times, time.monotonic() + pause)
            log.error("%s", trouble, extra={"code": trouble.code})
        self._tell(WeightsStatus(phase="failed", finding=trouble))

    def _hold_off(self) -> None:
        if time.monotonic() < self._failed[2] and self.status.finding is not None:
            raise Unprovided((self.status.finding,))


class Pacer:
    """Bytes a second over the last seconds of one phase."""

    def __init__(self) -> None:
        self._phase = ""
        self._seen: deque[tuple[float, int]] = deque()

    def rate(self, phase: str, done: int, now: float) -> float | None:
        """None until there is something to measure."""
        if phase != self._phase or (self._seen and done < self._seen[-1][1]):
            self._phase = phase
            self._seen.clear()
        self._seen.append((now, done))
        while now - self._seen[0][0] > RATE_SECONDS:
            self._seen.popleft()
        (first, had), (last, has) = self._seen[0], self._seen[-1]
        return (has - had) / (last - first) if last - first >= 0.2 else None
