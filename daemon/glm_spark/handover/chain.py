"""What a pinned digest says about an image, followed document by document. Pure.

A registry's digest is the sha256 of a manifest, or of an index that names one for each architecture. The manifest
names the configuration by its sha256, and the configuration every layer by the sha256 of its plain tar. So the pin
alone proves every byte of the image, whoever brought it and however the registry had packed it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

LARGEST_DOCUMENT = 400_000  # bytes; with its quotes escaped it fits into a frame
MOST_LAYERS = 500
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_DOCKER = "application/vnd.docker."
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Unproven(ValueError):
    """A link of the chain does not hold; the text says which."""


class Recipe(BaseModel):
    """What an image consists of, all by sha256 and proven from `pin`. `documents` are the texts that prove it.

    `layers` are the plain tars in their order; one may occur twice. `docker` tells the kind of manifest it has.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    pin: Sha256
    config: Sha256
    layers: tuple[Sha256, ...] = Field(max_length=MOST_LAYERS)
    docker: bool
    documents: dict[Sha256, str]

    @property
    def contents(self) -> tuple[str, ...]:
        """The configuration and the layers, each once."""
        return tuple(dict.fromkeys((self.config, *self.layers)))

    def manifest(self, sizes: Mapping[str, int]) -> bytes:
        """A manifest of the same image with its layers unpacked; `sizes` in bytes. It has a digest of its own."""
        kinds = (
            ("application/vnd.docker.distribution.manifest.v2+json", "container.image.v1+json", "image.rootfs.diff.tar")
            if self.docker
            else ("application/vnd.oci.image.manifest.v1+json", "image.config.v1+json", "image.layer.v1.tar")
        )
        family = _DOCKER if self.docker else "application/vnd.oci."

        def named(kind: str, digest: str) -> dict[str, object]:
            return {"mediaType": family + kind, "size": sizes[digest], "digest": f"sha256:{digest}"}

        told = {
            "schemaVersion": 2,
            "mediaType": kinds[0],
            "config": named(kinds[1], self.config),
            "layers": [named(kinds[2], layer) for layer in self.layers],
        }
        return json.dumps(told).encode()


def follow(pin: str, machine: str, document: Callable[[str], bytes]) -> Recipe:
    """From a pin's 64 digits to all that it proves. `document` brings a content by its sha256, from anybody.

    `machine` is the architecture as registries name it. Raises Unproven, and what `document` raises.
    """
    documents: dict[str, str] = {}

    def obtain(digest: str, what: str) -> Mapping[str, Any]:
        raw = document(digest)
        if len(raw) > LARGEST_DOCUMENT:
            raise Unproven(f"{what} is larger than {LARGEST_DOCUMENT} bytes")
        if hashlib.sha256(raw).hexdigest() != digest:
            raise Unproven(f"{what} is not the content {digest[:12]}...")
        try:
            documents[digest] = raw.decode()
            told = json.loads(raw)
        except (ValueError, RecursionError):
            raise Unproven(f"{what} is no JSON") from None
        if not isinstance(told, dict):
            raise Unproven(f"{what} has another shape")
        return told

    told = obtain(pin, "what the pin names")
    if "manifests" in told:
        told = obtain(_for_machine(told, machine), "the manifest that the index names")
    config, layers, docker = pin, None, True
    if "rootfs" not in told:  # a pin may name the configuration itself, as podman's Id does
        layers = _list(told, "layers")
        config = _digest(_table(told, "config"), "digest", "the manifest's configuration")
        docker = str(told.get("mediaType") or told["config"].get("mediaType") or "").startswith(_DOCKER)
        told = obtain(config, "the configuration that the manifest names")
    if str(told.get("architecture") or machine) != machine or str(told.get("os") or "linux") != "linux":
        raise Unproven(f"it is an image for {told.get('os')}/{told.get('architecture')}, not for linux/{machine}")
    tars = [_match(item, "a layer") for item in _list(_table(told, "rootfs"), "diff_ids")]
    if layers is not None and len(layers) != len(tars):
        raise Unproven(f"the manifest has {len(layers)} layers, its configuration {len(tars)}")
    if not 0 < len(tars) <= MOST_LAYERS:
        raise Unproven(f"it has {len(tars)} layers")
    return Recipe(pin=pin, config=config, layers=tuple(tars), docker=docker, documents=documents)


def _for_machine(index: Mapping[str, Any], machine: str) -> str:
    there: list[str] = []
    for row in _list(index, "manifests"):
        platform = (row.get("platform") or {}) if isinstance(row, dict) else {}
        name = f"{platform.get('os')}/{platform.get('architecture')}" if isinstance(platform, dict) else "?"
        if name == f"linux/{machine}":
            return _digest(row, "digest", "the index's entry")
        there.append(name)
    raise Unproven(f"the index has nothing for linux/{machine}, only {', '.join(there)[:200] or 'nothing at all'}")


def _table(told: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = told.get(name)
    if not isinstance(found, dict):
        raise Unproven(f"a document without {name}")
    return found


def _list(told: Mapping[str, Any], name: str) -> list[Any]:
    found = told.get(name)
    if not isinstance(found, list):
        raise Unproven(f"a document without {name}")
    return found


def _digest(told: Mapping[str, Any], name: str, what: str) -> str:
    return _match(told.get(name), what)


def _match(text: object, what: str) -> str:
    found = _DIGEST.fullmatch(str(text))
    if found is None:
        raise Unproven(f"{what} is not named by a sha256")
    return found[1]
