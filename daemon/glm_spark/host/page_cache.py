"""The weights' pages in the page cache: given back to the kernel before a start, since the GPU driver cannot have them.

MemAvailable counts cached pages as available, a GB10's driver allocates from what is free: the engine was seen to start
with fewer slots beside a full cache, silently.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator

MOST_FILES = 20_000
WORTH_BYTES = 1 << 20


def weight_files(folders: Iterable[str]) -> Iterator[str]:
    """The large files below the folders and of the Hugging Face cache entry they lie in, each once, by real path.

    A snapshot is a folder of links into blobs/ beside it; a link that leads out of both is left alone.
    """
    seen: set[str] = set()
    for folder in folders:
        root = os.path.realpath(folder)
        home = root.rpartition("/snapshots/")[0] or root
        for where, _, names in os.walk(root):
            for name in names:
                path = os.path.realpath(os.path.join(where, name))
                if path in seen or not path.startswith(f"{home}/"):
                    continue
                seen.add(path)
                if len(seen) > MOST_FILES:
                    return
                yield path


def give_back(folders: Iterable[str]) -> int:
    """Tells the kernel that these files' pages are not needed; the bytes of the files. Blocks on the disk.

    It changes no file and needs no right but reading. Pages that a program has mapped stay.
    """
    told = 0
    for path in weight_files(folders):
        try:
            file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            about = os.fstat(file)
            if stat.S_ISREG(about.st_mode) and about.st_size >= WORTH_BYTES:
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
                told += about.st_size
        except OSError:
            continue
        finally:
            os.close(file)
    return told
