"""A worker's side, in a process: asks step by step for what its own pin proves, has podman load it."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from glm_spark.cluster.protocol import ProtocolFault
from glm_spark.handover import faults, notes, place, record
from glm_spark.handover.chain import Recipe, Unproven, follow
from glm_spark.handover.room import want_room
from glm_spark.handover.store import Podman, machine
from glm_spark.weights import layout, lists, manifest, remembered
from glm_spark.weights.faults import Fault
from glm_spark.weights.job import ImageJob, Job
from glm_spark.weights.look import How, Look
from glm_spark.weights.manifest import Entry
from glm_spark.weights.wire import Answer, Ask, Wire

NAME = "localhost/glm-spark/engine"  # keeps podman image prune from taking it


class Taker:
    """`settle` proves what came already. `learn` is called on the first connection, `load` once all is there."""

    def __init__(self, job: Job, settle: Callable[[], tuple[Look, ...]]) -> None:
        assert job.image is not None
        assert job.door is not None
        self._job = job
        self._leader = job.door.leader
        self._image: ImageJob = job.image
        self._settle = settle
        self._pin = place.pin_of(self._image.digest)
        self._podman = Podman(job.node, self._image, place.temporary(self._image.cache))
        self._size = 0

    def count(self) -> tuple[int, int]:
        """How far podman is with loading it."""
        return min(self._podman.moved, self._size), self._size

    @property
    def received(self) -> bool:
        """Whether an earlier life had all of it already."""
        known = notes.recall(self._job.store.state, self._image.digest)
        return known is not None and all(one.complete for one in self._settle())

    def learn(self, wire: Wire) -> None:
        """What there is to bring: proven from the pin, only the layers' sizes are the leader's word. Raises Fault."""

        def document(digest: str) -> bytes:
            return self._asked(wire, Ask(ask="document", **self._named, blob=digest)).document.encode()

        try:
            recipe = follow(self._image.digest, machine(), document)
        except Unproven as broken:
            raise self._unproven(str(broken)) from None
        told = self._asked(wire, Ask(ask="list", **self._named))
        try:
            sizes = {entry.digest: entry.size for entry in manifest.decode(told.list.encode()).files}
        except ValueError as error:
            raise ProtocolFault(4400, f"the list of contents cannot be used: {error}") from None
        if lacking := [digest for digest in recipe.contents if digest not in sizes]:
            raise self._unproven(f"{self._leader} does not have its content {lacking[0][:12]}...")
        entries = [Entry(path=digest, size=sizes[digest], digest=digest) for digest in recipe.contents]
        listed = manifest.of(self._pin.repository, self._pin.revision, entries)
        lists.keep(self._job.node, self._job.store.state, self._pin, listed)
        notes.remember(self._job.store.state, recipe)
        self._drop_others(set(recipe.contents))
        self._want_room(listed.size)

    @property
    def _named(self) -> dict[str, str]:
        return {"repository": self._pin.repository, "revision": self._pin.revision}

    def _asked(self, wire: Wire, ask: Ask) -> Answer:
        wire.say(ask)
        answer = wire.hear_answer()
        if answer.refused:
            raise self.lacks(answer.text)
        return answer

    def lacks(self, text: str) -> Fault:
        return faults.leader_lacks(
            self._job.node, self._image.reference, self._leader, f"{self._leader} says: {text}" if text else ""
        )

    def _unproven(self, why: str) -> Fault:
        return faults.unproven(self._job.node, self._image.reference, self._leader, why)

    def _drop_others(self, wanted: set[str]) -> None:
        """What is left of another image: nothing asks for it any more."""
        blobs = os.path.join(self._job.cache, "hub", layout.folder(self._pin.repository), "blobs")
        with contextlib.suppress(FileNotFoundError):
            for row in list(os.scandir(blobs)):
                if row.name.partition(".")[0] not in wanted:
                    os.unlink(row.path)

    def _want_room(self, size: int) -> None:
        """For what is missing, for podman's store, and for the copy that podman makes on the way."""
        there = 0
        for one in self._settle():
            there += sum(file.entry.size for file in one.of(How.VERIFIED))
        blobs = os.path.join(self._job.cache, "hub", layout.folder(self._pin.repository), "blobs")
        with contextlib.suppress(FileNotFoundError):
            for row in os.scandir(blobs):
                if row.name.endswith(layout.PART):
                    there += 512 * row.stat(follow_symlinks=False).st_blocks
        root, _ = self._podman.root()
        want_room(
            self._job.node, self._job.keep_free, {self._image.cache: max(0, size - there) + size, str(root): size}
        )

    def load(self) -> None:
        """Into podman's store; then what was on its way is cleared. Raises Fault and OSError."""
        recipe = notes.recall(self._job.store.state, self._image.digest)
        listed = lists.kept(self._job.store.state, self._pin)
        if recipe is None or listed is None:
            raise self._unproven("its list of contents is gone")
        self._size = listed.size
        self._compose(recipe, {entry.digest: entry.size for entry in listed.files})
        try:
            self._podman.load(place.layout(self._image.cache))
        except Fault:
            # Maybe for what the disk did to a content since it was proven: the next try reads all of it again.
            (self._job.store.state / remembered.NAME).unlink(missing_ok=True)
            raise
        found = self._podman.inspect(recipe.config)
        if found is None or found["Id"] != recipe.config or found["Layers"] != recipe.layers:
            raise faults.podman(self._job.node, self._image.reference, "podman pull: it made another image of it")
        self._podman.tag(recipe.config, f"{NAME}:{self._image.digest[:12]}")
        record.keep(Path(self._image.images), recipe)
        place.clear(self._image.cache, self._job.store.state)

    def _compose(self, recipe: Recipe, sizes: dict[str, int]) -> None:
        """A folder as podman's dir: transport wants it: a manifest of our own, links to the proven contents."""
        to, temporary = place.layout(self._image.cache), place.temporary(self._image.cache)
        for folder in (to, temporary):
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(folder)
            folder.mkdir(mode=0o700)
        source = lists.snapshot(self._job.cache, self._pin)
        for digest in recipe.contents:
            (to / digest).symlink_to(source / digest)
        (to / "version").write_text("Directory Transport Version: 1.1\n")
        (to / "manifest.json").write_bytes(recipe.manifest(sizes))
