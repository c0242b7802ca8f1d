from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.fabric.room import Room


@pytest.fixture
def room() -> Iterator[Room]:
    with Room() as made:
        yield made


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The package is built where there is no way to a namespace: its check phase leaves these out by their mark."""
    for item in items:
        if "room" in getattr(item, "fixturenames", ()):
            item.add_marker("namespaces")
