"""The history on the disk: read at the start, written after every change, whatever the disk does meanwhile."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from pathlib import Path

from glm_spark.engine import processes
from glm_spark.finding import Finding, Severity
from glm_spark.host import whole_file
from glm_spark.service.incidents import Incidents, Kept, View, dump, parse

log = logging.getLogger(__name__)

DISK_SECONDS = 5.0
AGAIN_SECONDS = 30.0  # after a disk that refused
LARGEST = 8 << 20  # bytes; fifty incidents with all their lines are a tenth of that


class History:
    """`load` before the first `take`; `run` writes. `trouble` is what keeps it from the disk."""

    def __init__(self, path: Path, node: str, boot_id: str) -> None:
        self._path = path
        self._node = node
        self.incidents = Incidents(node, boot_id)
        self.trouble: Finding | None = None
        self._dirty = asyncio.Event()
        self._settled = asyncio.Event()
        self._settled.set()

    async def load(self) -> None:
        """Goes on with what an earlier life kept. An unreadable history is put aside, never written over."""
        try:
            kept = await processes.aside(self._read, DISK_SECONDS)
        except (OSError, ValueError) as error:
            log.warning("the history is not read: %s", error, extra={"code": "disk.history"})
            return
        if kept is not None:
            self.incidents.resume(kept, time.time())
            if kept.live is not None:
                self._mark()

    def take(self, view: View) -> None:
        if self.incidents.take(view):
            self._mark()

    def witness(self, finding: Finding) -> None:
        if self.incidents.witness(finding):
            self._mark()

    async def run(self) -> None:
        """Writes the newest history whenever it changed."""
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            if not await self._write():
                self._dirty.set()
                await asyncio.sleep(AGAIN_SECONDS)
            elif not self._dirty.is_set():
                self._settled.set()

    async def settled(self) -> None:
        """Returns when everything taken so far is on the disk."""
        await self._settled.wait()

    def _mark(self) -> None:
        self._dirty.set()
        self._settled.clear()

    async def _write(self) -> bool:
        content = dump(self.incidents.kept)
        try:
            await processes.aside(lambda: whole_file.write(self._path, content), DISK_SECONDS)
        except OSError as error:  # TimeoutError is one
            measured = str(error.strerror or error) or f"no answer within {DISK_SECONDS:g} s"
            if self.trouble is None:
                log.warning("the history is not written: %s", measured, extra={"code": "disk.history"})
            self.trouble = self._finding(measured)
            return False
        self.trouble = None
        return True

    def _read(self) -> Kept | None:
        try:
            with self._path.open("rb") as file:
                content = file.read(LARGEST)
        except FileNotFoundError:
            return None
        try:
            return parse(content)
        except (ValueError, RecursionError):
            aside = self._path.with_name(self._path.name + ".unreadable")
            os.replace(self._path, aside)
            raise ValueError(f"{self._path} is damaged; it is kept as {aside}") from None

    def _finding(self, measured: str) -> Finding:
        return Finding(
            code="disk.history",
            severity=Severity.WARNING,
            node=self._node,
            subject=f"the history ({self._path})",
            measured=measured,
            wanted="a disk that takes it",
            fix="See df -h and journalctl -k on this Spark; incidents are kept in memory meanwhile.",
        )
