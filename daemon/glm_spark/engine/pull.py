"""Brings the engine's image by its digest, beside everything else the daemon does, and says how far it is: fetched
from its registry, or where that cannot be, taken from the leader."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from glm_spark.config.model import Config
from glm_spark.engine import container
from glm_spark.engine.lines import Tail, clean
from glm_spark.finding import Finding, Severity
from glm_spark.handover.faults import words
from glm_spark.status import WeightsStatus
from glm_spark.weights.words import in_words

log = logging.getLogger(__name__)

PULLING, FAILED = "image.pulling", "image.pull-failed"
TAKING, NOT_TAKEN = "image.handing-over", "image.not-handed-over"
HOLDING = frozenset({PULLING, FAILED, TAKING, NOT_TAKEN})  # no start is tried meanwhile
LOOK_SECONDS = 1.0
SAY_SECONDS = 60.0
BACKOFF_SECONDS = (10.0, 30.0, 60.0, 300.0)
_GIB = 1 << 30
_LAYER_DONE = re.compile(r"Pull complete|Already exists|^Copying blob \S+ (?:done|skipped)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Progress:
    """`read_bytes`: what the fetching program has read so far, from the network and from its own files; None where
    another process does the work (docker)."""

    seconds: float
    layers: int
    read_bytes: int | None

    def __str__(self) -> str:
        parts = [f"being fetched for {self.seconds / 60:.0f} min"]
        if self.read_bytes is not None:
            parts.append(f"{self.read_bytes / _GIB:.1f} GiB read")
        if self.layers:
            parts.append(f"{self.layers} layers done")
        return ", ".join(parts)


class Source(Protocol):
    """Another Spark that has the image."""

    @property
    def status(self) -> WeightsStatus | None:
        """How far it is."""
        ...

    def may(self, config: Config) -> bool:
        """Whether it may be asked."""
        ...

    async def take(self) -> tuple[Finding, ...]:
        """What stood in the way; nothing once the image is here."""
        ...

    async def tidy(self) -> None:
        """Clears what an earlier life left and nobody needs."""
        ...


class Pull:
    """`want` may be called at any time and any number of times; `run` does the work, one image at a time. `other` is
    who else has it."""

    def __init__(
        self, node: str, config: Callable[[], Config], on_change: Callable[[], None], other: Source | None = None
    ) -> None:
        self._node = node
        self._config = config
        self._on_change = on_change
        self._wanted = asyncio.Event()
        self._failures = 0
        self._other = other
        self.finding: Finding | None = None  # how it is, None when nothing is fetched

    @property
    def may(self) -> bool:
        """Whether a missing image can be brought."""
        return self._config().engine.pull or self._from_another

    @property
    def _from_another(self) -> bool:
        return self._other is not None and self._other.may(self._config())

    def want(self) -> Finding:
        """Begins, unless it has begun; how it is."""
        self._wanted.set()
        if self.finding is None:
            fetched = self._config().engine.pull
            self._tell(
                self._found(PULLING, "its fetching begins") if fetched else self._found(TAKING, "it is asked for")
            )
        assert self.finding is not None
        return self.finding

    async def run(self) -> None:
        if self._other is not None:
            await self._other.tidy()
        while True:
            await self._wanted.wait()
            code, trouble, fix = await self._bring()
            if not trouble:
                self._failures = 0
                self._wanted.clear()
                self._tell(None)
                continue
            pause = BACKOFF_SECONDS[min(self._failures, len(BACKOFF_SECONDS) - 1)]
            self._failures += 1
            finding = self._found(code, f"{trouble}; tried again in {pause:.0f} s", fix)
            log.error("%s", finding, extra={"code": code})
            self._tell(finding)
            await asyncio.sleep(pause)

    async def _bring(self) -> tuple[str, str, str]:
        """With the code of the finding: "" when the image is there, or is not wanted from anywhere, else why not, and
        what to do where that is known."""
        failed = ""
        if (config := self._config()).engine.pull:
            failed = await self._fetch(config)
            if not failed or not self._from_another:
                return FAILED, failed, ""
            instead = self._found(FAILED, f"{failed}; it is asked for from the leader")
            log.warning("%s", instead, extra={"code": FAILED})
        if not self._from_another:
            return NOT_TAKEN, "", ""
        assert self._other is not None
        found = await self._take(self._other, failed)
        if not found:
            return NOT_TAKEN, "", ""
        told = words(found[0]) + (f"; {failed}" if failed else "")
        return NOT_TAKEN, told, found[0].fix

    async def _take(self, other: Source, failed: str) -> tuple[Finding, ...]:
        """Follows another Spark's giving it."""
        taking = asyncio.create_task(other.take(), name="hand-over")
        try:
            while not taking.done():
                told = in_words(other.status) if other.status is not None else "it is asked for"
                self._tell(self._found(TAKING, told + (f"; {failed}" if failed else "")))
                await asyncio.wait([taking], timeout=LOOK_SECONDS)
            return taking.result()
        finally:
            taking.cancel()
            await asyncio.wait([taking])

    async def _fetch(self, config: Config) -> str:
        """ "" when the image is there, else why not."""
        argv = (*container.tool(config), "pull", config.engine.image)
        log.info("fetching image %s with %s", config.engine.image, config.engine.runtime)
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=container.tool_environment(os.environ, network=True),
                start_new_session=True,
            )
        except OSError as error:
            return f"{argv[0]}: {error.strerror or error}"
        tail = Tail()
        try:
            return await self._follow(process, tail, config)
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()

    async def _follow(self, process: asyncio.subprocess.Process, tail: Tail, config: Config) -> str:
        begun = moved = said = time.monotonic()
        before = Progress(0, 0, None)
        async with asyncio.TaskGroup() as tasks:
            reader = tasks.create_task(_read(process, tail), name="pull output")
            while True:
                done, _ = await asyncio.wait({reader}, timeout=LOOK_SECONDS)
                if done:
                    break
                now = time.monotonic()
                text = "\n".join(tail.last(200, 300))
                progress = Progress(now - begun, len(_LAYER_DONE.findall(text)), _bytes_read(process.pid))
                if (progress.layers, progress.read_bytes) != (before.layers, before.read_bytes):
                    before, moved = progress, now
                if now - moved > config.timeouts.silence_seconds:
                    reader.cancel()
                    return f"no progress for {now - moved:.0f} s ({progress})"
                finding = self._found(PULLING, str(progress))
                self._tell(finding)
                if now - said > SAY_SECONDS:
                    said = now
                    log.info("%s", finding)
        code = await process.wait()
        last = tail.last(1, 500)
        if code == 0:
            log.info("image %s is here", config.engine.image)
            return ""
        return f"{config.engine.runtime} pull: {last[0] if last else f'exit status {code}'}"

    def _tell(self, finding: Finding | None) -> None:
        if finding != self.finding:
            self.finding = finding
            self._on_change()

    def _found(self, code: str, measured: str, fix: str = "") -> Finding:
        image = self._config().engine.image
        by_hand = f"See its words, the network and the disk; by hand: sudo {self._config().engine.runtime} pull {image}"
        if code in (PULLING, TAKING):
            fix = "Nothing to do: the set starts when it is here."
        return Finding(
            code=code,
            severity=Severity.ERROR,
            node=self._node,
            subject=f"image {image}"[:300],
            measured=measured[:4000],
            wanted="the engine's image (about 25 GB) on this Spark",
            fix=(fix or by_hand)[:2000],
        )


async def _read(process: asyncio.subprocess.Process, tail: Tail) -> None:
    assert process.stdout is not None
    while line := await process.stdout.readline():
        if text := clean(line):
            tail.add(text)


def _bytes_read(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/io", "rb") as file:
            return int(file.readline().split()[1])
    except (OSError, IndexError, ValueError):
        return None
