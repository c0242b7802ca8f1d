"""How the weights on this Spark are, without reading their content: one look at each file, and what is remembered."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from glm_spark.finding import Finding, Severity
from glm_spark.weights import lists
from glm_spark.weights.faults import amount, finding
from glm_spark.weights.manifest import Entry, Manifest
from glm_spark.weights.pins import Pin
from glm_spark.weights.remembered import Remembered


class How(StrEnum):
    VERIFIED = "verified"
    UNPROVEN = "unproven"  # there, with the right size; its content was not read yet, or it changed since
    WRONG = "wrong"  # there, with another size or another content
    MISSING = "missing"
    OUTSIDE = "outside"  # a link that leads out of the configured roots


@dataclass(frozen=True, slots=True)
class FileLook:
    """One file of a pinned revision. `real` is the path behind its links, "" where there is none to read."""

    entry: Entry
    how: How
    real: str = ""


@dataclass(frozen=True, slots=True)
class Look:
    """One pin. `manifest` is None while nobody told this Spark which files there are, or where a path is served."""

    pin: Pin
    manifest: Manifest | None
    files: tuple[FileLook, ...] = ()
    findings: tuple[Finding, ...] = ()  # of a directory that is served as it is

    def of(self, *kinds: How) -> tuple[FileLook, ...]:
        """Files of these kinds, each content once."""
        return tuple({file.entry.digest: file for file in self.files if file.how in kinds}.values())

    @property
    def complete(self) -> bool:
        """Everything is there and proven; a directory that is served as it is, there."""
        if self.pin.path:
            return not self.findings
        return self.manifest is not None and all(file.how is How.VERIFIED for file in self.files)

    @property
    def present(self) -> bool:
        """Everything is there, at least by its size."""
        return self.manifest is not None and all(file.how in (How.VERIFIED, How.UNPROVEN) for file in self.files)


@dataclass(frozen=True, slots=True)
class Store:
    """Where this Spark has its weights: the cache, further roots that links may lead into, its state directory.

    `derive`: with no kept list of files, the one that the cache's links show will do.
    """

    node: str
    cache: str
    state: Path
    roots: tuple[str, ...] = ()
    derive: bool = False


def look(store: Store, pins: Iterable[Pin]) -> tuple[Look, ...]:
    """One Look for each pin. Never raises for the sake of a file."""
    known = Remembered(store.state)
    return tuple(_look(store, pin, known) for pin in pins)


def _look(store: Store, pin: Pin, known: Remembered) -> Look:
    if pin.path:
        return Look(pin, None, findings=_served_as_it_is(store.node, pin))
    manifest = lists.kept(store.state, pin)
    if manifest is None and store.derive:
        manifest = lists.derived(store.cache, pin)
    if manifest is None:
        return Look(pin, None)
    top = lists.snapshot(store.cache, pin)
    roots = real_roots(store)
    return Look(pin, manifest, tuple(_file(top, entry, roots, known) for entry in manifest.files))


def _served_as_it_is(node: str, pin: Pin) -> tuple[Finding, ...]:
    key = "model.path" if pin.kind == "checkpoint" else "model.drafter_path"
    if os.path.isfile(os.path.join(pin.path, "config.json")):
        return ()
    measured = "no config.json in it" if os.path.isdir(pin.path) else "no such directory"
    fix = f"Put the {pin.kind} there, or take {key} out so that the Hugging Face cache is used."
    return (finding(node, "path", f"{key} = {pin.path}", measured, "a snapshot of the model", fix),)


def real_roots(store: Store) -> tuple[str, ...]:
    return tuple(os.path.realpath(root) for root in (store.cache, *store.roots))


def resolve(path: str | Path, roots: Sequence[str]) -> str | None:
    """The real path behind links; None when it leads out of the roots. Raises OSError when there is nothing."""
    real = os.path.realpath(path, strict=True)
    return real if any(real == root or real.startswith(root.rstrip("/") + "/") for root in roots) else None


def _file(top: Path, entry: Entry, roots: Sequence[str], known: Remembered) -> FileLook:
    try:
        real = resolve(top / entry.path, roots)
        if real is None:
            return FileLook(entry, How.OUTSIDE)
        status = os.stat(real, follow_symlinks=False)
    except OSError:
        return FileLook(entry, How.MISSING)
    if not stat.S_ISREG(status.st_mode) or status.st_size != entry.size:
        return FileLook(entry, How.WRONG, real)
    digest = known.digest_of(real, status)
    if digest is None:
        return FileLook(entry, How.UNPROVEN, real)
    return FileLook(entry, How.VERIFIED if digest == entry.digest else How.WRONG, real)


def told(node: str, looks: Iterable[Look]) -> tuple[Finding, ...]:
    """What is not complete, a Finding for each pin and kind; none when a start has nothing to do."""
    found: list[Finding] = []
    for one in looks:
        found.extend(one.findings)
        if one.pin.path:
            continue
        if one.manifest is None:
            size = f", about {one.pin.size_gb:g} GB" if one.pin.size_gb else ""
            found.append(
                finding(node, "missing", one.pin.name, f"the {one.pin.kind} is not here{size}", "all of it", _FETCH)
            )
            continue
        for kind, code, fix in _TOLD:
            files = one.of(kind)
            if files:
                size = amount(sum(file.entry.size for file in files))
                examples = ", ".join(file.entry.path for file in files[:3]) + (", ..." if len(files) > 3 else "")
                measured = f"{len(files)} of {len(one.manifest.blobs())} files {_WORDS[kind]} ({size}): {examples}"
                severity = Severity.NOTE if kind is How.UNPROVEN else Severity.ERROR
                wanted = "every file with its pinned content"
                found.append(finding(node, code, one.pin.name, measured, wanted, fix, severity))
    return tuple(found)


_FETCH = "On the leader: glm-spark weights fetch; workers get theirs from it over the cable when the set starts."
_WORDS = {
    How.MISSING: "missing",
    How.WRONG: "wrong",
    How.OUTSIDE: "behind links that lead out of the cache",
    How.UNPROVEN: "not verified yet",
}
_TOLD = (
    (How.MISSING, "missing", _FETCH),
    (How.WRONG, "wrong", f"They are replaced by the next start. {_FETCH}"),
    (How.OUTSIDE, "outside", "Name the directory they lie in under weights.roots, or remove the links."),
    (How.UNPROVEN, "unproven", "Nothing to do: the next start verifies them; glm-spark weights verify does it now."),
)
