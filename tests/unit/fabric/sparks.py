"""Inventories as data: what the reader says on two or three cabled Sparks."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glm_spark.config.model import Config, Fabric, Node
from glm_spark.fabric.inventory import Gid, Inventory, NetDev, RdmaDevice, Route

NAMES = ("spark-1", "spark-2", "spark-3")


@dataclass(frozen=True)
class Twin:
    """One netdev of a port with its device: `at` is its address with prefix ("" for none)."""

    port: int
    second: bool
    at: str = ""
    mtu: int = 9000
    carrier: bool = True
    device: bool = True
    state: str = "ACTIVE"
    gid_index: int | None = 3
    prefix: str = ""  # of the device's name: two Sparks need not have the same

    @property
    def name(self) -> str:
        return f"{'enP2p1' if self.second else 'enp1'}s0f{self.port}np{self.port}"

    @property
    def device_name(self) -> str:
        return f"{self.prefix}{'roceP2p1' if self.second else 'rocep1'}s0f{self.port}"

    @property
    def address(self) -> str:
        return self.at.split("/")[0]

    def netdev(self, index: int) -> NetDev:
        return NetDev(
            name=self.name,
            index=index,
            mtu=self.mtu,
            operstate="up" if self.carrier else "down",
            carrier=self.carrier,
            addresses=(self.at,) if self.at else (),
            pci=f"000{2 if self.second else 0}:01:00.{self.port}",
            port=f"p{self.port}",
        )

    def rdma(self) -> RdmaDevice:
        gids = [Gid(index=0, gid="fe80::1", kind="RoCE v1", netdev=self.name)]
        if self.at:
            mapped = f"::ffff:{self.address}"
            # The same address also stands as a RoCE v1 entry: the type decides, not the address alone.
            v1 = Gid(index=2, gid=mapped, kind="RoCE v1", netdev=self.name, address=self.address)
            gids.append(v1)
            if self.gid_index is not None:
                gids.append(v1.model_copy(update={"index": self.gid_index, "kind": "RoCE v2"}))
        return RdmaDevice(
            name=self.device_name,
            state=self.state if self.carrier else "DOWN",
            active_mtu=4096,
            netdev=self.name,
            gids=tuple(gids),
        )


LAN = NetDev(
    name="enP7s7", index=2, mtu=1500, operstate="up", carrier=True, addresses=("10.0.0.11/24",), default_route=True
)
OTHERS = (
    NetDev(name="lo", index=1, mtu=65536, carrier=True, addresses=("127.0.0.1/8",)),
    NetDev(name="docker0", index=90, mtu=1500, kind="bridge", carrier=True, addresses=("172.17.0.1/16",)),
    NetDev(name="veth1a2b", index=91, mtu=1500, kind="veth", carrier=True, master="docker0"),
    NetDev(name="tailscale0", index=92, mtu=1280, kind="tun", carrier=True, addresses=("100.64.0.1/10",)),
    NetDev(name="wlP9s9", index=93, mtu=1500, kind="wlan", carrier=True, addresses=("10.0.1.11/24",)),
)


def inventory(*twins: Twin, lan: str = "10.0.0.11", routes: tuple[Route, ...] = ()) -> Inventory:
    lan_netdev = LAN.model_copy(update={"addresses": (f"{lan}/24",)})
    return Inventory(
        netdevs=(*OTHERS, lan_netdev, *(twin.netdev(10 + at) for at, twin in enumerate(twins))),
        devices=tuple(twin.rdma() for twin in twins if twin.device),
        routes=routes,
        default_netdev="enP7s7",
        default_address=lan,
    )


def config(count: int = 2, *, transport: str = "roce", addresses: tuple[str, ...] = (), **fabric: object) -> Config:
    at = addresses or ("", *(f"192.168.100.{number}" for number in range(2, count + 1)))
    nodes = tuple(Node(name=name, address=address) for name, address in zip(NAMES, at, strict=False))
    return Config.model_validate(
        {"node": nodes[:count], "fabric": Fabric.model_validate({"transport": transport, **fabric})}
    )


def port(number: int, subnets: tuple[int, int], last: int, **more: object) -> tuple[Twin, Twin]:
    """Both twins of a port, addressed in 192.168.SUBNET.0/24."""
    made = []
    for second in (False, True):
        # In one subnet the second twin needs an address of its own.
        host = last + (10 if second and subnets[0] == subnets[1] else 0)
        made.append(replace(Twin(number, second), at=f"192.168.{subnets[second]}.{host}/24", **more))  # type: ignore[arg-type]
    return made[0], made[1]


def pair(**second: object) -> dict[str, Inventory]:
    """Two Sparks, port 0 to port 0, a subnet for each twin; `second` changes the second Spark's twins."""
    return {
        "spark-1": inventory(*port(0, (100, 101), 1), Twin(1, False, carrier=False), Twin(1, True, carrier=False)),
        "spark-2": inventory(*port(0, (100, 101), 2, **second), lan="10.0.0.12"),
    }
