"""One question to the reading child, which is killed when it does not answer in time."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from glm_spark.fabric.reader import Reader, reader_command


async def ask_child(mode: str, *arguments: str, deadline: float, command: tuple[str, ...] | None = None) -> Any:
    """What `glm_spark.fabric.child MODE ARGUMENTS` says in JSON.

    Raises TimeoutError past `deadline` seconds; OSError with the child's own errno where the kernel refused, and
    without one when it ended without a word.
    """
    reader = await Reader.start((*(command or reader_command()), mode, *arguments))
    errors = asyncio.create_task(reader.collect_errors(), name=f"last words of {mode}")
    try:
        async with asyncio.timeout(deadline):
            line = await reader.line()
            if not line:
                raise OSError(None, await reader.farewell(errors))
        told = json.loads(line)
        if "refused" in told:
            raise OSError(told["errno"], told["refused"])
        return told["told"]
    finally:
        await asyncio.shield(_end(reader, errors))


async def _end(reader: Reader, errors: asyncio.Task[None]) -> None:
    await reader.end()
    errors.cancel()
    await asyncio.wait([errors])
