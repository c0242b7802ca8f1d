"""The leader's end of a transfer: dials one worker and answers what it asks for, straight from the page cache."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping

from glm_spark.cluster.protocol import ProtocolFault
from glm_spark.handover import notes
from glm_spark.weights import lists, manifest
from glm_spark.weights.faults import Fault, fault
from glm_spark.weights.job import Door, Job
from glm_spark.weights.look import How, Look, look, real_roots, resolve
from glm_spark.weights.manifest import Entry
from glm_spark.weights.partial import CHUNK, chunk_digest, forget_pages
from glm_spark.weights.wire import Answer, Ask, Broken, Wire, prepare

DIAL_SECONDS = 3.0
PATIENCE_SECONDS = 10.0  # a worker that accepts nothing for so long has stopped receiving
_PIECE = 1 << 20


class Pace:
    """No more than `rate` bytes a second over all connections; 0: as fast as it goes."""

    def __init__(self, rate: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._clock = clock
        self._free_at = clock()
        self._lock = threading.Lock()

    def pause(self, count: int) -> float:
        """Books `count` bytes; the seconds to wait before they are sent."""
        if not self._rate:
            return 0.0
        with self._lock:
            now = self._clock()
            start = max(self._free_at, now)
            self._free_at = start + count / self._rate
            return start - now


class Sender:
    """`run` returns when the worker has everything or the connections are gone; `sent` counts content bytes."""

    def __init__(self, job: Job) -> None:
        assert job.door is not None
        self._node = job.node
        self._door: Door = job.door
        self._store = job.store
        self._roots = real_roots(job.store)
        self._pace = Pace(self._door.rate)
        self._looks: dict[tuple[str, str], Look] = {
            (one.pin.repository, one.pin.revision): one for one in look(job.store, job.pins) if not one.pin.path
        }
        self._image = job.image is not None
        self._documents, self._refusal = _of_image(job)
        self.sent = 0
        self.complete = False
        self._over = False  # the worker said goodbye on some connection
        self._fault: Fault | None = None
        self._lock = threading.Lock()

    def run(self) -> None:
        """Raises Fault when it could not be done."""
        threads = [
            threading.Thread(target=self._connection, name=f"connection {number}", daemon=True)
            for number in range(self._door.connections)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if not self._over and self._fault is not None:
            raise self._fault

    def _connection(self) -> None:
        """Dials until the worker says goodbye, with pauses, for as long as something gets through."""
        give_up = time.monotonic() + PATIENCE_SECONDS
        while not self._over and time.monotonic() < give_up:
            try:
                sock = self._dial()
            except OSError as error:
                self._failed("no-way", error.strerror or str(error))
                time.sleep(0.1)
                continue
            wire = Wire(sock)
            try:
                wire.open_as_leader(self._door)
                self._serve(wire)
                return
            except ProtocolFault as refused:
                self._failed("refused", refused.text)
                return
            except Broken as broken:
                self._failed("broken", str(broken))
                time.sleep(0.1)
            except OSError as error:  # a disk of this Spark: the worker is told nothing it could use
                self._failed("unreadable", error.strerror or str(error))
                return
            finally:
                wire.close()

    def _dial(self) -> socket.socket:
        door = self._door
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            prepare(sock)
            sock.settimeout(DIAL_SECONDS)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, door.netdev.encode() + b"\0")
            sock.bind((door.source, 0))
            sock.connect((door.address, door.port))
        except BaseException:
            sock.close()
            raise
        return sock

    def _failed(self, code: str, measured: str) -> None:
        door, what = self._door, "the image" if self._image else "weights"
        self._fault = fault(
            door.worker,
            code,
            f"{what} from {door.leader} at {door.address}:{door.port}",
            measured,
            "a connection over the cable that takes it",
            f"It is tried again. A firewall on {door.worker} has to admit TCP {door.port} on the cable.",
        )

    def _serve(self, wire: Wire) -> None:
        while True:
            ask = wire.hear_ask()
            if ask.ask == "bye":
                self.complete = self.complete or ask.complete
                self._over = True
                return
            self._answer(wire, ask)

    def _answer(self, wire: Wire, ask: Ask) -> None:
        if self._refusal:
            wire.say(Answer(refused="not-served", text=self._refusal[:500]))
            return
        one = self._looks.get((ask.repository, ask.revision))
        if one is None or one.manifest is None:
            text = f"{ask.repository}@{ask.revision[:12]} is not what {self._node} serves"
            wire.say(Answer(refused="not-served", text=text[:500]))
            return
        if ask.ask == "list":
            wire.say(Answer(list=manifest.encode(one.manifest).decode()))
            return
        if ask.ask == "document":
            text = self._documents.get(ask.blob, "")
            lacks = Answer(refused="not-there", text=f"{self._node} has no document {ask.blob[:12]}...")
            wire.say(Answer(document=text) if text else lacks)
            return
        entry = one.manifest.blob(ask.blob)
        real = self._readable(one, entry) if entry is not None else None
        if entry is None or real is None or (ask.first + ask.count - 1) * CHUNK >= max(entry.size, 1):
            wire.say(Answer(refused="not-there", text=f"{ask.blob} is not proven on {self._node}"))
            return
        handle = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(handle, "rb", buffering=0) as file:
            if ask.ask == "digests":
                spans = [(at * CHUNK, min(CHUNK, entry.size - at * CHUNK)) for at in _range(ask)]
                wire.say(Answer(digests=tuple(chunk_digest(handle, *span) for span in spans)))
            else:
                self._send_chunk(wire, file.fileno(), entry, ask.first)

    def _readable(self, one: Look, entry: Entry) -> str | None:
        """The real file of a proven content; the links are resolved anew each time."""
        for found in one.files:
            if found.entry.digest == entry.digest and found.how is How.VERIFIED:
                with contextlib.suppress(OSError):
                    return resolve(lists.snapshot(self._store.cache, one.pin) / found.entry.path, self._roots)
        return None

    def _send_chunk(self, wire: Wire, handle: int, entry: Entry, index: int) -> None:
        offset = index * CHUNK
        end = min(offset + CHUNK, entry.size)
        if os.fstat(handle).st_size != entry.size:
            wire.say(Answer(refused="not-there", text=f"{entry.digest} changed on {self._node}"))
            return
        wire.say(Answer(length=end - offset))
        with open(os.dup(handle), "rb", buffering=0) as file:
            while offset < end:
                count = min(_PIECE, end - offset)
                pause = self._pace.pause(count)
                if pause:
                    time.sleep(pause)
                try:
                    sent = wire.sock.sendfile(file, offset, count)
                except OSError as error:
                    raise Broken(error.strerror or "no progress") from None
                if sent == 0:
                    raise Broken("the file ended early")
                offset += sent
                with self._lock:
                    self.sent += sent
        forget_pages(handle, index * CHUNK, CHUNK)


def _of_image(job: Job) -> tuple[Mapping[str, str], str]:
    """The documents that prove the image that is sent, by their sha256; and why it is not sent."""
    if job.image is None:
        return {}, ""
    recipe = notes.recall(job.store.state, job.image.digest)
    return recipe.documents if recipe else {}, job.image.refusal


def _range(ask: Ask) -> range:
    return range(ask.first, ask.first + ask.count)
