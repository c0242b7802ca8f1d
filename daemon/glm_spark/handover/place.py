"""Where an image lies while it is on its way: a folder of its own in model.cache, all of it ours to clear."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from pathlib import Path

from glm_spark.weights.pins import Pin

NAME = "glm-spark-image"
EXPORT_SECONDS = 120.0  # how long an export that nobody asks for is kept: a worker may be starting anew


def top(cache: str) -> Path:
    """The folder below model.cache."""
    return Path(cache, NAME)


def state(directory: Path) -> Path:
    """Its notes, below the state directory's `weights`."""
    return directory / "image"


def pin_of(digest: str) -> Pin:
    """An image as the transfer of weights knows it: a repository whose files are named by their own sha256.

    What is accepted is proven from the whole digest; this is only what the two sides call it.
    """
    return Pin(kind="image", repository="engine/image", revision=digest[:40])


def temporary(cache: str) -> Path:
    """Where podman puts its own copies meanwhile."""
    return top(cache) / "tmp"


def layout(cache: str) -> Path:
    """What podman loads."""
    return top(cache) / "layout"


def clear(cache: str, notes: Path) -> None:
    """Removes all of it, following no link. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(top(cache))
    with contextlib.suppress(FileNotFoundError):
        for name in ("manifests", "verified.json", "recipe.json"):
            path = notes / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def at_work(notes: Path) -> bool:
    """Whether a process exports or takes an image now."""
    try:
        with open(notes / "lock", "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def size(cache: str) -> int:
    """Bytes on the disk, 0 where there is nothing."""
    total = 0
    for here, _, names in os.walk(top(cache)):
        for name in names:
            with contextlib.suppress(OSError):
                total += 512 * os.lstat(os.path.join(here, name)).st_blocks
    return total
