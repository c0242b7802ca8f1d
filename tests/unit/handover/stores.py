"""Images as a registry has them, and podman's stores that hold them or not."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glm_spark.handover import place
from glm_spark.handover.store import machine
from glm_spark.weights import wire
from glm_spark.weights.job import ImageJob, Job
from tests.unit.handover import fake_podman
from tests.unit.weights.repositories import LEADER, WORKER, doors

NAME = "registry.example/engine"
OCI, DOCKER = "application/vnd.oci.image.", "application/vnd.docker."


def sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


@dataclass(frozen=True)
class Image:
    """`documents` are index, manifest and configuration by their sha256, `layers` the plain tars."""

    index: str
    manifest: str
    config: str
    documents: dict[str, bytes]
    layers: tuple[bytes, ...]

    @property
    def diff_ids(self) -> tuple[str, ...]:
        return tuple(map(sha256, self.layers))


def some_layers(*sizes: int, seed: int = 1) -> tuple[bytes, ...]:
    source = random.Random(seed)
    return tuple(source.randbytes(size) for size in sizes)


def make(layers: Sequence[bytes], *, docker: bool = False, arch: str = "", diff_ids: Sequence[str] = ()) -> Image:
    """As a registry packs it: its manifest names the layers compressed. `diff_ids` in place of the true ones."""
    arch = arch or machine()
    config = _json(
        {
            "architecture": arch,
            "os": "linux",
            "config": {},
            "rootfs": {
                "type": "layers",
                "diff_ids": [f"sha256:{digest}" for digest in diff_ids or map(sha256, layers)],
            },
        }
    )
    kind = (DOCKER if docker else OCI) + ("distribution.manifest.v2+json" if docker else "manifest.v1+json")
    packed = [gzip.compress(layer, 1, mtime=0) for layer in layers]
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": kind,
            "config": {"mediaType": "config", "size": len(config), "digest": f"sha256:{sha256(config)}"},
            "layers": [{"size": len(one), "digest": f"sha256:{sha256(one)}"} for one in packed],
        }
    )
    rows = [
        {"digest": f"sha256:{'0' * 64}", "platform": {"os": "linux", "architecture": "s390x"}},
        {"digest": f"sha256:{sha256(manifest)}", "platform": {"os": "linux", "architecture": arch}},
    ]
    index = _json({"schemaVersion": 2, "manifests": rows})
    documents = {sha256(body): body for body in (index, manifest, config)}
    return Image(sha256(index), sha256(manifest), sha256(config), documents, tuple(layers))


def _json(told: object) -> bytes:
    return json.dumps(told).encode()


class Spark:
    """One Spark's podman, cache and state below a directory."""

    def __init__(self, directory: Path, node: str) -> None:
        self.node = node
        self.store = directory / f"{node}-store"
        self.store.mkdir()
        self.cache = directory / f"{node}-cache"
        self.state = directory / f"{node}-state"
        self.tool: tuple[str, ...] = (sys.executable, str(Path(fake_podman.__file__)), str(self.store))

    def has(self, image: Image, pin: str) -> None:
        """As if it had been pulled by this pin."""
        folder = self.store / "overlay-images" / image.config
        folder.mkdir(parents=True)
        for digest, body in image.documents.items():
            (folder / ("config" if digest == image.config else f"={digest}")).write_bytes(body)
        (self.store / "layers").mkdir()
        for layer in image.layers:
            (self.store / "layers" / sha256(layer)).write_bytes(layer)
        told = {"names": [f"{NAME}@sha256:{pin}"], "digest": f"sha256:{pin}", "layers": image.diff_ids}
        (self.store / f"{image.config}.json").write_text(json.dumps(told))

    def job(self, verb: str, pin: str, **more: Any) -> Job:
        image = ImageJob(
            digest=pin,
            reference=f"{NAME}@sha256:{pin}",
            cache=str(self.cache),
            images=str(self.state / "images"),
            tool=self.tool,
            environment={"PATH": os.environ["PATH"]},
            silence=10.0,
        )
        return Job.model_validate(
            {
                "verb": verb,
                "node": self.node,
                "cache": str(place.top(str(self.cache))),
                "state": str(place.state(self.state / "weights")),
                "pins": (place.pin_of(pin),),
                "image": image,
            }
            | more
        )

    def loaded(self) -> dict[str, Any]:
        """What its store holds: the images' Ids with their layers."""
        return {file.stem: tuple(json.loads(file.read_text())["layers"]) for file in self.store.glob("*.json")}


def pair(directory: Path) -> tuple[Spark, Spark]:
    return Spark(directory, LEADER), Spark(directory, WORKER)


def door(port: int, **more: Any) -> Any:
    return doors(port, **more).model_copy(update={"key": wire.key_of(b"t" * 32, "image").hex()})
