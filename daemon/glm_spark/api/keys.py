"""The API keys of `api.keys_file`: one a line, compared in constant time, read again when the file changes."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from glm_spark.finding import Finding, Severity
from glm_spark.preflight.aside import in_a_thread

LOOK_SECONDS = 1.0  # the file is looked at no more often than this
READ_SECONDS = 1.0  # a disk that takes longer keeps the keys known so far
MAX_BYTES = 1 << 20

_Stamp = tuple[int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class _Reading:
    stamp: _Stamp | None
    digests: tuple[bytes, ...]
    finding: Finding | None


def fingerprint(key: bytes) -> str:
    """Names a key in counters without giving it away: the first 8 hex digits of its SHA-256."""
    return hashlib.sha256(key).hexdigest()[:8]


def presented_key(headers: Mapping[str, str]) -> bytes | None:
    """The key of `Authorization: Bearer KEY`, else of `x-api-key: KEY`; None without either."""
    scheme, _, credential = headers.get("Authorization", "").partition(" ")
    key = credential.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "").strip()
    return key.encode("utf-8", "surrogateescape") if key else None


def _parse(text: bytes) -> tuple[bytes, ...]:
    """The SHA-256 of each key; blank lines and lines that start with # are not keys."""
    lines = (line.strip() for line in text.splitlines())
    return tuple(hashlib.sha256(line).digest() for line in lines if line and not line.startswith(b"#"))


def _read(path: Path, node: str, known: _Reading) -> _Reading:
    """Blocking: the keys as they are in the file now; `known` itself when the file has not changed."""
    stamp: _Stamp | None = None
    try:
        # O_NONBLOCK: a FIFO in its place must not hold the reader.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            was = os.fstat(descriptor)
            stamp = (was.st_ino, was.st_mode, was.st_size, was.st_mtime_ns, was.st_ctime_ns)
            if stamp == known.stamp:
                return known
            fault = _fault(path, was)
            if fault is not None:
                return _unusable(path, node, stamp, *fault)
            with open(descriptor, "rb", closefd=False) as file:
                digests = _parse(file.read(MAX_BYTES))
        finally:
            os.close(descriptor)
    except OSError as error:
        why = f"cannot be read ({os.strerror(error.errno or 0)})"
        return _unusable(path, node, stamp, why, f"Create it: install -m 0600 KEYS {path}.")
    if not digests:
        return _unusable(path, node, stamp, "holds no key", "Write at least one key into it.")
    return _Reading(stamp, digests, None)


def _fault(path: Path, was: os.stat_result) -> tuple[str, str] | None:
    """What is wrong with such a file, and what to do; None for nothing."""
    if not stat.S_ISREG(was.st_mode):
        return "not a regular file", "Name a plain file."
    if was.st_mode & 0o077:
        return f"mode {stat.S_IMODE(was.st_mode):04o}, others can read it", f"Run chmod 0600 {path}."
    if was.st_size > MAX_BYTES:
        return f"larger than {MAX_BYTES} bytes", "Keep one key a line and nothing else in it."
    return None


def _unusable(path: Path, node: str, stamp: _Stamp | None, measured: str, fix: str) -> _Reading:
    finding = Finding(
        code="api.keys-file",
        severity=Severity.ERROR,
        node=node,
        subject=f"{path} (api.keys_file)",
        measured=f"{measured}, so no API key is valid",
        wanted="a file of mode 0600 with one key a line",
        fix=fix,
    )
    return _Reading(stamp, (), finding)


class Keys:
    """The keys of one file. `finding` is what is wrong with it now, None when it is fine."""

    def __init__(self, path: Path, node: str) -> None:
        self._path = path
        self._node = node
        self._known = _Reading(None, (), None)
        self._looked = float("-inf")
        self._look: asyncio.Task[_Reading] | None = None
        self._late: Finding | None = None

    @property
    def finding(self) -> Finding | None:
        return self._late or self._known.finding

    async def refresh(self) -> None:
        """Read the file again when it changed, at most once in LOOK_SECONDS; returns within READ_SECONDS."""
        if self._look is None:
            if time.monotonic() - self._looked < LOOK_SECONDS:
                return
            known = self._known
            self._looked = time.monotonic()
            self._look = asyncio.create_task(in_a_thread(lambda: _read(self._path, self._node, known), "keys-file"))
        look = self._look
        # Only the first request waits for a disk that is late; the others must not all become slow.
        await asyncio.wait({look}, timeout=0 if self._late else READ_SECONDS)
        if not look.done():
            self._late = self._late_finding()
        elif self._look is look:
            self._look, self._late = None, None
            self._known = look.result()

    async def admit(self, headers: Mapping[str, str]) -> str | None:
        """The fingerprint of the valid key that a request carries, or None."""
        await self.refresh()
        key = presented_key(headers)
        if key is None:
            return None
        digest = hashlib.sha256(key).digest()
        # Every key is compared, whichever fits: the time tells nothing about which one did.
        fits = 0
        for known in self._known.digests:
            fits |= hmac.compare_digest(digest, known)
        return fingerprint(key) if fits else None

    def close(self) -> None:
        if self._look is not None:
            self._look.cancel()

    def _late_finding(self) -> Finding:
        return Finding(
            code="api.keys-file-late",
            severity=Severity.WARNING,
            node=self._node,
            subject=f"{self._path} (api.keys_file)",
            measured=f"not read within {READ_SECONDS:g} s; the keys known before stay valid",
            wanted="a disk that answers",
            fix="Look at the disk that holds it.",
        )
