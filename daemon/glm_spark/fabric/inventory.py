"""What one Spark has: netdevs, RoCE devices, routes. Frozen data; it crosses the wire to the leader."""

from __future__ import annotations

import ipaddress

from pydantic import BaseModel, ConfigDict, Field

from glm_spark.finding import Finding


class Read(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Pcie(Read):
    """A function's PCIe link as it is, and the most the function itself could have: lanes and GT/s."""

    width: int
    speed: float
    most_width: int | None = None
    most_speed: float | None = None

    @property
    def gbps(self) -> float:
        """What it carries in Gb/s: less the line code, and a tenth for packet headers, as measured on a Spark."""
        code = 128 / 130 if self.speed >= 8 else 8 / 10
        return self.width * self.speed * code * 0.89

    def __str__(self) -> str:
        """`x4 at 32 GT/s`."""
        return f"x{self.width} at {self.speed:g} GT/s"


class NetDev(Read):
    """A network device. `addresses` are IPv4 in prefix form ("192.168.100.1/24"); speed in Mb/s, None unknown."""

    name: str
    index: int
    mac: str = ""
    mtu: int
    operstate: str = ""
    carrier: bool = False
    speed: int | None = None
    kind: str = ""  # "" for hardware; veth, bridge, wireguard, ... for virtual ones
    addresses: tuple[str, ...] = ()
    pci: str = ""  # "0000:01:00.0", empty where there is none
    pcie: Pcie | None = None
    driver: str = ""
    port: str = ""  # phys_port_name ("p0") or the port number of the PCIe function, where known
    master: str = ""  # the bridge or bond that it belongs to
    default_route: bool = False  # some default route leaves here

    def address_facing(self, peer: str) -> str | None:
        """This netdev's address in the subnet that holds `peer`, or None."""
        for text in self.addresses:
            interface = ipaddress.IPv4Interface(text)
            if ipaddress.IPv4Address(peer) in interface.network:
                return str(interface.ip)
        return None


class Gid(Read):
    """An entry of a device's GID table. `kind` is "RoCE v1", "RoCE v2" or "IB"; `address` the IPv4 in it or ""."""

    index: int
    gid: str
    kind: str
    netdev: str = ""
    address: str = ""


class RdmaDevice(Read):
    """An RDMA device's first port. MTU in bytes; speed in Gb/s; state as verbs names it ("ACTIVE")."""

    name: str
    state: str
    active_mtu: int = 0
    speed: float | None = None
    link_layer: str = "Ethernet"
    netdev: str = ""
    gids: tuple[Gid, ...] = ()
    firmware: str = ""
    driver: str = ""

    @property
    def software(self) -> bool:
        """Soft-RoCE: made of a netdev, and as fast as the processor."""
        return self.driver in ("rdma_rxe", "siw")


class Route(Read):
    """How the kernel would reach an address."""

    destination: str
    netdev: str = ""  # empty: no route
    source: str = ""
    gateway: str = ""


class Neighbour(Read):
    """An IPv4 address that was seen on a netdev, with the hardware address that answered for it."""

    netdev: str
    address: str
    mac: str = ""


class Inventory(Read):
    """One reading of a Spark. `default_netdev` carries the default route; `default_address` is its address."""

    netdevs: tuple[NetDev, ...] = ()
    devices: tuple[RdmaDevice, ...] = ()
    routes: tuple[Route, ...] = ()
    neighbours: tuple[Neighbour, ...] = ()
    default_netdev: str = ""
    default_address: str = ""
    findings: tuple[Finding, ...] = Field(default=(), description="what could not be read")

    def netdev_with(self, address: str) -> NetDev | None:
        """The netdev that carries an IPv4 address."""
        return next(
            (n for n in self.netdevs if any(text.split("/")[0] == address for text in n.addresses)),
            None,
        )

    def netdev(self, name: str) -> NetDev | None:
        return next((netdev for netdev in self.netdevs if netdev.name == name), None)

    def device_on(self, netdev: str) -> RdmaDevice | None:
        return next((device for device in self.devices if device.netdev == netdev), None)

    def route_to(self, address: str) -> Route | None:
        return next((route for route in self.routes if route.destination == address), None)
