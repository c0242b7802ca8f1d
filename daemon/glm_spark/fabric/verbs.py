"""What this Spark's RDMA devices say, through pyverbs. Runs in the child program, as `fabric.netlink` does.

Seen with pyverbs 44 on soft-RoCE: device names are bytes; a kernel without RDMA raises when the list is asked
for; an empty slot of a GID table raises ENODATA (errno 61); soft-RoCE has no PCI address and no firmware version.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import sys
from typing import Any

from pyverbs.device import Context, get_device_list
from pyverbs.pyverbs_error import PyverbsError, PyverbsRDMAError

from glm_spark.fabric import sysfs

Parts = dict[str, Any]

_KINDS = {0: "IB", 1: "RoCE v1", 2: "RoCE v2"}
_MTU = {1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096}
_STATES = {0: "NOP", 1: "DOWN", 2: "INIT", 3: "ARMED", 4: "ACTIVE", 5: "ACTIVE_DEFER"}
_LAYERS = {1: "InfiniBand", 2: "Ethernet"}
_LANES = {1: 1, 2: 4, 4: 8, 8: 12, 16: 2}
_GBPS_A_LANE = {1: 2.5, 2: 5.0, 4: 10.0, 8: 10.0, 16: 14.0, 32: 25.0, 64: 50.0, 128: 100.0}
_PORT = 1


def read(netdevs: dict[int, str]) -> tuple[list[Parts], list[tuple[str, str]]]:
    """Every device with its first port and GIDs; and (device, what went wrong) for those that could not be read.

    `netdevs` gives names by interface index. A kernel without RDMA has no devices, which is no fault by itself.
    """
    try:
        listed = get_device_list()
    except PyverbsRDMAError:
        return [], []
    devices, faults = [], []
    for device in listed:
        name = device.name.decode() if isinstance(device.name, bytes) else str(device.name)
        try:
            devices.append(_device(name, netdevs))
        except (PyverbsError, OSError) as error:
            faults.append((name, str(error)))
    return sorted(devices, key=lambda one: str(one["name"])), sorted(faults)


def _device(name: str, netdevs: dict[int, str]) -> Parts:
    with Context(name=name) as context:
        port = context.query_port(_PORT)
        gids = _gids(context, port.gid_tbl_len, netdevs)
        firmware = context.query_device().fw_version
        firmware = firmware.decode() if isinstance(firmware, bytes) else str(firmware or "")
    lanes, rate = _LANES.get(port.active_width), _GBPS_A_LANE.get(port.active_speed)
    return {
        "name": name,
        "state": _STATES.get(port.state, f"state {port.state}"),
        "active_mtu": _MTU.get(port.active_mtu, 0),
        "speed": lanes * rate if lanes and rate else None,
        "link_layer": _LAYERS.get(port.link_layer, "unspecified"),
        "netdev": next((gid["netdev"] for gid in gids if gid["netdev"]), "") or _netdev_in_sysfs(name),
        "gids": gids,
        "firmware": "" if firmware == "0.0.0" else firmware,  # soft-RoCE's
        "driver": _driver(name),
    }


def _gids(context: Any, slots: int, netdevs: dict[int, str]) -> list[Parts]:
    found = []
    for entry in _entries(context, slots):
        gid = ipaddress.IPv6Address(
            entry.gid_subnet_prefix.to_bytes(8, sys.byteorder) + entry.gid_interface_id.to_bytes(8, sys.byteorder)
        )
        if int(gid):
            found.append(
                {
                    "index": entry.gid_index,
                    "gid": gid.exploded,  # as sysfs and the distribution's tools print it
                    "kind": _KINDS.get(entry.gid_type, f"type {entry.gid_type}"),
                    "netdev": netdevs.get(entry.ndev_ifindex, ""),
                    "address": str(gid.ipv4_mapped or ""),
                }
            )
    return found


def _entries(context: Any, slots: int) -> list[Any]:
    """The filled slots of the port's GID table, asked for at once: soft-RoCE's table has 1024 slots, and a question a
    slot took half of a slow processor's time. A kernel before 5.10 takes them one by one.
    """
    with contextlib.suppress(PyverbsError):
        return [entry for entry in context.query_gid_table(slots) if entry.port_num == _PORT]
    found = []
    for index in range(slots):
        with contextlib.suppress(PyverbsError):  # an empty slot
            found.append(context.query_gid_ex(_PORT, index))
    return found


def _netdev_in_sysfs(device: str) -> str:
    """The netdev of a device whose GID table is empty: by its PCIe function, or soft-RoCE's parent."""
    folder = f"/sys/class/infiniband/{device}"
    with contextlib.suppress(OSError):
        return sorted(os.listdir(f"{folder}/device/net"))[0]
    with contextlib.suppress(OSError), open(f"{folder}/parent", encoding="ascii") as file:
        return file.read().strip()
    return ""


def _driver(device: str) -> str:
    """The driver of the function behind a device; soft-RoCE has none and shows its netdev as `parent` instead."""
    folder = f"/sys/class/infiniband/{device}"
    return sysfs.driver(f"{folder}/device") or ("rdma_rxe" if os.path.exists(f"{folder}/parent") else "")
