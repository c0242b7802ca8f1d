"""The daemon's own directories, as systemd sets them, so that several daemons can share one machine and one file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def runtime(environ: Mapping[str, str]) -> Path:
    """Where control.sock lies: gone with the daemon."""
    return _first(environ, "RUNTIME_DIRECTORY", "/run/glm-spark")


def state(environ: Mapping[str, str]) -> Path:
    """What outlives a reboot: the generation, the history."""
    return _first(environ, "STATE_DIRECTORY", "/var/lib/glm-spark")


def cache(environ: Mapping[str, str]) -> Path:
    """What can be made again."""
    return _first(environ, "CACHE_DIRECTORY", "/var/cache/glm-spark")


def _first(environ: Mapping[str, str], name: str, otherwise: str) -> Path:
    """systemd joins several directories with colons; the first is ours. An empty variable counts as unset."""
    return Path(environ.get(name, "").split(":")[0] or otherwise)
