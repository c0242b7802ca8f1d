"""A set of stand-in ranks for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.standin.sets import Set


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Set]:
    found = Set(tmp_path)
    yield found
    await found.clear()
