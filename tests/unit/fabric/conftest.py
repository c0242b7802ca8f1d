from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.fabric.room import Room


@pytest.fixture
def room() -> Iterator[Room]:
    with Room() as made:
        yield made
