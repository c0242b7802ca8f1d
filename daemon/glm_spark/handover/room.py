"""Is there room on the disks that a hand-over writes to?"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from glm_spark.handover import faults
from glm_spark.weights.faults import amount


def want_room(node: str, keep_free: int, needs: Mapping[str, int]) -> None:
    """`needs` are bytes by the place they are written to; places on one disk are added up. Raises Fault."""
    disks: dict[int, tuple[str, int]] = {}
    for place, wanted in needs.items():
        there = _there(place)
        device = os.stat(there).st_dev
        first, before = disks.get(device, (there, 0))
        disks[device] = first, before + wanted
    for place, wanted in disks.values():
        room = os.statvfs(place)
        free = room.f_bavail * room.f_frsize
        if wanted > 0 and wanted + keep_free > free:
            told = f"{amount(wanted)} for the image and podman's own copy of it, and {amount(keep_free)} left free"
            raise faults.no_room(node, place, amount(free), told)


def _there(place: str) -> str:
    """The nearest directory above that is there already."""
    path = Path(place)
    while not path.exists():
        path = path.parent
    return str(path)
