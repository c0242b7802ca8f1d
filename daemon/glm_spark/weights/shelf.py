"""What is still to be brought onto this Spark: missing blobs with their chunks, handed out and taken back."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field

from glm_spark.weights import faults, layout
from glm_spark.weights.faults import Fault, amount, fault
from glm_spark.weights.folder import Folder
from glm_spark.weights.look import How, Look, Store
from glm_spark.weights.manifest import Entry, Manifest
from glm_spark.weights.partial import Partial, chunks_in
from glm_spark.weights.pins import Pin
from glm_spark.weights.remembered import Remembered

REPAIRS = 3  # rounds of comparing chunks before the sender's own content is doubted
_DIGESTS = 256  # chunks compared by one question: a gibibyte is hashed in a second or two
MOST_OPEN = 64  # blobs with open files
_NOTED_AT_ONCE = 64 << 20  # bytes; smaller files are remembered together at the end


@dataclass(eq=False)
class Blob:
    """One content on its way. `left` counts chunks that are not there yet, `compared` the questions still open."""

    pin: Pin
    manifest: Manifest
    entry: Entry
    folder: Folder
    partial: Partial
    pending: deque[int] = field(default_factory=deque)
    questions: deque[int] = field(default_factory=deque)
    left: int = 0
    compared: int = 0
    differed: bool = False
    repairs: int = 0
    opened: bool = False


@dataclass(frozen=True, slots=True)
class Task:
    """A chunk to bring, or with `digests` that many chunks to compare, from `first` on."""

    blob: Blob
    first: int
    digests: int = 0


class Shelf:
    """Thread-safe. `fill` once, then `take` tasks until None; `idle_proof` runs the next proof that is due."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._changed = threading.Condition()
        self._open: deque[Blob] = deque()
        self._proofs: deque[Blob] = deque()
        self._alive = 0
        self._unfinished = 0
        self._folders = ExitStack()
        self._noted: dict[str, tuple[os.stat_result, str]] = {}
        self._remembered = Remembered(store.state)
        self.fault: Fault | None = None
        self.done = 0
        self.total = 0

    # -- filling -----------------------------------------------------------------------------------------------

    def fill(self, looks: Iterable[Look], keep_free: int) -> None:
        """Lines up what is missing or wrong. Raises Fault: no room, or not this Spark's to write."""
        needed = 0
        for one in looks:
            if one.manifest is None or one.complete:
                continue
            self._refuse_outside(one)
            folder = self._folders.enter_context(Folder(self._store.node, self._store.cache, one.pin.repository))
            there = {file.entry.digest for file in one.of(How.VERIFIED, How.UNPROVEN)}
            lacking = {file.entry.digest for file in one.of(How.MISSING, How.WRONG)} - there
            for entry in one.manifest.blobs():
                self.total += entry.size
                if entry.digest not in lacking:
                    self.done += entry.size
                    continue
                partial = Partial(folder, entry)
                needed += entry.size - folder.allocated(entry.digest + layout.PART, entry.digest)
                self._open.append(Blob(one.pin, one.manifest, entry, folder, partial))
            self._link_proven(folder, one, lacking)
        self._unfinished = len(self._open)
        self._want_room(needed, keep_free)

    def _refuse_outside(self, one: Look) -> None:
        outside = one.of(How.OUTSIDE)
        if outside:
            raise fault(
                self._store.node,
                "outside",
                one.pin.name,
                f"{outside[0].entry.path} is a link that leads out of the cache",
                "links into the cache or weights.roots",
                "Name the directory they lie in under weights.roots, or remove the links.",
            )

    def _link_proven(self, folder: Folder, one: Look, lacking: set[str]) -> None:
        """A content that is there under one path only gets its other names too."""
        assert one.manifest is not None
        for file in one.files:
            if file.how is How.MISSING and file.entry.digest not in lacking:
                folder.link(one.pin.revision, file.entry)

    def _want_room(self, needed: int, keep_free: int) -> None:
        room = os.statvfs(self._store.cache)
        free = room.f_bavail * room.f_frsize
        if needed > 0 and needed + keep_free > free:
            raise fault(
                self._store.node,
                "no-room",
                self._store.cache,
                f"{amount(free)} free",
                f"{amount(needed)} for what is missing, and {amount(keep_free)} left free",
                "Make room on that disk (glm-spark weights gc shows what may go), or set model.cache to another one.",
            )

    # -- work --------------------------------------------------------------------------------------------------

    def take(self, *, wait: bool) -> Task | None:
        """The next task; None when everything is done, when it failed, or when there is nothing now and not `wait`."""
        with self._changed:
            while True:
                if self.fault is not None or self._unfinished == 0:
                    return None
                task = self._next()
                if task is not None:
                    return task
                if not wait:
                    return None
                self._changed.wait(1.0)

    def _next(self) -> Task | None:
        """Under the lock. Opens a blob when its turn comes; one that is whole already goes to its proof."""
        while self._open:
            blob = self._open[0]
            if not blob.opened:
                if self._alive >= MOST_OPEN:
                    return None
                self._begin(blob)
            if blob.questions:
                first = blob.questions.popleft()
                return Task(blob, first, min(_DIGESTS, chunks_in(blob.entry.size) - first))
            if blob.pending:
                return Task(blob, blob.pending.popleft())
            self._open.popleft()
        return None

    def _begin(self, blob: Blob) -> None:
        blob.opened = True
        self._alive += 1
        try:
            blob.partial.open()
        except Fault as trouble:
            self._fail(trouble)
            raise
        blob.pending = deque(blob.partial.missing())
        blob.left = len(blob.pending)
        self.done += blob.partial.received
        if not blob.left:
            self._due(blob)

    def _due(self, blob: Blob) -> None:
        self._proofs.append(blob)
        self._changed.notify_all()

    def give_back(self, tasks: Iterable[Task]) -> None:
        """Tasks of a connection that broke."""
        with self._changed:
            for task in tasks:
                (task.blob.questions if task.digests else task.blob.pending).appendleft(task.first)
                if task.blob not in self._open:
                    self._open.appendleft(task.blob)
            self._changed.notify_all()

    def got(self, task: Task) -> None:
        """The chunk is written."""
        try:
            task.blob.partial.note(task.first)
        except OSError as error:
            raise self.disk(task.blob, error) from None
        with self._changed:
            self.done += task.blob.partial.span(task.first)[1]
            task.blob.left -= 1
            if task.blob.left == 0 and not task.blob.compared:
                self._due(task.blob)

    def compared(self, task: Task, differing: list[int]) -> None:
        """The sender's digests were compared; these chunks are wanted anew."""
        blob = task.blob
        if differing:
            blob.partial.forget(differing)
        with self._changed:
            self.done -= sum(blob.partial.span(index)[1] for index in differing)
            blob.pending.extend(differing)
            blob.left += len(differing)
            blob.compared -= 1
            blob.differed = blob.differed or bool(differing)
            if blob.pending and blob not in self._open:
                self._open.appendleft(blob)
            if not blob.compared and not blob.left:
                if blob.differed:
                    self._due(blob)
                else:
                    # Nothing differs from what the sender has, and yet the whole is not what was pinned.
                    self._fail(self.not_the_pinned(blob))
            self._changed.notify_all()

    # -- proving -----------------------------------------------------------------------------------------------

    def prove_next(self) -> bool:
        """Waits for a proof that is due and runs it; False when there will be none any more."""
        with self._changed:
            while not self._proofs:
                if self.fault is not None or self._unfinished == 0:
                    return False
                self._changed.wait(1.0)
            blob = self._proofs.popleft()
        try:
            if blob.partial.proven():
                self._finish(blob)
            else:
                self._mend(blob)
        except OSError as error:
            self.fail(self.disk(blob, error))
        except Fault as trouble:
            self.fail(trouble)
        return True

    def _finish(self, blob: Blob) -> None:
        status = blob.partial.finish()
        for entry in blob.manifest.files:
            if entry.digest == blob.entry.digest:
                blob.folder.link(blob.pin.revision, entry)
        real = os.path.realpath(blob.folder.shown(blob.entry.digest))
        with self._changed:
            self._noted[real] = (status, blob.entry.digest)
            self._unfinished -= 1
            self._alive -= 1
            last = self._unfinished == 0
            noted = dict(self._noted) if last or blob.entry.size >= _NOTED_AT_ONCE else {}
            self._changed.notify_all()
        if noted:
            self._remembered.add(noted)

    def _mend(self, blob: Blob) -> None:
        with self._changed:
            blob.repairs += 1
            if blob.repairs > REPAIRS:
                raise self.not_the_pinned(blob)
            blob.questions = deque(range(0, chunks_in(blob.entry.size), _DIGESTS))
            blob.compared, blob.differed = len(blob.questions), False
            if not blob.compared:
                raise self.not_the_pinned(blob)
            self._open.appendleft(blob)
            self._changed.notify_all()

    # -- a source that sends whole blobs ------------------------------------------------------------------------

    def take_blob(self) -> Blob | None:
        """The next blob, opened; None when all were handed out or it failed."""
        with self._changed:
            if self.fault is not None or not self._open:
                return None
            blob = self._open.popleft()
            blob.opened = True
            self._alive += 1
        blob.partial.open()
        self.count(blob.partial.received)
        return blob

    def count(self, size: int) -> None:
        """So many bytes more (or fewer) are there."""
        with self._changed:
            self.done += size

    def finish(self, blob: Blob) -> bool:
        """Proves and names a whole blob; False, with all of it forgotten, when it is not the pinned content."""
        if blob.partial.proven():
            self._finish(blob)
            return True
        self.count(-blob.partial.received)
        blob.partial.forget()
        return False

    # -- faults ------------------------------------------------------------------------------------------------

    @property
    def complete(self) -> bool:
        return self._unfinished == 0 and self.fault is None

    def fail(self, trouble: Fault) -> None:
        """Ends it all; the first fault counts."""
        with self._changed:
            self._fail(trouble)

    def _fail(self, trouble: Fault) -> None:
        self.fault = self.fault or trouble
        self._changed.notify_all()

    def disk(self, blob: Blob, error: OSError) -> Fault:
        return faults.of_disk(self._store.node, os.path.dirname(blob.folder.shown("")), error)

    def not_the_pinned(self, blob: Blob) -> Fault:
        path = next(entry.path for entry in blob.manifest.files if entry.digest == blob.entry.digest)
        return fault(
            self._store.node,
            "content-differs",
            f"{path} of {blob.pin.name}",
            "what was sent is not what is pinned",
            f"the content {blob.entry.digest[:16]}...",
            "On the leader: glm-spark weights verify --again, then glm-spark weights fetch.",
        )

    def close(self) -> None:
        """Lets go of every file; what is under way stays on the disk."""
        with self._changed:
            for blob in self._open:
                blob.partial.close()
        self._folders.close()
