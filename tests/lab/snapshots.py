"""Boot a topology once, keep it, and start every test from there.

A booted topology is kept beside the image: one disk a Spark, with its memory in it as snapshot BASE. A session
works on copies, so that two sessions do not meet; states of its own (code pushed, unit started) are saved into
those copies. A restore is a new QEMU each time: nothing of an earlier test survives in one.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from . import host, qemu
from .lab import Lab
from .topology import kernel_arguments

BASE = "base"


class Snapshots:
    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._saved: set[str] = set()
        self._kept = lab.image.directory / f"{lab.topology.name}-{_machine_key(lab)}"

    def restore(self, tag: str = BASE) -> None:
        """Start all Sparks from a saved state, with clocks set. Cold-boots when BASE does not exist yet."""
        self._lab.off()
        if BASE not in self._saved:
            self._provide_base()
        if tag not in self._saved:
            raise KeyError(f"no snapshot {tag!r} of topology {self._lab.topology.name}")
        self._lab.start(tag)
        self._lab.together(lambda spark: spark.set_clock())

    def save(self, tag: str) -> None:
        """Keep the running Sparks' memory and disk under `tag`, all at one moment; they go on afterwards."""
        sparks = list(self._lab.sparks.values())
        for spark in sparks:
            spark.run("sync")
            spark.release_agent()
        for spark in sparks:
            spark.freeze()
        self._lab.together(lambda spark: spark.qmp.monitor(f"savevm {tag}"))
        for spark in sparks:
            spark.thaw()
        self._saved.add(tag)

    def prepared(self, tag: str, prepare: Callable[[Lab], None]) -> None:
        """Restore `tag`; the first time make it: restore BASE, run `prepare`, save."""
        if tag in self._saved:
            self.restore(tag)
            return
        self.restore()
        prepare(self._lab)
        self.save(tag)

    def _provide_base(self) -> None:
        if not self._kept.exists():
            self._lab.boot()
            self.save(BASE)
            self._lab.off()
            self._keep()
        for spark in self._lab.sparks.values():
            shutil.copyfile(self._kept / spark.disk.name, spark.disk)
        self._saved = {BASE}

    def _keep(self) -> None:
        """Move into place at once: a session beside this one sees the whole or nothing."""
        partial = self._kept.with_name(f"{self._kept.name}.{os.getpid()}")
        partial.mkdir()
        for spark in self._lab.sparks.values():
            shutil.copyfile(spark.disk, partial / spark.disk.name)
        try:
            partial.rename(self._kept)
        except OSError:
            # another session was first; its boot is as good
            shutil.rmtree(partial)


def _machine_key(lab: Lab) -> str:
    """A saved state fits only this QEMU with these devices and this kernel command line."""
    digest = hashlib.sha256(_qemu_version(lab.arch).encode())
    nowhere = qemu.Place(Path("/lab"))
    for number in lab.topology.sparks:
        words = kernel_arguments(lab.topology, number)
        argv = qemu.arguments(lab.topology, number, lab.arch, lab.image, nowhere, words)
        digest.update("\0".join(argv).encode())
    return digest.hexdigest()[:12]


def _qemu_version(arch: host.Arch) -> str:
    return subprocess.run([arch.qemu, "--version"], check=True, capture_output=True, text=True).stdout
