"""What of the cache no pin needs any more. Pure but for reading folders; `remove` deletes exactly what was shown."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from glm_spark.handover import place
from glm_spark.weights import faults, layout, lists
from glm_spark.weights.look import Store
from glm_spark.weights.pins import Pin


@dataclass(frozen=True, slots=True)
class Spare:
    """A blob without a use, an old revision's folder of links, or with `whole` a folder that goes with all that is in
    it. `size` in bytes on the disk."""

    path: str
    size: int
    why: str
    whole: bool = False


def spare(store: Store, pins: Iterable[Pin]) -> tuple[Spare, ...]:
    """In the folders of the pinned repositories only: other revisions' links, and blobs that no pinned list names.

    A repository whose list is not known here is left alone: nothing says what it needs.
    """
    found: list[Spare] = []
    wanted = [pin for pin in pins if not pin.path]
    for repository in dict.fromkeys(pin.repository for pin in wanted):
        ours = [pin for pin in wanted if pin.repository == repository]
        known = [lists.kept(store.state, pin) for pin in ours]
        if any(one is None for one in known):
            continue
        top = Path(store.cache, "hub", layout.folder(repository))
        needed = {entry.digest for one in known if one is not None for entry in one.files}
        found += _revisions(top, {pin.revision for pin in ours})
        found += _blobs(top / "blobs", needed)
    return tuple(found)


def of_image(store: Store) -> tuple[Spare, ...]:
    """What is left of an image that was to be handed over, unless a process is at it now."""
    folder = place.top(store.cache)
    if not folder.is_dir() or folder.is_symlink() or place.at_work(place.state(store.state)):
        return ()
    return (Spare(str(folder), place.size(store.cache), "an image that was to be handed over", whole=True),)


def _revisions(top: Path, pinned: set[str]) -> Iterable[Spare]:
    with contextlib.suppress(OSError):
        for row in sorted(os.scandir(top / "snapshots"), key=lambda row: row.name):
            if row.is_dir(follow_symlinks=False) and row.name not in pinned:
                yield Spare(row.path, 0, "links of a revision that is not pinned")


def _blobs(blobs: Path, needed: set[str]) -> Iterable[Spare]:
    with contextlib.suppress(OSError):
        for row in sorted(os.scandir(blobs), key=lambda row: row.name):
            status = row.stat(follow_symlinks=False)
            digest = row.name.removesuffix(layout.PART).removesuffix(layout.GOT)
            if not stat.S_ISREG(status.st_mode) or digest.partition(".")[0] in needed:
                continue
            if layout.is_digest(digest.partition(".")[0]):
                yield Spare(row.path, 512 * status.st_blocks, "no pinned revision needs it")


def remove(node: str, found: Sequence[Spare]) -> int:
    """Deletes them; the bytes that were freed. No link is followed. Raises faults.Fault."""
    freed = 0
    for one in found:
        try:
            if one.whole:
                shutil.rmtree(one.path)
            elif os.path.isdir(one.path) and not os.path.islink(one.path):
                _clear(Path(one.path))
            else:
                os.unlink(one.path)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise faults.of_disk(node, one.path, error) from None
        freed += one.size
    return freed


def _clear(folder: Path) -> None:
    """A folder of links and folders; plain files in it are somebody's and keep it."""
    for row in list(os.scandir(folder)):
        if row.is_dir(follow_symlinks=False):
            _clear(Path(row.path))
        elif row.is_symlink():
            os.unlink(row.path)
    with contextlib.suppress(OSError):
        folder.rmdir()
