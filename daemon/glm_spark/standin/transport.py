"""Which way the ranks' traffic goes, as NCCL and the engine report it.

`choose` decides what the environment asks for, `nccl_lines` and `roce_line` say what came of it. Devices that are asked
for are used (`mesh`); what a round carries of a reply goes over TCP all the same.
"""

from __future__ import annotations

import array
import fcntl
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from glm_spark.standin.console import nccl

SIOCGIFADDR = 0x8915


@dataclass(frozen=True)
class Transport:
    netdev: str
    address: str  # IPv4 of netdev: what the ranks' own sockets bind to
    devices: tuple[str, ...]  # RDMA devices of NCCL; empty = it takes TCP
    gathers_over_roce: bool
    gather_devices: tuple[str, ...]  # RDMA devices of the engine's own small all-gathers
    most_kib: int

    @property
    def rails(self) -> tuple[str, ...]:
        """The devices that the ranks' messages go over, in the order that pairs them with the peers'."""
        return self.gather_devices if self.gathers_over_roce else self.devices


def address_of(netdev: str) -> str:
    """The netdev's IPv4 address, "" when it has none or does not exist."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = array.array("B", struct.pack("256s", netdev.encode()[:15]))
        try:
            fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)
        except OSError:
            return ""
    return socket.inet_ntoa(request[20:24].tobytes())


def netdev_for(wanted: str, fallback_address: str) -> tuple[str, str]:
    """NCCL's choice of (netdev, IPv4) for a NCCL_SOCKET_IFNAME: a list of name beginnings, `=` for whole names.

    Unset, the netdev that already reaches rank 0 is used. Raises RuntimeError with NCCL's error when a list is
    given and nothing on this Spark matches.
    """
    for _, name in socket.if_nameindex():
        address = address_of(name)
        if not wanted and address == fallback_address:
            return name, address
        for one in filter(None, wanted.split(",")):
            matches = name == one[1:] if one.startswith("=") else name.startswith(one)
            if matches and address:
                return name, address
    if wanted:
        raise RuntimeError(
            "NCCL error 3: internal error - please report this issue to the NCCL developers "
            f"(Bootstrap : no socket interface found for NCCL_SOCKET_IFNAME={wanted})"
        )
    return "lo", fallback_address or "127.0.0.1"


def names_in(listed: str) -> tuple[str, ...]:
    """Device names of a NCCL_IB_HCA or TF_ROCE_HCA value, without `=` and port numbers."""
    return tuple(one.split(":")[0] for one in listed.removeprefix("=").split(",") if one)


def choose(environment: Mapping[str, str], fallback_address: str, fallback: bool = False) -> Transport:
    """What this rank's environment asks for. `fallback` = NCCL gives up on RDMA, as with a wrong device name.

    TF_ROCE_HCA is for the engine's own all-gathers; without it they use NCCL's devices.
    """
    netdev, address = netdev_for(environment.get("NCCL_SOCKET_IFNAME", ""), fallback_address)
    own = names_in(environment.get("TF_ROCE_HCA", ""))
    listed = names_in(environment.get("NCCL_IB_HCA", "")) or own
    if environment.get("NCCL_IB_DISABLE", "0") == "1":
        own = listed = ()
    over_roce = environment.get("TF_GLM_COMM", "nccl") == "roce"
    return Transport(
        netdev=netdev,
        address=address,
        devices=() if fallback else listed,
        gathers_over_roce=over_roce,
        gather_devices=(own or listed) if over_roce else (),
        most_kib=int(environment.get("TF_ROCE_MAX_KB", "512")),
    )


def nccl_lines(transport: Transport, rank: int, environment: Mapping[str, str]) -> list[str]:
    """NCCL's INFO lines about its network, empty unless NCCL_DEBUG asks for them."""
    if environment.get("NCCL_DEBUG", "").upper() not in ("INFO", "TRACE"):
        return []
    head = nccl("INFO")
    oob = f"{transport.netdev}:{transport.address}<0>"
    if transport.devices:
        used = " ".join(f"[{index}]{name}:1/RoCE" for index, name in enumerate(transport.devices))
        network = [f"{head} NET/IB : Using {used} [RO]; OOB {oob}", f"{head} Using network IB"]
    else:
        network = [f"{head} NET/Socket : Using [0]{oob}", f"{head} Using network Socket"]
    return [f"{head} Bootstrap: Using {oob}", *network, f"{head} comm 0x55d0c0de rank {rank} Init COMPLETE"]


def roce_line(transport: Transport) -> str:
    """Rank 0's line about small all-gathers over RoCE, "" when NCCL carries them all."""
    if not transport.gathers_over_roce:
        return ""
    devices = transport.gather_devices or ("rocep1s0f0",)  # none given: the engine finds one by itself
    return (
        f"all-gathers up to {transport.most_kib} KiB over RoCE ({', '.join(devices)}; "
        "b12x's RoCEnante transport), larger ones over NCCL"
    )
