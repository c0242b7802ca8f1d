"""RoCE devices as pyverbs 44 tells them on soft-RoCE and on a ConnectX-7, where this machine has none."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from ipaddress import IPv6Address
from pathlib import Path
from types import TracebackType

import pytest
from pyverbs.pyverbs_error import PyverbsRDMAError

from glm_spark.fabric import links, verbs
from glm_spark.fabric.inventory import Inventory, RdmaDevice
from tests.unit.fabric.sparks import config

RECORDED = Path(__file__).parent / "recorded" / "two-crossed.json"


def test_a_kernel_without_rdma_has_no_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise PyverbsRDMAError("Failed to get devices list", 38)

    monkeypatch.setattr(verbs, "get_device_list", refuse)
    assert verbs.read({}) == ([], [])


def test_two_sparks_read_in_the_lab_with_the_cable_from_left_to_right() -> None:
    inventories = {name: Inventory.model_validate(read) for name, read in json.loads(RECORDED.read_text()).items()}
    found = links.find(config(), inventories)
    assert found.findings == ()
    near, far = (links.local_rails(config(), name, own, found.links)[0] for name, own in inventories.items())
    assert [(rail.netdev, rail.device, rail.gid_index) for rail in near] == [
        ("enp1s0f0np0", "rocep1s0f0", 1),
        ("enP2p1s0f0np0", "roceP2p1s0f0", 1),
    ]
    assert [(rail.netdev, rail.device, rail.gid_index) for rail in far] == [
        ("enp1s0f1np1", "rocep1s0f1", 1),
        ("enP2p1s0f1np1", "roceP2p1s0f1", 1),
    ]


# pyverbs as recorded: names in bytes, 64-bit halves of a GID in network order, an error for an empty slot


@dataclass
class Entry:
    gid_index: int
    gid: str
    gid_type: int
    ndev_ifindex: int
    port_num: int = 1

    @property
    def gid_subnet_prefix(self) -> int:
        return int.from_bytes(IPv6Address(self.gid).packed[:8], sys.byteorder)

    @property
    def gid_interface_id(self) -> int:
        return int.from_bytes(IPv6Address(self.gid).packed[8:], sys.byteorder)


@dataclass
class Port:
    state: int = 4
    active_mtu: int = 5
    active_width: int = 2
    active_speed: int = 64
    link_layer: int = 2
    gid_tbl_len: int = 16


@dataclass
class Attributes:
    fw_version: str = "28.45.4028"


@dataclass
class Context:
    name: str
    port: Port = field(default_factory=Port)

    def __enter__(self) -> Context:
        if self.name == "broken":
            raise PyverbsRDMAError("Failed to open device", 13)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def query_port(self, _: int) -> Port:
        return self.port

    def query_device(self) -> Attributes:
        return Attributes()

    def query_gid_table(self, slots: int) -> list[Entry]:
        if self.name == "old":
            raise PyverbsRDMAError("Failed to query gid table", 95)
        return [entry for entry in TABLE if entry.gid_index < slots]

    def query_gid_ex(self, _: int, index: int) -> Entry:
        found = [entry for entry in TABLE if entry.gid_index == index and entry.port_num == 1]
        if not found:
            raise PyverbsRDMAError(f"Failed to query gid {index}", 61)
        return found[0]


TABLE = [
    Entry(0, "fe80::e9d:92ff:fe00:1", 1, 7),
    Entry(1, "fe80::e9d:92ff:fe00:1", 2, 7),
    Entry(2, "::ffff:192.168.100.1", 1, 7),
    Entry(4, "::ffff:192.168.100.1", 2, 7),
    Entry(3, "::ffff:192.168.7.1", 2, 9, port_num=2),
]


@dataclass
class Listed:
    name: bytes


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[Listed]:
    devices: list[Listed] = []
    monkeypatch.setattr(verbs, "get_device_list", lambda: devices)
    monkeypatch.setattr(verbs, "Context", Context)
    return devices


@pytest.mark.parametrize("name", ["rocep1s0f0", "old"])
def test_a_device_of_a_connectx_7(listed: list[Listed], name: str) -> None:
    """Its table at once, or slot by slot where the kernel cannot."""
    listed.append(Listed(name.encode()))
    (told,), faults = verbs.read({7: "enp1s0f0np0"})
    device = RdmaDevice.model_validate(told)
    assert faults == []
    assert (device.name, device.state, device.active_mtu, device.speed) == (name, "ACTIVE", 4096, 200.0)
    assert (device.netdev, device.link_layer, device.firmware) == ("enp1s0f0np0", "Ethernet", "28.45.4028")
    assert [(gid.index, gid.kind, gid.address) for gid in device.gids] == [
        (0, "RoCE v1", ""),
        (1, "RoCE v2", ""),
        (2, "RoCE v1", "192.168.100.1"),
        (4, "RoCE v2", "192.168.100.1"),
    ]
    assert device.gids[3].gid == "0000:0000:0000:0000:0000:ffff:c0a8:6401"


def test_one_device_that_does_not_answer_hides_no_other(listed: list[Listed]) -> None:
    listed += [Listed(b"rocep1s0f0"), Listed(b"broken")]
    devices, faults = verbs.read({7: "enp1s0f0np0"})
    assert [device["name"] for device in devices] == ["rocep1s0f0"]
    assert [name for name, _ in faults] == ["broken"]
    assert "Failed to open device" in faults[0][1]
