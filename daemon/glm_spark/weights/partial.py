"""A blob under way: chunks arrive in any order, each is noted as it arrives, and only proven content gets its name.

The note of a chunk follows its write, so a program that is killed resumes with all that was noted. After a power
failure a noted chunk may be missing from the disk all the same: the whole is read back and hashed before the rename,
and what differs is found by the sender's hashes of single chunks.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import threading
from collections.abc import Iterator, Sequence

from glm_spark.weights import faults, layout
from glm_spark.weights.folder import Folder
from glm_spark.weights.manifest import Entry

CHUNK = 4 << 20  # bytes; the unit of the note, of a request and of a repair
_HEAD = b"glm-spark chunks of 4 MiB\n"
_READ = 1 << 20
_WRITE_BEHIND = 2  # SYNC_FILE_RANGE_WRITE, linux/fs.h
_libc = ctypes.CDLL(None, use_errno=True)


def chunks_in(size: int) -> int:
    return -(-size // CHUNK)


class Partial:
    """`folder` must stay open. Its methods may be called from several threads; one of them proves and finishes."""

    def __init__(self, folder: Folder, entry: Entry) -> None:
        self._folder = folder
        self.entry = entry
        self._part = entry.digest + layout.PART
        self._got = entry.digest + layout.GOT
        self._lock = threading.Lock()
        self._data = self._notes = -1
        self.chunks: set[int] = set()

    def open(self) -> None:
        """Takes up what an earlier life left. Raises faults.Fault."""
        folder = self._folder
        wrong = folder.size_of(self.entry.digest)
        if wrong is not None and folder.size_of(self._part) is None:
            # Content that does not match its name: most of it may be right, and is compared chunk by chunk.
            self._adopt(wrong)
        data = folder.open_own(self._part, create=True)
        assert data is not None
        self._data = data
        notes = folder.open_own(self._got, create=True)
        assert notes is not None
        self._notes = notes
        try:
            self._read_notes()
        except OSError as error:
            raise faults.of_disk(folder.node, folder.shown(self._got), error) from None

    def _adopt(self, size: int) -> None:
        folder = self._folder
        folder.rename(self.entry.digest, self._part)
        folder.remove(self._got)
        notes = folder.open_own(self._got, create=True)
        assert notes is not None
        try:
            every = (index.to_bytes(4, "big") for index in range(chunks_in(min(size, self.entry.size))))
            os.write(notes, _HEAD + b"".join(every))
        except OSError as error:
            raise faults.of_disk(folder.node, folder.shown(self._got), error) from None
        finally:
            os.close(notes)

    def _read_notes(self) -> None:
        raw = os.pread(self._notes, len(_HEAD) + 8 * chunks_in(self.entry.size) + 64, 0)
        length = os.fstat(self._data).st_size
        if not raw.startswith(_HEAD):
            raw = b""
        body = raw[len(_HEAD) :]
        for at in range(0, len(body) - 3, 4):
            index = int.from_bytes(body[at : at + 4], "big")
            # A file that was cut short does not hold the chunks behind its end.
            if index < chunks_in(self.entry.size) and self._end(index) <= length:
                self.chunks.add(index)
        self._write_notes()

    def _write_notes(self) -> None:
        os.ftruncate(self._notes, 0)
        os.pwrite(self._notes, _HEAD + b"".join(i.to_bytes(4, "big") for i in sorted(self.chunks)), 0)
        os.lseek(self._notes, 0, os.SEEK_END)

    def close(self) -> None:
        for handle in (self._data, self._notes):
            if handle >= 0:
                os.close(handle)
        self._data = self._notes = -1

    def _end(self, index: int) -> int:
        return min((index + 1) * CHUNK, self.entry.size)

    def span(self, index: int) -> tuple[int, int]:
        """Offset and length of a chunk in bytes."""
        return index * CHUNK, self._end(index) - index * CHUNK

    def missing(self) -> Iterator[int]:
        """Chunks not yet there, in order."""
        return (index for index in range(chunks_in(self.entry.size)) if index not in self.chunks)

    @property
    def received(self) -> int:
        """Bytes noted."""
        with self._lock:
            return sum(self.span(index)[1] for index in self.chunks)

    def write(self, offset: int, data: memoryview | bytes) -> None:
        """Puts bytes in place; they count once their chunk is noted. Raises OSError."""
        view = memoryview(data)
        while view:
            written = os.pwrite(self._data, view, offset)
            view, offset = view[written:], offset + written

    def note(self, index: int) -> None:
        """Chunk `index` is whole. Its way to the disk begins, so that the rename later has little to wait for."""
        offset, length = self.span(index)
        _libc.sync_file_range(self._data, ctypes.c_int64(offset), ctypes.c_int64(length), _WRITE_BEHIND)
        with self._lock:
            if index not in self.chunks:
                os.write(self._notes, index.to_bytes(4, "big"))
                self.chunks.add(index)

    def forget(self, indexes: Sequence[int] | None = None) -> None:
        """These chunks, or all, are not right and are wanted anew."""
        with self._lock:
            self.chunks = set() if indexes is None else self.chunks - set(indexes)
            self._write_notes()
            if indexes is None:
                os.ftruncate(self._data, 0)

    def proven(self) -> bool:
        """Whether the content on this disk is the pinned one, read back whole. False also when it changed meanwhile."""
        before = os.fstat(self._data)
        if before.st_size > self.entry.size:
            os.ftruncate(self._data, self.entry.size)
            before = os.fstat(self._data)
        hasher = self.entry.hasher()
        if before.st_size != self.entry.size or not feed(hasher, self._data, 0, self.entry.size):
            return False
        after = os.fstat(self._data)
        same = (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns)
        return same and hasher.hexdigest() == self.entry.digest

    def differing(self, digests: Sequence[str], first: int) -> list[int]:
        """The chunks, from `first` on, whose sha256 is not the sender's."""
        told = enumerate(digests, first)
        return [index for index, digest in told if chunk_digest(self._data, *self.span(index)) != digest]

    def finish(self) -> os.stat_result:
        """Gives proven content its name, lasting. Raises faults.Fault and OSError."""
        os.fchmod(self._data, 0o644)
        os.fsync(self._data)
        forget_pages(self._data, 0, 0)
        self._folder.rename(self._part, self.entry.digest)
        self._folder.remove(self._got)
        status = os.fstat(self._data)
        self.close()
        return status


def feed(hasher: hashlib._Hash, handle: int, offset: int, length: int) -> bool:
    """Hashes a stretch of a file; False when the file ends before."""
    buffer = bytearray(min(_READ, length) or 1)
    view = memoryview(buffer)
    while length:
        read = os.preadv(handle, [view[: min(length, _READ)]], offset)
        if read == 0:
            return False
        hasher.update(view[:read])
        offset, length = offset + read, length - read
    return True


def chunk_digest(handle: int, offset: int, length: int) -> str:
    """The sha256 of a stretch, "" when the file ends before."""
    hasher = hashlib.sha256()
    return hasher.hexdigest() if feed(hasher, handle, offset, length) else ""


def forget_pages(handle: int, offset: int, length: int) -> None:
    """Takes a stretch out of the page cache (0 bytes: to the end): the engine wants that memory."""
    os.posix_fadvise(handle, offset, length, os.POSIX_FADV_DONTNEED)
