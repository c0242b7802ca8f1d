"""Reading content and comparing it with its digest, several files at once."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable

from glm_spark.weights import faults
from glm_spark.weights.look import FileLook
from glm_spark.weights.manifest import Entry
from glm_spark.weights.partial import forget_pages
from glm_spark.weights.remembered import mark

_STRETCH = 32 << 20  # bytes between two looks at the clock and the page cache


def hands() -> int:
    """How many hash at once: a Spark has 20 cores, and its disk feeds about eight."""
    return min(8, len(os.sched_getaffinity(0)))


def prove(
    node: str, files: Iterable[FileLook], on_bytes: Callable[[int], None], workers: int | None = None
) -> dict[str, tuple[os.stat_result, str]]:
    """The status and digest of each file's content by its real path, as `Remembered.add` takes them.

    A file whose content is another one is told with digest "". Raises faults.Fault when a disk cannot be read.
    """
    waiting = sorted({file.real: file.entry for file in files}.items(), key=lambda row: row[1].size)
    found: dict[str, tuple[os.stat_result, str]] = {}
    failed: list[faults.Fault] = []
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                if not waiting or failed:
                    return
                real, entry = waiting.pop()
            try:
                result = _proved(real, entry, on_bytes)
            except OSError as error:
                with lock:
                    failed.append(faults.of_disk(node, real, error))
                return
            with lock:
                found[real] = result

    threads = [threading.Thread(target=work, name=f"hash {n}") for n in range(workers or hands())]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return found


def _proved(real: str, entry: Entry, on_bytes: Callable[[int], None]) -> tuple[os.stat_result, str]:
    handle = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        before = os.fstat(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        hasher = entry.hasher()
        buffer = bytearray(1 << 20)
        view = memoryview(buffer)
        offset = dropped = 0
        while read := os.preadv(handle, [view], offset):
            hasher.update(view[:read])
            offset += read
            on_bytes(read)
            if offset - dropped >= _STRETCH:
                forget_pages(handle, dropped, offset - dropped)
                dropped = offset
        forget_pages(handle, 0, 0)
        right = hasher.hexdigest() == entry.digest and mark(os.fstat(handle)) == mark(before)
        return before, entry.digest if right else ""
    finally:
        os.close(handle)
