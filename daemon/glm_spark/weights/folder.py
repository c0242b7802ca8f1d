"""One repository's folder in the cache, for writing: every step opened by its parent, no link ever followed.

What is written bears names made here from digests and judged paths; what was found there and is not a plain file or
folder of this user's is a Fault, never followed and never replaced.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from types import TracebackType
from typing import Self

from glm_spark.weights import faults, layout
from glm_spark.weights.manifest import Entry

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MODE = 0o755  # as the Hub's own client makes them: a container reads them, perhaps under another user


class Folder:
    """CACHE/hub/models--OWNER--NAME, held open. `with Folder(...) as folder`. Raises faults.Fault.

    The cache itself may be a link or a mount of the owner's; nothing below it may be.
    """

    def __init__(self, node: str, cache: str, repository: str) -> None:
        self.node = node
        self.path = os.path.join(cache, "hub", layout.folder(repository))
        self._cache = cache
        self._parts = ("hub", layout.folder(repository))
        self._root = -1
        self._blobs = -1

    def __enter__(self) -> Self:
        try:
            os.makedirs(self._cache, mode=0o750, exist_ok=True)
            here = os.open(self._cache, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise faults.of_disk(self.node, self._cache, error) from None
        shown = self._cache
        for part in self._parts:
            shown = os.path.join(shown, part)
            try:
                below = self._enter(here, part, shown)
            finally:
                os.close(here)
            here = below
        self._root = here
        try:
            self._blobs = self._enter(self._root, "blobs", os.path.join(self.path, "blobs"))
        except faults.Fault:
            os.close(self._root)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.close(self._blobs)
        os.close(self._root)

    def shown(self, name: str) -> str:
        """A blob's path, for messages."""
        return os.path.join(self.path, "blobs", name)

    def size_of(self, name: str) -> int | None:
        """Bytes of a plain file in blobs/; None where there is none. A link or a device there is a Fault.

        A blob that is a link into a configured root is used for reading; where it is asked for here, it was found
        missing or wrong, and is not ours to replace.
        """
        try:
            status = os.stat(name, dir_fd=self._blobs, follow_symlinks=False)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise faults.of_disk(self.node, self.shown(name), error) from None
        if not stat.S_ISREG(status.st_mode):
            raise faults.planted(self.node, self.shown(name))
        return status.st_size

    def allocated(self, *names: str) -> int:
        """Bytes on the disk of the first of these blobs that is there; 0 for none."""
        for name in names:
            with contextlib.suppress(OSError):
                return 512 * os.stat(name, dir_fd=self._blobs, follow_symlinks=False).st_blocks
        return 0

    def open_own(self, name: str, *, create: bool) -> int | None:
        """A file of ours in blobs/ for reading and writing; None where it is not there and not to be made.

        Raises a Fault for a link, a file with a second name, or one of another user.
        """
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            try:
                handle = os.open(name, flags, dir_fd=self._blobs)
            except FileNotFoundError:
                if not create:
                    return None
                return os.open(name, flags | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=self._blobs)
        except OSError as error:
            if error.errno in (errno.EEXIST, errno.ENXIO, errno.EISDIR):
                raise faults.planted(self.node, self.shown(name)) from None
            raise faults.of_disk(self.node, self.shown(name), error) from None
        status = os.fstat(handle)
        if stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and status.st_uid == os.geteuid():
            return handle
        os.close(handle)
        if status.st_uid != os.geteuid():
            raise faults.not_owned(self.node, self.shown(name), status.st_uid)
        raise faults.planted(self.node, self.shown(name))

    def rename(self, name: str, to: str) -> None:
        """Inside blobs/, made lasting."""
        try:
            os.rename(name, to, src_dir_fd=self._blobs, dst_dir_fd=self._blobs)
            os.fsync(self._blobs)
        except OSError as error:
            raise faults.of_disk(self.node, self.shown(to), error) from None

    def remove(self, name: str) -> None:
        """A name in blobs/, if it is there; what it may lead to stays."""
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._blobs)
        except OSError as error:
            raise faults.of_disk(self.node, self.shown(name), error) from None

    def link(self, revision: str, entry: Entry) -> None:
        """The snapshot's name for a blob. One that is there already and leads elsewhere is a Fault."""
        *above, name = layout.components(entry.path)
        shown = os.path.join(self.path, "snapshots", revision)
        target = layout.link_target(entry.path, entry.digest)
        here = self._enter(self._root, "snapshots", os.path.dirname(shown))
        try:
            for part in (revision, *above):
                below = self._enter(here, part, shown)
                os.close(here)
                here, shown = below, os.path.join(shown, part)
            try:
                os.symlink(target, name, dir_fd=here)
                os.fsync(here)
            except FileExistsError:
                self._expect(here, name, target, os.path.join(self.path, "snapshots", revision, entry.path))
            except OSError as error:
                raise faults.of_disk(self.node, shown, error) from None
        finally:
            os.close(here)

    def _expect(self, here: int, name: str, target: str, shown: str) -> None:
        try:
            found = os.readlink(name, dir_fd=here)
        except OSError:
            found = None
        if found is None or os.path.normpath(found) != os.path.normpath(target):
            raise faults.planted(self.node, shown)

    def _enter(self, parent: int, name: str, shown: str) -> int:
        """Opens a folder in an open one, made when missing."""
        try:
            try:
                return os.open(name, _DIRECTORY, dir_fd=parent)
            except FileNotFoundError:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, _MODE, dir_fd=parent)
                    os.fsync(parent)
                return os.open(name, _DIRECTORY, dir_fd=parent)
        except OSError as error:
            raise faults.of_disk(self.node, shown, error) from None
