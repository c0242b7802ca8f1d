"""Names in a Hugging Face cache. Pure: every name that comes from a peer or from the Hub passes here first.

CACHE/hub/models--OWNER--NAME/blobs/DIGEST holds the content, snapshots/REVISION/PATH are links to it. A digest is
the sha256 of a file in LFS (64 digits) or the git blob id of any other (40 digits).
"""

from __future__ import annotations

import re

PART = ".glm-part"  # a blob under way
GOT = ".glm-got"  # which of its chunks are there
LONGEST_NAME = 255 - len(PART)
DEEPEST = 12
_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def is_digest(text: str) -> bool:
    return _DIGEST.fullmatch(text) is not None


def folder(repository: str) -> str:
    """The folder of a repository below CACHE/hub. The configuration has judged the name's form."""
    return f"models--{repository.replace('/', '--')}"


def components(path: str) -> tuple[str, ...]:
    """A file's path inside its repository, split; ValueError for one that could lead anywhere else."""
    parts = tuple(path.split("/"))
    if len(parts) > DEEPEST:
        raise ValueError(f"nested more than {DEEPEST} deep")
    for part in parts:
        if part in ("", ".", "..") or not part.isprintable() or "\\" in part:
            raise ValueError("not a plain relative path")
        if len(part.encode(errors="surrogatepass")) > LONGEST_NAME:
            raise ValueError("a name is too long")
        if part.endswith((PART, GOT)):
            raise ValueError("a name that is kept for transfers")
    return parts


def link_target(path: str, digest: str) -> str:
    """What the snapshot's link for `path` holds: the blob, relative to the link's own directory."""
    return "../" * (len(components(path)) + 1) + f"blobs/{digest}"
