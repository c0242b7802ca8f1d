"""Small repositories as a Hugging Face cache holds them, and transfers between two of them on loopback."""

from __future__ import annotations

import hashlib
import json
import os
import random
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from glm_spark.weights import layout, lists, manifest, sender, wire
from glm_spark.weights.child import Work
from glm_spark.weights.job import Door, Hub, Job, Word
from glm_spark.weights.manifest import Entry, Manifest
from glm_spark.weights.pins import Pin

REPOSITORY = "someone/a-model"
REVISION = "ab" * 20
PIN = Pin(kind="checkpoint", repository=REPOSITORY, revision=REVISION)
LEADER, WORKER = "spark-1", "spark-2"


def git_blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def digest(path: str, content: bytes) -> str:
    """As the Hub stores it: weights in LFS, everything else in git."""
    return sha256(content) if path.endswith(".safetensors") else git_blob(content)


def listed(files: Mapping[str, bytes], pin: Pin = PIN) -> Manifest:
    entries = [Entry(path=path, size=len(body), digest=digest(path, body)) for path, body in files.items()]
    return manifest.of(pin.repository, pin.revision, entries)


def some_files(sizes: Mapping[str, int], seed: int = 1) -> dict[str, bytes]:
    """`config.json` and files of these sizes in bytes, the same for the same seed."""
    source = random.Random(seed)
    files = {"config.json": json.dumps({"model_type": "glm5_next"}).encode()}
    return files | {path: b"".join(source.randbytes(piece) for piece in _pieces(size)) for path, size in sizes.items()}


def _pieces(size: int) -> list[int]:
    """randbytes takes no more than 256 MB at once."""
    return [min(1 << 24, size - at) for at in range(0, size, 1 << 24)]


def fill(cache: Path, files: Mapping[str, bytes], pin: Pin = PIN) -> Path:
    """A cache with all of it, as the Hub's client leaves it; the repository's folder."""
    folder = cache / "hub" / layout.folder(pin.repository)
    (folder / "blobs").mkdir(parents=True, exist_ok=True)
    for path, body in files.items():
        blob = folder / "blobs" / digest(path, body)
        blob.write_bytes(body)
        link = folder / "snapshots" / pin.revision / path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    return folder


def blob_file(cache: Path, path: str, body: bytes, pin: Pin = PIN) -> Path:
    return cache / "hub" / layout.folder(pin.repository) / "blobs" / digest(path, body)


def content(cache: Path, pin: Pin = PIN) -> dict[str, bytes]:
    """What the engine would read."""
    top = lists.snapshot(str(cache), pin)
    return {str(file.relative_to(top)): file.read_bytes() for file in sorted(top.rglob("*")) if not file.is_dir()}


class Place:
    """One Spark's cache and state below a directory."""

    def __init__(self, directory: Path, node: str, pins: tuple[Pin, ...] = (PIN,)) -> None:
        self.node = node
        self.cache = directory / f"{node}-cache"
        self.state = directory / f"{node}-state" / "weights"
        self.pins = pins

    def job(self, verb: str, **more: Any) -> Job:
        return Job.model_validate(
            {"verb": verb, "node": self.node, "cache": str(self.cache), "state": str(self.state), "pins": self.pins}
            | more
        )


class Child:
    """A transfer's process. `words` collects what it says."""

    def __init__(self, job: Job, env: Mapping[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "glm_spark.weights.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **(env or {})},
        )
        self.words: list[Word] = []
        assert self.process.stdin is not None
        self.process.stdin.write(job.model_dump_json().encode() + b"\n")
        self.process.stdin.flush()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.words.append(Word.model_validate_json(line))

    @property
    def last(self) -> Word:
        return self.words[-1] if self.words else Word()

    def wait(self, timeout: float = 60) -> Word:
        """Its last word, once it ended."""
        self.process.wait(timeout)
        self._close()
        assert self.process.returncode == 0
        assert self.last.ended
        return self.last

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._close()

    def _close(self) -> None:
        self._reader.join()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def doors(port: int, **more: Any) -> Door:
    """Both Sparks on loopback."""
    return Door(
        key=wire.key_of(b"t" * 32).hex(),
        cluster="glm",
        leader=LEADER,
        worker=WORKER,
        port=port,
        addresses=(("127.0.0.1", "lo"),),
        address="127.0.0.1",
        netdev="lo",
        source="127.0.0.1",
        **more,
    )


def done(job: Job) -> Word:
    """A job's last word, done in this process."""
    work = Work(job)
    findings = work.run()
    return work.word().model_copy(update={"ended": True, "findings": findings})


class Pair:
    """A leader that has `files` and a worker that has nothing yet."""

    def __init__(self, directory: Path, files: Mapping[str, bytes]) -> None:
        self.files = dict(files)
        self.leader = Place(directory, LEADER)
        self.worker = Place(directory, WORKER)
        fill(self.leader.cache, files)
        lists.keep(LEADER, self.leader.state, PIN, listed(files))
        assert not done(self.leader.job("verify")).findings

    def start(self, **door: Any) -> tuple[Child, Child]:
        """Sender and receiver, under way."""
        way = doors(free_port(), **door)
        return Child(self.leader.job("send", door=way)), Child(self.worker.job("receive", door=way))

    def sync(self, **door: Any) -> tuple[Word, Word]:
        """Both to their end in this process; their last words."""
        return self.sync_of(door)

    def sync_of(self, door: Mapping[str, Any] | None = None, **receiver_s: Any) -> tuple[Word, Word]:
        """The same, with more for the receiver's job."""
        way = doors(free_port(), **(door or {}))
        sender.PATIENCE_SECONDS = 1.0  # a worker that wants nothing never opens its door
        with ThreadPoolExecutor(1) as aside:
            sending = aside.submit(done, self.leader.job("send", door=way))
            receiver = done(self.worker.job("receive", door=way, **receiver_s))
            return sending.result(), receiver

    def arrived(self) -> bool:
        return content(self.worker.cache) == self.files


def hub(endpoint: str, token: str = "") -> Hub:
    return Hub(endpoint=endpoint, token=token)
