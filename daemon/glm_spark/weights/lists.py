"""Where the list of files of a pinned revision comes from on this Spark: kept from the Hub or the leader, or read off
the cache's own links, whose names are the digests."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

from glm_spark.weights import layout, manifest, remembered
from glm_spark.weights.faults import Fault, fault
from glm_spark.weights.manifest import Entry, Manifest
from glm_spark.weights.pins import Pin

LARGEST_LIST = 16 << 20  # bytes


def snapshot(cache: str, pin: Pin) -> Path:
    """The directory that the engine is given."""
    return Path(pin.path or Path(cache, "hub", layout.folder(pin.repository), "snapshots", pin.revision))


def _file(state: Path, pin: Pin) -> Path:
    return state / "manifests" / layout.folder(pin.repository) / f"{pin.revision}.json"


def kept(state: Path, pin: Pin) -> Manifest | None:
    """The list that was kept for a pin; one that cannot be read, or belongs to another, counts as none."""
    with contextlib.suppress(OSError, ValueError):
        file = _file(state, pin)
        if file.stat().st_size <= LARGEST_LIST:
            found = manifest.decode(file.read_bytes())
            return found if belongs(pin, found) else None
    return None


def belongs(pin: Pin, found: Manifest) -> bool:
    """Whether a list is that of the pin: by name, and by the pinned tree where there is one."""
    named = (found.repository, found.revision) == (pin.repository, pin.revision)
    return named and pin.tree in ("", found.tree())


def keep(node: str, state: Path, pin: Pin, found: Manifest) -> None:
    """Keeps a list for good. Raises Fault for one that is not the pin's."""
    if not belongs(pin, found):
        raise fault(
            node,
            "list-differs",
            pin.name,
            f"a list of files of {found.repository}@{found.revision[:12]} with tree {found.tree()}",
            f"tree {pin.tree}" if pin.tree else "the list of the pinned revision",
            "Give all Sparks the same [model] settings and the same version of glm-spark.",
        )
    file = _file(state, pin)
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        remembered.write_lasting(file, manifest.encode(found))
    except OSError as error:
        raise _of_state(node, file, error) from None


def _of_state(node: str, file: Path, error: OSError) -> Fault:
    fix = "See df -h and journalctl -k on this Spark."
    return fault(node, "state", str(file), error.strerror or str(error), "a state directory that can be written", fix)


def derived(cache: str, pin: Pin) -> Manifest | None:
    """The list as a cache's links show it, where they show a whole checkpoint; None otherwise.

    A cache that was filled by other means has links named by the Hub's digests. A file that was never begun leaves
    no trace, so all parts that the checkpoint's own index names have to be there, or its one part.
    """
    top = snapshot(cache, pin)
    try:
        entries = list(_links(top, ""))
        found = manifest.of(pin.repository, pin.revision, entries, derived=True)
    except (OSError, ValueError):
        return None
    paths = {entry.path for entry in found.files}
    if not {"config.json", *_parts(top)} <= paths or not belongs(pin, found):
        return None
    return found


def _links(top: Path, below: str) -> Iterator[Entry]:
    with os.scandir(top / below) as rows:
        for row in rows:
            path = f"{below}/{row.name}" if below else row.name
            if row.is_dir(follow_symlinks=False):
                yield from _links(top, path)
            else:
                # Anything but a link (OSError) tells no digest, and then nothing can be read off this cache.
                digest = os.path.basename(os.readlink(row.path))
                yield Entry(path=path, size=os.stat(row.path).st_size, digest=digest)


def _parts(top: Path) -> set[str]:
    """The files that hold the tensors: those the checkpoint's index names, without an index the only one."""
    with contextlib.suppress(OSError, ValueError, AttributeError, KeyError, TypeError):
        return set(map(str, json.loads((top / "model.safetensors.index.json").read_bytes())["weight_map"].values()))
    return {"model.safetensors"}
