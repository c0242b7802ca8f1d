"""What systemd does for the daemons of a test: starts again what failed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.cluster.conftest import Cluster
from tests.cluster.observer import Limits, Observer

_PATH = [str(Path(__file__).with_name("frail")), *filter(None, [os.environ.get("PYTHONPATH")])]
FRAIL = {"PYTHONPATH": os.pathsep.join(_PATH)}
RESTART_SECONDS = 0.3  # RestartSec of the unit is 2
LOOK_SECONDS = 0.05


async def attend(cluster: Cluster) -> None:
    """Restart=on-failure: a daemon that ended otherwise than with status 0 is started anew. For ever."""
    ended: dict[str, float] = {}
    loop = asyncio.get_running_loop()
    while True:
        for daemon in cluster.daemons:
            name = daemon.spark.name
            if daemon.returncode in (None, 0):
                ended.pop(name, None)
            elif loop.time() - ended.setdefault(name, loop.time()) > RESTART_SECONDS:
                daemon.start()
        await asyncio.sleep(LOOK_SECONDS)


@asynccontextmanager
async def watched(cluster: Cluster, limits: Limits, *, restarts: bool = True) -> AsyncIterator[Observer]:
    """The cluster under an observer (and an attendant) during the block, judged at its end."""
    observer = Observer(cluster, limits)
    watching = asyncio.create_task(observer.run())
    attending = asyncio.create_task(attend(cluster)) if restarts else None
    try:
        yield observer
        observer.look()
    finally:
        for task in (watching, attending):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
    observer.check()
