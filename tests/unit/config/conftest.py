"""Files as an owner writes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from glm_spark.config.load import ConfigFault, load
from glm_spark.config.model import Config

TWO_SPARKS = """\
[[node]]
name = "spark-1"
[[node]]
name = "spark-2"
address = "192.168.100.2"
"""

Write = Callable[[str], Path]
Loaded = Callable[[str], Config]
Faults = Callable[[str], tuple[str, ...]]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(text: str) -> Path:
        path = tmp_path / "config.toml"
        path.write_text(text)
        return path

    return written


@pytest.fixture
def loaded(write: Write) -> Loaded:
    """The file with two Sparks in it and `text` after them."""
    return lambda text: load(write(TWO_SPARKS + text))


@pytest.fixture
def faults(write: Write) -> Faults:
    """What is said of a file with two good Sparks in it and `text` after them."""

    def said(text: str) -> tuple[str, ...]:
        with pytest.raises(ConfigFault) as caught:
            load(write(TWO_SPARKS + text))
        return caught.value.faults

    return said
