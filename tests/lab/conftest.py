"""Fixtures: a topology of running Sparks, restored before each test; evidence kept when a test fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from . import host
from .lab import Lab
from .snapshots import Snapshots
from .topology import TOPOLOGIES

Prepare = Callable[[Lab], None]


class Labs:
    """The labs of a session, one a topology and image; only the last one used is switched on."""

    def __init__(self) -> None:
        self._labs: dict[tuple[str, bool], tuple[Lab, Snapshots]] = {}

    def restore(self, topology: str, tag: str = "", prepare: Prepare | None = None, *, podman: bool = False) -> Lab:
        """A topology as it was after its boot or, with `prepare`, after that function (kept under `tag`).

        `podman`: from the image that has podman, which is another lab.
        """
        wanted = (topology, podman)
        for name, (lab, _) in self._labs.items():
            if name != wanted:
                lab.off()
        if wanted not in self._labs:
            made = Lab(TOPOLOGIES[topology], podman=podman)
            self._labs[wanted] = (made, Snapshots(made))
        lab, snapshots = self._labs[wanted]
        if prepare is None:
            snapshots.restore()
        else:
            snapshots.prepared(tag, prepare)
        return lab

    def keep_evidence(self, test: str) -> None:
        """Each running Spark's journal and console into .cache/lab/failed/TEST."""
        target = host.CACHE / "failed" / test
        target.mkdir(parents=True, exist_ok=True)
        for lab, _ in self._labs.values():
            for spark in lab.sparks.values():
                if not spark.powered:
                    continue
                (target / f"{spark.name}.console").write_bytes(spark.console_log.read_bytes())
                try:
                    text = spark.run("journalctl --no-pager -b -o short-precise", 30.0, check=False).stdout
                except (OSError, RuntimeError) as error:
                    text = f"the journal cannot be read: {error}\n"
                (target / f"{spark.name}.journal").write_text(text)

    def close(self) -> None:
        for lab, _ in self._labs.values():
            lab.close()


@pytest.fixture(scope="session")
def labs() -> Iterator[Labs]:
    all_labs = Labs()
    yield all_labs
    all_labs.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    fixtures = getattr(item, "funcargs", {})
    if report.when != "teardown" and report.failed and "labs" in fixtures:
        fixtures["labs"].keep_evidence(item.name)
    return report


@pytest.fixture
def two(labs: Labs) -> Lab:
    return labs.restore("two")


@pytest.fixture
def three(labs: Labs) -> Lab:
    return labs.restore("three")
