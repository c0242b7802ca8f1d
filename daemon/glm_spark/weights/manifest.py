"""The list of files of one revision, and how content is compared with it. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from glm_spark.config.keys import REPOSITORY, REVISION
from glm_spark.weights import layout

if TYPE_CHECKING:
    from hashlib import _Hash

MOST_FILES = 4000
LARGEST_FILE = 1 << 44  # bytes


class Entry(BaseModel):
    """One file: its path in the repository, its size in bytes and its digest (sha256, or the git blob id)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str = Field(max_length=1024)
    size: int = Field(ge=0, le=LARGEST_FILE)
    digest: str

    @field_validator("path")
    @classmethod
    def _path(cls, value: str) -> str:
        layout.components(value)
        return value

    @field_validator("digest")
    @classmethod
    def _digest(cls, value: str) -> str:
        if not layout.is_digest(value):
            raise ValueError("neither a sha256 nor a git blob id")
        return value

    @property
    def large(self) -> bool:
        """In LFS, hashed with sha256."""
        return len(self.digest) == 64

    def hasher(self) -> _Hash:
        """A hash that comes to `digest` once it has been fed the file's content."""
        if self.large:
            return hashlib.sha256()
        return hashlib.sha1(f"blob {self.size}\0".encode(), usedforsecurity=False)


class Manifest(BaseModel):
    """All files of one revision, by path in byte order: no shell's idea of sorting plays a part.

    `derived` is one read off a cache's links: it cannot know of a file that was never begun.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    repository: str = Field(pattern=REPOSITORY)
    revision: str = Field(pattern=REVISION)
    files: tuple[Entry, ...] = Field(min_length=1, max_length=MOST_FILES)
    derived: bool = False

    @model_validator(mode="after")
    def _consistent(self) -> Manifest:
        paths = {entry.path for entry in self.files}
        if len(paths) != len(self.files):
            raise ValueError("a path is listed twice")
        for path in paths:
            above = path.split("/")[:-1]
            if any("/".join(above[: depth + 1]) in paths for depth in range(len(above))):
                raise ValueError("a path is both a file and a folder")
        sizes: dict[str, int] = {}
        if any(sizes.setdefault(entry.digest, entry.size) != entry.size for entry in self.files):
            raise ValueError("one content is listed with two sizes")
        return self

    @property
    def size(self) -> int:
        """Bytes of content, each counted once."""
        return sum(entry.size for entry in self.blobs())

    def blobs(self) -> tuple[Entry, ...]:
        """One entry for each content, in the order of the paths."""
        return tuple({entry.digest: entry for entry in reversed(self.files)}.values())[::-1]

    def blob(self, digest: str) -> Entry | None:
        return next((entry for entry in self.files if entry.digest == digest), None)

    def tree(self) -> str:
        """The id of the git tree that these files make, all with mode 0644.

        A file in LFS stands in the tree as its pointer, whose text follows from its digest and size; so the whole
        list can be checked against one pinned id.
        """
        root: dict[str, object] = {}
        for entry in self.files:
            *above, name = entry.path.split("/")
            here = root
            for part in above:
                here = here.setdefault(part, {})  # type: ignore[assignment]  # a folder, by _consistent
            here[name] = pointer_id(entry) if entry.large else entry.digest
        return _tree(root).hex()


def of(repository: str, revision: str, files: Iterable[Entry], *, derived: bool = False) -> Manifest:
    """A manifest in its one order. Raises ValueError."""
    ordered = tuple(sorted(files, key=lambda entry: entry.path.encode()))
    return Manifest(repository=repository, revision=revision, files=ordered, derived=derived)


def pointer_id(entry: Entry) -> str:
    """The git blob id of the LFS pointer of a file (git-lfs pointer format, version 1)."""
    text = f"version https://git-lfs.github.com/spec/v1\noid sha256:{entry.digest}\nsize {entry.size}\n".encode()
    return hashlib.sha1(b"blob %d\0" % len(text) + text, usedforsecurity=False).hexdigest()


def _tree(folder: dict[str, object]) -> bytes:
    """A git tree object's id: entries sort by name, a folder as if it ended in a slash."""
    rows = []
    for name, item in folder.items():
        raw = name.encode()
        if isinstance(item, dict):
            rows.append((raw + b"/", b"40000 " + raw + b"\0" + _tree(item)))
        else:
            rows.append((raw, b"100644 " + raw + b"\0" + bytes.fromhex(str(item))))
    body = b"".join(row for _, row in sorted(rows))
    return hashlib.sha1(b"tree %d\0" % len(body) + body, usedforsecurity=False).digest()


def encode(manifest: Manifest) -> bytes:
    """Compact JSON, for a file or the wire."""
    rows = [[entry.path, entry.size, entry.digest] for entry in manifest.files]
    told: dict[str, object] = {"repository": manifest.repository, "revision": manifest.revision, "files": rows}
    if manifest.derived:
        told["derived"] = True
    return json.dumps(told, separators=(",", ":")).encode()


def decode(raw: bytes) -> Manifest:
    """The reverse; ValueError for anything that is no manifest."""
    try:
        told = json.loads(raw)
        rows = [Entry(path=path, size=size, digest=digest) for path, size, digest in told["files"][: MOST_FILES + 1]]
        return of(told["repository"], told["revision"], rows, derived=told.get("derived", False) is True)
    except (KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError("not a list of files") from None
