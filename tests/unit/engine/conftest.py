"""Ranks made of small real programs, and the process table to see what is left of them."""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from glm_spark.engine import processes
from glm_spark.engine.spec import RankSpec

LIMIT_S = 10.0

Until = Callable[[Callable[[], object]], Awaitable[None]]


async def _until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not true():  # noqa: ASYNC110 - what is waited for happens in other processes
            await asyncio.sleep(0.01)


@pytest.fixture
def until() -> Until:
    """Waits until something holds; TimeoutError after ten seconds."""
    return _until


@pytest.fixture
def cluster() -> Iterator[str]:
    """A cluster name of this test alone; whatever still carries it afterwards is ended and fails the test."""
    name = f"t{uuid.uuid4().hex[:12]}"
    yield name
    left = processes.marked({"GLM_SPARK_CLUSTER": name})
    for process in left:
        processes.kill(process)
    assert not left


@pytest.fixture
def rank_of(cluster: str) -> Callable[..., RankSpec]:
    """A rank whose engine is a piece of Python."""

    def make(program: str, *, rank: int = 1, environment: dict[str, str] | None = None) -> RankSpec:
        return RankSpec(
            cluster=cluster,
            node="spark-2",
            rank=rank,
            generation=7,
            argv=(sys.executable, "-I", "-S", "-u", "-c", program),
            environment=environment or {},
        )

    return make


@pytest.fixture
async def no_stray_descriptors() -> AsyncIterator[None]:
    """The test leaves this process with the file descriptors it had."""
    before = len(os.listdir("/proc/self/fd"))
    yield
    await _until(lambda: len(os.listdir("/proc/self/fd")) <= before)


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "pid"
