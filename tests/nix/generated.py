"""The files that are written from something else: `python -m tests.nix.generated` writes them, a test compares them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.nix.evaluate import HERE, ROOT, spark
from tests.nix.known import settings
from tests.nix.page import page
from tests.nix.units import BOOT, by_hand

# What the golden units show: a Spark of an example, with this on top.
VARIANTS = {
    "podman": ("pair", "spark-1", "{ }"),
    "process": (
        "pair",
        "spark-2",
        '{ services.glm-spark = { settings.engine.runtime = "process"; apiKeysFile = "/etc/glm-spark/api-keys";'
        ' settings.model.cache = "/srv/weights"; gpu.clockLimitMHz = 2200; }; }',
    ),
    "docker-three": ("three", "spark-3", '{ services.glm-spark.settings.engine.runtime = "docker"; }'),
}


def variant(name: str) -> dict[str, str]:
    """The units of a variant by their names."""
    example, host, more = VARIANTS[name]
    units: dict[str, str] = spark(host, more, example=example)["units"]
    return units


def _known() -> str:
    kinds = {one.path: {"kind": one.kind, "default": one.field.default} for one in settings()}
    lines = (f"  {json.dumps(path)}: {json.dumps(what)}" for path, what in kinds.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def files() -> Iterator[tuple[Path, Callable[[], str]]]:
    """Each file with what makes its text; the first is read by those after it."""
    yield ROOT / "nixos-modules/known-settings.json", _known
    yield ROOT / "docs/options.md", page
    yield ROOT / "daemon/systemd/glm-spark.service", lambda: by_hand("podman")
    yield ROOT / "daemon/systemd/glm-spark-process.service", lambda: by_hand("process")
    yield ROOT / "daemon/systemd/glm-spark-boot.service", lambda: BOOT
    for name in VARIANTS:
        for unit in ("glm-spark.service", "glm-spark-boot.service"):
            yield HERE / "golden" / name / unit, lambda name=name, unit=unit: variant(name)[unit]  # type: ignore[misc]


def main() -> None:
    for path, make in files():
        text = make()
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
