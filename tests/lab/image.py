"""The lab's image: a Debian root with the daemon's dependencies, a stock 6.12 kernel, an initrd, an empty disk.

Built once and kept in .cache/lab under a hash of its inputs: the recipe, the guest's files, the daemon's
dependencies, the architecture. The package versions are not part of it: `./dev lab build --again`
fetches newer ones.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from . import host, recipe, topology

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Image:
    """A built image's files. `key` is the hash of its inputs."""

    key: str
    directory: Path

    @property
    def kernel(self) -> Path:
        return self.directory / "vmlinuz"

    @property
    def initrd(self) -> Path:
        return self.directory / "initrd.gz"

    @property
    def root(self) -> Path:
        return self.directory / "root.ext4"

    @property
    def disk(self) -> Path:
        return self.directory / "disk.qcow2"


def input_key(guest: host.Arch, *, podman: bool) -> str:
    digest = hashlib.sha256()
    for part in (
        guest,
        recipe.SUITE,
        str(podman),
        *recipe.dependencies(),
        *map(str, topology.link_files().items()),
    ):
        digest.update(part.encode() + b"\0")
    sources = [_HERE / "recipe.py", _HERE / "kernel.py", *sorted(p for p in recipe.GUEST.rglob("*") if p.is_file())]
    for path in sources:
        digest.update(str(path.relative_to(_HERE)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def ensure(guest: host.Arch | None = None, *, podman: bool = False, again: bool = False) -> Image:
    """The image for these inputs, built first when it is not there (about a minute; root or sudo).

    `podman`: the one that has podman, as LAB_PODMAN=1 asks for everywhere.
    """
    guest = guest or host.arch()
    podman = podman or recipe.with_podman()
    key = input_key(guest, podman=podman)
    image = Image(key, host.CACHE / f"image-{guest}-{key}")
    host.set_up(guest)
    with _one_at_a_time():
        if again:
            shutil.rmtree(image.directory, ignore_errors=True)
        if not image.directory.exists():
            _build_as_root(image, guest, podman=podman)
            _remove_unused(guest)
        os.utime(image.directory)
    return image


def _remove_unused(guest: host.Arch) -> None:
    """Images that nobody has used for a day; with their booted topologies each takes about a gigabyte."""
    for directory in host.CACHE.glob(f"image-{guest}-*"):
        if time.time() - directory.stat().st_mtime > 86_400:
            shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    host.CACHE.mkdir(parents=True, exist_ok=True)
    with (host.CACHE / "build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build_as_root(image: Image, guest: host.Arch, *, podman: bool) -> None:
    again = [sys.executable, "-m", "tests.lab", "build-here", str(image.directory)]
    variables = [f"LAB_ARCH={guest}", f"LAB_PODMAN={int(podman)}"]
    subprocess.run(host.as_root(["env", *variables, *again]), check=True, cwd=host.REPOSITORY)
    owner = f"{os.getuid()}:{os.getgid()}"
    subprocess.run(host.as_root(["chown", "-R", owner, str(image.directory)]), check=True)
