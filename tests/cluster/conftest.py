"""Cluster tests run in an enclosure: pytest starts itself anew inside one when it is not in one yet."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests import enclosure
from tests.sparks import Daemon, Layout, Sparks


def pytest_configure(config: pytest.Config) -> None:
    if enclosure.inside():
        return
    capture = config.pluginmanager.getplugin("capturemanager")
    if capture is not None:
        capture.stop_global_capturing()
    sys.stdout.flush()
    again = [sys.executable, "-m", "pytest", *config.invocation_params.args]
    command = enclosure.command(again)
    os.chdir(config.invocation_params.dir)
    os.execve(command[0], command, enclosure.environment(os.environ))


class Cluster:
    """Sparks with a daemon each; `await cluster.start()` starts those that do not run."""

    def __init__(self, sparks: Sparks, daemons: list[Daemon]) -> None:
        self.sparks = sparks
        self.daemons = daemons

    @property
    def leader(self) -> Daemon:
        return self.daemons[0]

    @property
    def workers(self) -> list[Daemon]:
        return self.daemons[1:]

    def __getitem__(self, rank: int) -> Daemon:
        return self.daemons[rank]

    def start(self) -> None:
        for daemon in self.daemons:
            if not daemon.running:
                daemon.start()

    async def live(self, timeout: float = 30.0) -> dict[str, Any]:
        """Starts what does not run and waits for the leader to be live; its status."""
        self.start()
        return await self.leader.wait_state("live", timeout=timeout)


MakeCluster = Callable[..., Cluster]


@pytest.fixture
async def make_cluster() -> AsyncIterator[MakeCluster]:
    """`make_cluster(3, config={...}, standin={...})`: Sparks with daemons not yet started. All end with
    the test, whatever it did to them."""
    async with AsyncExitStack() as stack:

        def make(
            count: int = 2,
            *,
            config: Mapping[str, Any] | None = None,
            standin: Mapping[str, Any] | None = None,
            layout: Layout | None = None,
            env: Mapping[str, str] | None = None,
            watchdog_seconds: float | None = None,
        ) -> Cluster:
            sparks = stack.enter_context(Sparks(count, config=config, standin=standin, layout=layout))
            daemons = []
            for spark in sparks:
                daemon = Daemon(spark, sparks.config_file, env=env, watchdog_seconds=watchdog_seconds)
                stack.callback(daemon.close)
                daemons.append(daemon)
            made = Cluster(sparks, daemons)
            _made.append(made)
            return made

        yield make


@pytest.fixture
def cluster(make_cluster: MakeCluster) -> Cluster:
    """Two Sparks with the harness's settings."""
    return make_cluster(2)


_made: list[Cluster] = []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Iterator[None]:  # pragma: no cover - a report's text
    """A failed test shows the end of every daemon's journal, which vanishes with the Sparks."""
    report = yield
    if report.when == "call" and report.failed:  # type: ignore[attr-defined]
        for made in _made:
            for daemon in made.daemons:
                lines = daemon.journal()[-60:]
                report.sections.append(  # type: ignore[attr-defined]
                    (f"journal of {daemon.spark.name}", "\n".join(lines))
                )
    if report.when == "teardown":  # type: ignore[attr-defined]
        _made.clear()
    return report
