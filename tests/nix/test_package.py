"""The Nix package and pyproject.toml name the same things."""

from __future__ import annotations

import re

import tomli

from tests.nix.evaluate import ROOT, value

PROJECT = tomli.loads((ROOT / "daemon/pyproject.toml").read_text())["project"]


def test_nix_has_the_dependencies_of_pyproject() -> None:
    named = sorted({re.split(r"[<>=\[ ]", one)[0] for one in PROJECT["dependencies"]} | {"pyverbs"})
    scope = " ".join(f'{name} = "{name}";' for name in named)
    assert sorted(value(f"import {ROOT}/daemon/requires.nix {{ {scope} }}")) == named


def test_every_input_is_pinned_to_a_revision() -> None:
    text = (ROOT / "flake.nix").read_text()
    urls = re.findall(r'url = "([^"]+)"', text)
    assert urls
    assert all(re.fullmatch(r"github:[\w-]+/[\w-]+/[0-9a-f]{40}", url) for url in urls), urls


def test_the_flakes_outputs_are_what_is_promised() -> None:
    """The outputs' names, without evaluating what needs nixpkgs."""
    names = value(
        f"builtins.attrNames ((import {ROOT}/flake.nix).outputs {{ self = {{ }}; nixpkgs = {{ lib = {{ }}; }};"
        " dgx-spark = { }; })"
    )
    assert set(names) >= {
        "apps",
        "checks",
        "devShells",
        "formatter",
        "nixosConfigurations",
        "nixosModules",
        "overlays",
        "packages",
        "templates",
    }
