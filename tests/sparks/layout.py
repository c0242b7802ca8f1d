"""What two or three Sparks on one machine look like: names, netdevs, addresses, cables. Pure.

A QSFP port of a Spark is two PCIe functions, so two netdevs ("twins"): `a` is the first PCIe domain
(enp1s0f0np0), `b` the second (enP2p1s0f0np0). Both twins of a port share the plug and the cable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Interface
from typing import Literal

Twin = Literal["a", "b"]
TWINS: tuple[Twin, Twin] = ("a", "b")
PORTS = (0, 1)
LAN_NETDEV = "enP7s7"
LAN_GATEWAY = IPv4Interface("10.77.0.254/24")
JUMBO_MTU = 9000


@dataclass(frozen=True)
class Netdev:
    """One netdev of a Spark. `port` is None for the LAN. `room_end` is the other end of its veth pair,
    which lives in the room (the namespace that holds the cables), `address` is None when it has none."""

    name: str
    port: int | None
    twin: Twin | None
    address: IPv4Interface | None
    mtu: int
    mac: str
    room_end: str


@dataclass(frozen=True)
class SparkPlan:
    """One Spark: its number (from 1), its host name and its netdevs."""

    number: int
    name: str
    netdevs: tuple[Netdev, ...]

    @property
    def lan(self) -> Netdev:
        return next(netdev for netdev in self.netdevs if netdev.port is None)

    def netdev(self, port: int, twin: Twin) -> Netdev:
        return next(n for n in self.netdevs if (n.port, n.twin) == (port, twin))


@dataclass(frozen=True)
class Cable:
    """A QSFP cable: (Spark number, port) at either end; one rail for each twin."""

    a: tuple[int, int]
    b: tuple[int, int]

    def bridge(self, twin: Twin) -> str:
        """The bridge in the room that joins the two ends of one rail."""
        return f"rail{self.a[0]}{self.b[0]}{twin}"

    def joins(self, first: int, second: int) -> bool:
        return {self.a[0], self.b[0]} == {first, second}


@dataclass(frozen=True)
class Layout:
    sparks: tuple[SparkPlan, ...]
    cables: tuple[Cable, ...]

    def spark(self, number: int) -> SparkPlan:
        return self.sparks[number - 1]

    def cable(self, first: int, second: int) -> Cable:
        """The cable between two Sparks; KeyError when none joins them."""
        for cable in self.cables:
            if cable.joins(first, second):
                return cable
        raise KeyError(f"no cable joins Spark {first} and Spark {second}")

    def ends(self, cable: Cable, twin: Twin) -> tuple[Netdev, Netdev]:
        (spark_a, port_a), (spark_b, port_b) = cable.a, cable.b
        return self.spark(spark_a).netdev(port_a, twin), self.spark(spark_b).netdev(port_b, twin)

    def address(self, number: int, peer: int, twin: Twin = "a") -> str:
        """The address of Spark `number` on its cable to Spark `peer`."""
        cable = self.cable(number, peer)
        end = self.ends(cable, twin)[0 if cable.a[0] == number else 1]
        if end.address is None:
            raise KeyError(f"{end.name} of Spark {number} has no address")
        return str(end.address.ip)


def netdev_name(port: int, twin: Twin) -> str:
    """The name a Spark gives a twin (seen on DGX OS: PCIe domains 0 and 2)."""
    return f"{'enp1' if twin == 'a' else 'enP2p1'}s0f{port}np{port}"


def describe(count: int = 2, *, names: Sequence[str] = (), crossed: bool = False, mtu: int = JUMBO_MTU) -> Layout:
    """Two Sparks: one cable, port 0 to port 0 (`crossed`: port 0 to port 1), subnets 192.168.100.0/24 for
    twin a and 192.168.101.0/24 for twin b. Three: a triangle, port 0 to the next Spark's port 1, two
    subnets a pair from 192.168.100.0/24 on. In each subnet a Spark's last octet is its number."""
    if count not in (2, 3):
        raise ValueError(f"{count} Sparks asked for; 2 or 3 can be cabled port to port")
    cables = _cables(count, crossed)
    addresses = {
        (spark, port, twin): IPv4Interface(f"192.168.{100 + 2 * pair + index}.{spark}/24")
        for pair, cable in enumerate(cables)
        for spark, port in (cable.a, cable.b)
        for index, twin in enumerate(TWINS)
    }
    sparks = []
    for number in range(1, count + 1):
        fabric = [
            Netdev(
                name=netdev_name(port, twin),
                port=port,
                twin=twin,
                address=addresses.get((number, port, twin)),
                mtu=mtu,
                mac=f"02:5a:00:{number:02x}:{port:02x}:{TWINS.index(twin):02x}",
                room_end=f"s{number}p{port}{twin}",
            )
            for port in PORTS
            for twin in TWINS
        ]
        name = names[number - 1] if names else f"spark-{number}"
        sparks.append(SparkPlan(number, name, (*fabric, _lan(number))))
    return Layout(tuple(sparks), cables)


def _cables(count: int, crossed: bool) -> tuple[Cable, ...]:
    if count == 2:
        return (Cable((1, 0), (2, 1 if crossed else 0)),)
    return tuple(Cable((number, 0), (number % 3 + 1, 1)) for number in (1, 2, 3))


def _lan(number: int) -> Netdev:
    return Netdev(
        name=LAN_NETDEV,
        port=None,
        twin=None,
        address=IPv4Interface(f"10.77.0.{10 + number}/24"),
        mtu=1500,
        mac=f"02:5a:00:{number:02x}:ff:00",
        room_end=f"s{number}lan",
    )
