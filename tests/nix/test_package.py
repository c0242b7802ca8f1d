"""The Nix package and pyproject.toml name the same things."""

from __future__ import annotations

import re
from pathlib import Path

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


def test_what_the_package_tests_is_in_its_source() -> None:
    """The check phase has no checkout: of what lies beside daemon and tests, only the example file is there."""
    text = (ROOT / "daemon/package.nix").read_text()
    left_out = {Path(name).name for name in re.findall(r'"\.\./tests/unit/(\w+)"', text)}
    assert left_out == {"demo", "docs", "sparks"}
    unit = ROOT / "tests/unit"
    climbing = {
        f"{file.relative_to(unit)}: {line}"
        for file in unit.rglob("*.py")
        if file.relative_to(unit).parts[0] not in left_out
        for line in file.read_text().splitlines()
        if "parents[3]" in line and "config.toml.example" not in line
    }
    assert climbing == set()


def test_what_the_package_tests_names_no_program_that_only_a_distribution_has() -> None:
    """Where Nix builds there is /bin/sh, and all else is on PATH."""
    named = {
        f"{file.relative_to(ROOT)}: {line.strip()}"
        for file in (ROOT / "tests/unit").rglob("*.py")
        for line in file.read_text().splitlines()
        if re.search(r"""exec\w*\(\s*"/|copy\("/|(run|Popen)\(\s*\[?"/|#!/(?!bin/sh)|:/usr/bin""", line)
        and "/bin/sh" not in line
    }
    assert named == set()
