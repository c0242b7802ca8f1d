"""Every Nix file is one, and the evaluator that judges it really judges."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.nix import evaluate
from tests.nix.evaluate import ROOT

FILES = sorted(
    file.relative_to(ROOT)
    # Not into .cache and its kind, where other tests come and go.
    for place in ROOT.iterdir()
    if not place.name.startswith(".")
    for file in ([place] if place.is_file() else place.rglob("*"))
    if file.suffix == ".nix"
)


def test_there_are_files_in_every_place() -> None:
    assert {path.parts[0] for path in FILES} >= {"flake.nix", "nixos-modules", "daemon", "tests"}


@pytest.mark.parametrize("path", FILES, ids=str)
def test_it_parses(path: Path) -> None:
    evaluate.parse(ROOT / path)


def test_a_syntax_error_is_found(tmp_path: Path) -> None:
    broken = tmp_path / "broken.nix"
    broken.write_text("{ services.glm-spark.enable = true }\n")
    with pytest.raises(evaluate.Refused, match="syntax error"):
        evaluate.parse(broken)
