"""What sysfs says of a PCIe function and its driver. Runs in the child program, as `fabric.netlink` does."""

from __future__ import annotations

import os
import re
from typing import Any

_PCI = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def pci_folder(device: str) -> str:
    """The folder of the PCIe function below which a device (its `device` link in sysfs) hangs, or "".

    It is another folder than the device's own where a bus stands between (virtio).
    """
    real = os.path.realpath(device)
    while real != "/":
        if _PCI.fullmatch(os.path.basename(real)):
            return real
        real = os.path.dirname(real)
    return ""


def pcie(folder: str) -> dict[str, Any] | None:
    """The function's PCIe link as it is and as the function could have it; None where it does not say.

    Shape of `inventory.Pcie`: widths in lanes, speeds in GT/s.
    """
    told = {
        "width": _number(f"{folder}/current_link_width"),
        "speed": _number(f"{folder}/current_link_speed"),
        "most_width": _number(f"{folder}/max_link_width"),
        "most_speed": _number(f"{folder}/max_link_speed"),
    }
    if not told["width"] or not told["speed"] or told["width"] > 32:  # 63 and 255 stand for unknown
        return None
    return {**told, "width": int(told["width"]), "most_width": int(told["most_width"] or 0) or None}


def driver(device: str) -> str:
    """The name of a device's driver, "" where none shows."""
    link = f"{device}/driver"
    return os.path.basename(os.path.realpath(link)) if os.path.exists(link) else ""


def _number(path: str) -> float | None:
    """`32.0 GT/s PCIe` and `4` as numbers; a virtual function says "Unknown"."""
    try:
        with open(path, encoding="ascii") as file:
            found = re.match(r"\d+(\.\d+)?", file.read())
    except OSError:
        return None
    return float(found.group()) if found else None
