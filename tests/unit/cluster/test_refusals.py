"""What a Spark cannot do for a start is told as the refusal of that start."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from glm_spark.cluster.generation import GenerationFile
from glm_spark.cluster.post import Post, Trade
from glm_spark.cluster.protocol import Goal


class FullDisk(GenerationFile):
    full = True

    def read(self) -> int:
        if self.full:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().read()

    def write(self, generation: int) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write(generation)


async def _none(*_: Any) -> tuple[()]:
    return ()


async def test_a_generation_that_cannot_be_kept_is_refused_as_that_generation(tmp_path: Path) -> None:
    """The leader waits for news of the generation that it asked for: of another one it would be none. And a disk that
    cannot be read when the daemon starts does not end the daemon.
    """
    disk = FullDisk(tmp_path / "generation")
    runtime = SimpleNamespace(sweep=_none)
    trade = SimpleNamespace(runtime=runtime, preflight=_none, specify=_none, provide=_none)
    moved = asyncio.Event()
    post = Post("spark-2", "glm", cast(Trade, trade), disk, moved.set)
    running = asyncio.create_task(post.run())
    try:
        async with asyncio.timeout(20):
            post.pursue(Goal(generation=5, phase="prepare"))
            while post.report.state != "failed":
                moved.clear()
                await moved.wait()
            assert post.report.generation == 5
            assert post.report.reason is not None
            assert post.report.reason.code == "disk.generation"
            assert "No space left" in post.report.reason.measured
            disk.full = False
            post.pursue(Goal(generation=6, phase="prepare"))
            while post.report.prepared != 6:
                moved.clear()
                await moved.wait()
            assert disk.read() == 6
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
