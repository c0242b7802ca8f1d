"""The machine a figure was measured on: no figure means anything without it."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from tests.enclosure import ROOT


def describe() -> dict[str, Any]:
    """Processor, cores, memory (GiB), kernel, Python, load before the run (1 minute), commit."""
    return {
        "processor": _processor(Path("/proc/cpuinfo").read_text()),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3, 1),
        "system": _system(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2),
        "commit": _commit(),
    }


def sentence(machine: dict[str, Any]) -> str:
    return (
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB, {machine['system']}, "
        f"kernel {machine['kernel']}, Python {machine['python']}, load {machine['load']} before, "
        f"commit {machine['commit']}"
    )


def _processor(cpuinfo: str) -> str:
    """The model's name; arm64 kernels give numbers only."""
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model"):
            return value.strip()
    return platform.machine()


def _system() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.system()


def _commit() -> str:
    done = subprocess.run(["git", "-C", str(ROOT), "describe", "--always", "--dirty"], capture_output=True, text=True)
    return done.stdout.strip() or "unknown"
