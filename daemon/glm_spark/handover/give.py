"""The leader's side, in a process: the pinned image, and nothing else, out of podman's store onto the disk."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from glm_spark.handover import faults, place, record
from glm_spark.handover.chain import Recipe, Unproven, follow
from glm_spark.handover.notes import recall, remember
from glm_spark.handover.room import want_room
from glm_spark.handover.store import Podman, machine
from glm_spark.weights import lists, manifest
from glm_spark.weights.faults import Fault
from glm_spark.weights.job import ImageJob, Job
from glm_spark.weights.look import Look
from glm_spark.weights.manifest import Entry


class Giver:
    """`settle` proves what was exported. `count` says how far it is: bytes done and in all."""

    def __init__(self, job: Job, settle: Callable[[], tuple[Look, ...]]) -> None:
        assert job.image is not None
        self._job = job
        self._image: ImageJob = job.image
        self._settle = settle
        self._pin = place.pin_of(self._image.digest)
        self._podman = Podman(job.node, self._image, place.temporary(self._image.cache))
        self._size = 0

    def count(self) -> tuple[int, int]:
        return min(self._podman.moved, self._size), self._size

    def run(self) -> None:
        """Raises Fault: not the pinned one, no room, podman's own words."""
        if recall(self._job.store.state, self._image.digest) is not None and self._complete():
            return
        place.clear(self._image.cache, self._job.store.state)
        recipe, told = self._prove()
        self._size = size = int(told["Size"])
        # The export, and podman's own copy of a layer, which may be nearly all of it.
        want_room(self._job.node, self._job.keep_free, {self._image.cache: 2 * size})
        folder = lists.snapshot(self._job.cache, self._pin)
        os.makedirs(folder.parent, mode=0o750, exist_ok=True)
        os.makedirs(place.temporary(self._image.cache), mode=0o700, exist_ok=True)
        self._podman.export(told["Id"], folder)
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(place.temporary(self._image.cache))
        entries = []
        for digest in recipe.contents:
            try:
                entries.append(Entry(path=digest, size=(folder / digest).stat().st_size, digest=digest))
            except FileNotFoundError:
                raise self._unproven(f"podman gives no content {digest[:12]}...") from None
        lists.keep(self._job.node, self._job.store.state, self._pin, self._listed(entries))
        remember(self._job.store.state, recipe)
        if not self._complete():
            place.clear(self._image.cache, self._job.store.state)
            raise self._unproven("what podman gives out is not what the pin says")

    def _complete(self) -> bool:
        return all(one.complete for one in self._settle())

    def _listed(self, entries: list[Entry]) -> manifest.Manifest:
        return manifest.of(self._pin.repository, self._pin.revision, entries)

    def _prove(self) -> tuple[Recipe, dict[str, Any]]:
        """The recipe from this Spark's own store, and what podman tells of the image."""
        image, where = self._image, self._job.node
        kept = record.known(Path(image.images), image.digest)
        told = self._podman.inspect(image.reference) or (self._podman.inspect(kept.config) if kept else None)
        if told is None:
            raise faults.leader_lacks(where, image.reference, where, "it is not in podman's store here")
        documents = self._podman.documents(told["Id"])
        if kept is not None:
            documents = {**{digest: text.encode() for digest, text in kept.documents.items()}, **documents}

        def document(digest: str) -> bytes:
            if digest not in documents:
                raise Unproven(f"podman's store has no document {digest[:12]}... that proves it")
            return documents[digest]

        try:
            recipe = follow(image.digest, machine(), document)
        except Unproven as broken:
            raise self._unproven(str(broken)) from None
        if told["Layers"] != recipe.layers:
            raise self._unproven("podman's store has another image under this name")
        return recipe, told

    def _unproven(self, why: str) -> Fault:
        return faults.unproven(self._job.node, self._image.reference, self._job.node, why)
