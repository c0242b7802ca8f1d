"""Which Sparks there are, which functions they have, which cable runs where, and every address. Pure.

A Spark's QSFP port shows two PCIe functions, the twins: one netdev and one RoCE device each, both on the
same cable. Names follow what a Spark with stock DGX OS shows (enp1s0f0np0 and rocep1s0f0, enP2p1s0f0np0 and
roceP2p1s0f0; f1/np1 for the second port). Sparks are numbered from 1, ports and twins from 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

MAX_SPARKS = 3
LAN_NETDEV = "enP7s7"
LAN_GATEWAY = "10.77.0.254"
FABRIC_MTU = 9000


class TwinLayout(StrEnum):
    """How the two functions of a cabled port are addressed."""

    OWN_SUBNETS = "own-subnets"
    ONE_SUBNET = "one-subnet"
    FIRST_ONLY = "first-only"


@dataclass(frozen=True, order=True)
class Port:
    """One QSFP cage of one Spark."""

    spark: int
    index: int


@dataclass(frozen=True, order=True)
class Function:
    """One PCIe function of a port: a netdev and the RoCE device on it."""

    port: Port
    twin: int

    @property
    def netdev(self) -> str:
        bus = "en" + ("p1s0", "P2p1s0")[self.twin]
        return f"{bus}f{self.port.index}np{self.port.index}"

    @property
    def device(self) -> str:
        return "roce" + ("p1s0", "P2p1s0")[self.twin] + f"f{self.port.index}"

    @property
    def mac(self) -> str:
        return f"52:54:00:cc:{self.port.spark:02x}:{0xA0 + 0x10 * self.twin + self.port.index:02x}"

    @property
    def qemu_id(self) -> str:
        return f"nic{self.port.index}{'ab'[self.twin]}"


@dataclass(frozen=True)
class Cable:
    a: Port
    b: Port

    def other(self, port: Port) -> Port:
        return self.b if port == self.a else self.a

    @property
    def ends(self) -> tuple[Port, Port]:
        return (self.a, self.b)


@dataclass(frozen=True)
class Topology:
    """Sparks 1..count and their cables. A cable's position in the tuple fixes its subnets."""

    name: str
    count: int
    cables: tuple[Cable, ...]
    layout: TwinLayout = TwinLayout.OWN_SUBNETS

    def __post_init__(self) -> None:
        ends = [end for cable in self.cables for end in cable.ends]
        if len(ends) != len(set(ends)):
            raise ValueError(f"topology {self.name}: a port holds two cables")
        if not 1 <= self.count <= MAX_SPARKS or any(not 1 <= end.spark <= self.count for end in ends):
            raise ValueError(f"topology {self.name}: Sparks are numbered 1..{MAX_SPARKS}")

    @property
    def sparks(self) -> range:
        return range(1, self.count + 1)

    def cable_at(self, port: Port) -> Cable | None:
        return next((cable for cable in self.cables if port in cable.ends), None)

    def cable_between(self, one: int, other: int) -> Cable:
        for cable in self.cables:
            if {cable.a.spark, cable.b.spark} == {one, other}:
                return cable
        raise KeyError(f"topology {self.name}: no cable between {spark_name(one)} and {spark_name(other)}")

    def address(self, function: Function) -> str | None:
        """The function's IPv4 address without prefix (always a /24); None when it has none."""
        cable = self.cable_at(function.port)
        if cable is None or (self.layout is TwinLayout.FIRST_ONLY and function.twin):
            return None
        number = self.cables.index(cable)
        if self.layout is TwinLayout.ONE_SUBNET:
            return f"192.168.{100 + 2 * number}.{function.port.spark + 10 * function.twin}"
        return f"192.168.{100 + 2 * number + function.twin}.{function.port.spark}"

    def peer(self, function: Function) -> Function:
        """The function of the same twin at the cable's other end."""
        cable = self.cable_at(function.port)
        if cable is None:
            raise KeyError(f"topology {self.name}: {function.netdev} has no cable")
        return Function(cable.other(function.port), function.twin)

    def rails(self, cable: Cable) -> list[tuple[Function, Function]]:
        """The addressed function pairs of a cable, the end named first in the cable first."""
        pairs = [(Function(cable.a, twin), Function(cable.b, twin)) for twin in (0, 1)]
        return [pair for pair in pairs if self.address(pair[0]) is not None]


def spark_name(spark: int) -> str:
    return f"spark-{spark}"


def ports(spark: int) -> tuple[Port, Port]:
    return Port(spark, 0), Port(spark, 1)


def functions(spark: int) -> Iterator[Function]:
    """All four fabric functions of a Spark, cabled or not, as the hardware shows them."""
    for port in ports(spark):
        for twin in (0, 1):
            yield Function(port, twin)


def lan_mac(spark: int) -> str:
    return f"52:54:00:cc:{spark:02x}:ee"


def lan_address(spark: int) -> str:
    return f"10.77.0.{spark}"


def link_files() -> dict[str, str]:
    """systemd .link files (file name -> text) that give every NIC of every Spark its Spark name by MAC."""
    wanted: dict[str, list[str]] = {LAN_NETDEV: [lan_mac(spark) for spark in range(1, MAX_SPARKS + 1)]}
    for spark in range(1, MAX_SPARKS + 1):
        for function in functions(spark):
            wanted.setdefault(function.netdev, []).append(function.mac)
    return {
        f"10-{netdev}.link": f"[Match]\nMACAddress={' '.join(macs)}\n[Link]\nName={netdev}\n"
        for netdev, macs in wanted.items()
    }


def kernel_arguments(topology: Topology, spark: int) -> list[str]:
    """The lab.* words of the kernel command line: what lab-setup configures at each boot of this Spark."""
    nets = [f"{LAN_NETDEV},1500,{lan_address(spark)}/24"]
    devices = []
    for function in functions(spark):
        address = topology.address(function)
        nets.append(f"{function.netdev},{FABRIC_MTU}" + (f",{address}/24" if address else ""))
        devices.append(f"{function.device},{function.netdev}")
    return [
        f"systemd.hostname={spark_name(spark)}",
        f"lab.host={spark_name(spark)}",
        f"lab.gateway={LAN_GATEWAY}",
        "lab.net=" + ";".join(nets),
        "lab.rdma=" + ";".join(devices),
    ]


def _ring(count: int) -> tuple[Cable, ...]:
    """Three Sparks: port 0 of each to port 1 of the next, as the triangle of the field is cabled."""
    return tuple(Cable(Port(spark, 0), Port(spark % count + 1, 1)) for spark in range(1, count + 1))


_STRAIGHT = (Cable(Port(1, 0), Port(2, 0)),)

TOPOLOGIES: dict[str, Topology] = {
    topology.name: topology
    for topology in (
        Topology("two", 2, _STRAIGHT),
        Topology("two-one-subnet", 2, _STRAIGHT, TwinLayout.ONE_SUBNET),
        Topology("two-first-only", 2, _STRAIGHT, TwinLayout.FIRST_ONLY),
        Topology("two-crossed", 2, (Cable(Port(1, 0), Port(2, 1)),)),
        Topology("two-double", 2, (Cable(Port(1, 0), Port(2, 0)), Cable(Port(1, 1), Port(2, 1)))),
        Topology("three", 3, _ring(3)),
        Topology("three-open", 3, _ring(3)[:2]),
    )
}
