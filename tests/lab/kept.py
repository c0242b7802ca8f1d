"""The lab that `--keep` left running: where it is, and commands in it from another terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from . import host
from .agent import Agent
from .qemu import Place

_POINTER = host.CACHE / "kept"


@contextmanager
def announced(directory: Path) -> Iterator[None]:
    """While inside, `place` finds the run's directory."""
    _POINTER.write_text(str(directory))
    try:
        yield
    finally:
        _POINTER.unlink(missing_ok=True)


def place() -> Place:
    directory = Path(_POINTER.read_text()) if _POINTER.exists() else None
    if directory is None or not directory.is_dir():
        raise SystemExit("no lab is running; start one in another terminal with: ./dev lab --keep")
    return Place(directory)


def execute(spark: int, command: str) -> int:
    """Run a shell command on a kept Spark and pass on its output and status."""
    path = place().of(spark, "agent")
    if not path.exists():
        raise SystemExit(f"the running lab has no spark-{spark}")
    agent = Agent(path)
    try:
        done = agent.start(command).wait(600.0)
    finally:
        agent.close()
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)
    return done.status if done.status >= 0 else 128 - done.status
