"""`python fake_podman.py STORE VERB ...`: as much of podman as a hand-over uses, in a folder laid out as its store."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any


def main(store: Path, *words: str) -> int:
    match words:
        case ("image", "inspect", reference):
            return inspect(store, reference)
        case ("info", _):
            print(json.dumps({"graphRoot": str(store), "graphDriverName": "overlay"}))
            return 0
        case ("push", _, image, to):
            return push(store, image, Path(to.removeprefix("dir:")))
        case ("pull", _, source):
            return pull(store, Path(source.removeprefix("dir:")))
        case ("tag", image, name):
            told = json.loads(file_of(store, image).read_text())
            file_of(store, image).write_text(json.dumps({**told, "names": [*told["names"], name]}))
            return 0
    return complain(f"unknown: {words}")


def complain(words: str) -> int:
    print(f"Error: {words}", file=sys.stderr)
    return 125


def file_of(store: Path, image: str) -> Path:
    return store / f"{image}.json"


def inspect(store: Path, reference: str) -> int:
    for file in store.glob("*.json"):
        told: dict[str, Any] = json.loads(file.read_text())
        if reference in (file.stem, f"sha256:{file.stem}", *told["names"]):
            size = sum((store / "layers" / layer).stat().st_size for layer in told["layers"])
            row = {
                "Id": file.stem,
                "Digest": told["digest"],
                "RepoDigests": told["names"],
                "Config": {},
                "Size": size,
                "RootFS": {"Layers": [f"sha256:{layer}" for layer in told["layers"]]},
            }
            print(json.dumps([row]))
            return 0
    return complain(f"{reference}: image not known")


def push(store: Path, image: str, to: Path) -> int:
    told = json.loads(file_of(store, image).read_text())
    to.mkdir()
    for layer in told["layers"]:
        (to / layer).write_bytes((store / "layers" / layer).read_bytes())
    (to / image).write_bytes((store / "overlay-images" / image / "config").read_bytes())
    (to / "version").write_text("Directory Transport Version: 1.1\n")
    return 0


def pull(store: Path, source: Path) -> int:
    if not os.environ.get("TMPDIR", "").startswith(str(source.parent)):
        return complain("no place for copies of layers was named")
    manifest = (source / "manifest.json").read_bytes()
    told = json.loads(manifest)
    layers = []
    for row in (told["config"], *told["layers"]):
        digest = row["digest"].removeprefix("sha256:")
        body = (source / digest).read_bytes()
        if hashlib.sha256(body).hexdigest() != digest or len(body) != row["size"]:
            return complain(f"{digest} does not match")
        if row is told["config"]:
            image = digest
            folder = store / "overlay-images" / image
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "config").write_bytes(body)
            (folder / "manifest").write_bytes(manifest)
        else:
            (store / "layers").mkdir(exist_ok=True)
            (store / "layers" / digest).write_bytes(body)
            layers.append(digest)
    digest = f"sha256:{hashlib.sha256(manifest).hexdigest()}"
    file_of(store, image).write_text(json.dumps({"names": [], "digest": digest, "layers": layers}))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
