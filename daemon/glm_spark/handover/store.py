"""podman's own store as the hand-over's process uses it: what an image is, its documents, out of it and into it."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

from glm_spark.handover import faults
from glm_spark.handover.chain import LARGEST_DOCUMENT, MACHINES
from glm_spark.weights.faults import Fault
from glm_spark.weights.job import ImageJob

ANSWER_SECONDS = 60.0
LOOK_SECONDS = 0.5
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


class Podman:
    """`temporary` is where it puts its own copies of layers. Its methods raise Fault."""

    def __init__(self, node: str, job: ImageJob, temporary: Path) -> None:
        self._node = node
        self._job = job
        self._temporary = temporary
        self.read = 0  # bytes that the verb under way has read so far

    def inspect(self, reference: str) -> dict[str, Any] | None:
        """An image as podman tells it; None where it is not there."""
        status, output, words = self._ask("image", "inspect", reference)
        if status != 0:
            if any(text in words.lower() for text in ("no such image", "image not known", "did not resolve")):
                return None
            raise self._fault("image inspect", words)
        try:
            told = json.loads(output)[0]
            return {"Id": str(told["Id"]).removeprefix("sha256:"), "Size": int(told["Size"]), **_layers(told)}
        except (ValueError, LookupError, TypeError):
            raise self._fault("image inspect", "an answer that cannot be read") from None

    def root(self) -> tuple[Path, str]:
        """Where the store is, and the name of its driver."""
        status, output, words = self._ask("info", "--format={{json .Store}}")
        try:
            told = json.loads(output)
            return Path(told["graphRoot"]), str(told["graphDriverName"])
        except (ValueError, LookupError, TypeError):
            raise self._fault("info", words if status else "an answer that cannot be read") from None

    def documents(self, image: str) -> dict[str, bytes]:
        """What the store keeps beside an image: manifests as they came, index, configuration; by their sha256."""
        root, driver = self.root()
        found: dict[str, bytes] = {}
        try:
            for file in (root / f"{driver}-images" / image).iterdir():
                if file.is_file() and file.stat().st_size <= LARGEST_DOCUMENT:
                    raw = file.read_bytes()
                    found[hashlib.sha256(raw).hexdigest()] = raw
        except OSError as error:
            raise self._fault(str(error.filename or root), error.strerror or str(error)) from None
        return found

    @property
    def moved(self) -> int:
        """About how many bytes of the image it has moved: it reads each twice, once from a copy of its own."""
        return self.read // 2

    def export(self, image: str, to: Path) -> None:
        """Its configuration and its layers as plain tars, each under its sha256."""
        self._run("push", "--quiet", image, f"dir:{to}")

    def load(self, source: Path) -> None:
        self._run("pull", "--quiet", f"dir:{source}")

    def tag(self, image: str, name: str) -> None:
        status, _, words = self._ask("tag", image, name)
        if status != 0:
            raise self._fault("tag", words)

    def _ask(self, *verb: str) -> tuple[int, str, str]:
        """Exit status, output, the last line of what it said."""
        try:
            done = subprocess.run(
                (*self._job.tool, *verb),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                env=self._job.environment,
                timeout=ANSWER_SECONDS,
                preexec_fn=_end_with_us,
            )
        except subprocess.TimeoutExpired:
            raise self._fault(verb[0], f"no answer within {ANSWER_SECONDS:g} s") from None
        except OSError as error:
            raise self._fault(verb[0], error.strerror or str(error)) from None
        return done.returncode, done.stdout.decode(errors="replace"), _last(done.stderr)

    def _run(self, *verb: str) -> None:
        """What takes minutes: followed by what it reads, and ended when it reads nothing for too long."""
        self.read = 0
        try:
            process = subprocess.Popen(
                (*self._job.tool, *verb),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={**self._job.environment, "TMPDIR": str(self._temporary)},
                preexec_fn=_end_with_us,
            )
        except OSError as error:
            raise self._fault(verb[0], error.strerror or str(error)) from None
        said: list[bytes] = []
        assert process.stderr is not None
        reader = threading.Thread(target=_keep_last, args=(process.stderr.fileno(), said), daemon=True)
        reader.start()
        silent = 0.0
        while True:
            try:
                process.wait(LOOK_SECONDS)
                break
            except subprocess.TimeoutExpired:
                read = _bytes_read(process.pid)
                silent = 0.0 if read > self.read else silent + LOOK_SECONDS
                self.read = max(self.read, read)
            if silent > self._job.silence:
                process.kill()
                process.wait()
                raise self._fault(verb[0], f"no progress for {silent:.0f} s")
        reader.join(1.0)
        if not reader.is_alive():  # else somebody whom podman started holds it open
            process.stderr.close()
        if process.returncode != 0:
            raise self._fault(verb[0], _last(b"".join(said)) or f"exit status {process.returncode}")

    def _fault(self, what: str, words: str) -> Fault:
        return faults.podman(self._node, self._job.reference, f"podman {what}: {words}")


def _layers(told: dict[str, Any]) -> dict[str, Any]:
    return {"Layers": tuple(str(layer).removeprefix("sha256:") for layer in told["RootFS"]["Layers"])}


def _end_with_us() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _keep_last(handle: int, said: list[bytes]) -> None:
    while data := os.read(handle, 4096):
        said[:] = [(b"".join(said) + data)[-4096:]]


def _last(words: bytes) -> str:
    lines = words.decode(errors="replace").strip().splitlines()
    return lines[-1].strip()[:500] if lines else ""


def _bytes_read(pid: int) -> int:
    """With what its own children have read and ended; 0 where that cannot be seen."""
    try:
        with open(f"/proc/{pid}/io", "rb") as file:
            return int(file.readline().split()[1])
    except (OSError, IndexError, ValueError):
        return 0


def machine() -> str:
    """This Spark's architecture as registries name it."""
    here = os.uname().machine
    return MACHINES.get(here, here)
