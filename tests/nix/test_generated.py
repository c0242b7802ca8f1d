"""What is written from something else is current: the settings' names, the options page, the units."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.nix.evaluate import ROOT, value
from tests.nix.generated import files
from tests.nix.known import settings

FILES = list(files())


@pytest.mark.parametrize(("path", "make"), FILES, ids=[str(path.relative_to(ROOT)) for path, _ in FILES])
def test_it_is_current(path: Path, make: Callable[[], str]) -> None:
    assert path.read_text() == make(), "run: .venv/bin/python -m tests.nix.generated"


def test_options_that_name_a_setting_have_its_default() -> None:
    daemon = {f"services.glm-spark.settings.{one.path}": one.field.default for one in settings()}
    named = {
        option["name"]: option["default"]
        for option in value('import (here + "/options.nix")')
        if option["name"].startswith("services.glm-spark.settings.")
    }
    assert len(named) >= 10
    for name, default in named.items():
        assert value(default) == daemon[name], name
