"""A virtual Spark's fabric and everything that can go wrong with it, as methods."""

from __future__ import annotations

import json
import shlex
import time
from typing import Any

from .machine import Machine
from .topology import FABRIC_MTU, Function, Port, functions

# The kernel fills and clears GID slots from a work queue, a little after the address changed.
_GID_SECONDS = 10.0


class Spark(Machine):
    """Functions are named by netdev or device as in the guest."""

    # --- reading, as a person at this Spark would see it

    def functions(self) -> list[Function]:
        """The cabled functions, in port and twin order."""
        return [f for f in functions(self.number) if self.topology.cable_at(f.port) is not None]

    def address(self, function: Function) -> str:
        address = self.topology.address(function)
        if address is None:
            raise KeyError(f"{self.name}: {function.netdev} has no address in topology {self.topology.name}")
        return address

    def carrier(self, netdev: str) -> bool:
        return self.out(f"cat /sys/class/net/{netdev}/carrier") == "1"

    def link(self, netdev: str) -> dict[str, Any]:
        """`ip -d -j address show` of one netdev."""
        return dict(json.loads(self.out(f"ip -d -j address show dev {shlex.quote(netdev)}"))[0])

    def port_state(self, device: str) -> str:
        """ACTIVE or DOWN: the RoCE port's state as sysfs tells it."""
        return self.out(f"cat /sys/class/infiniband/{device}/ports/1/state").partition(": ")[2]

    def devices(self) -> list[str]:
        return self.out("ls /sys/class/infiniband").split()

    def gids(self, device: str) -> dict[int, str]:
        """The filled slots of a device's GID table: index -> GID as sysfs writes it."""
        text = self.out(f"cd /sys/class/infiniband/{device}/ports/1/gids && grep -H . *")
        slots = (line.split(":", 1) for line in text.splitlines())
        return {int(index): gid for index, gid in slots if gid.strip("0:")}

    def gid_index(self, device: str, address: str) -> int | None:
        """The slot that holds an IPv4 address, None when none does."""
        octets = [int(part) for part in address.split(".")]
        tail = f"ffff:{octets[0]:02x}{octets[1]:02x}:{octets[2]:02x}{octets[3]:02x}"
        return next((index for index, gid in self.gids(device).items() if gid.endswith(tail)), None)

    # --- plugs, as QEMU sees them

    def set_carrier(self, port: Port, up: bool) -> None:
        """Both functions of a port gain or lose their carrier."""
        for function in functions(self.number):
            if function.port == port:
                self.set_function_carrier(function, up)

    def set_function_carrier(self, function: Function, up: bool) -> None:
        self.qmp.command("set_link", name=function.qemu_id, up=up)

    def set_lan(self, up: bool) -> None:
        """Pull or plug this Spark's LAN."""
        self.qmp.command("set_link", name="nic-lan", up=up)

    # --- addresses, MTU, GIDs

    def set_mtu(self, netdev: str, mtu: int) -> None:
        """The netdev sends and takes frames up to `mtu` only.

        A ConnectX drops what is longer than its MTU; virtio delivers all that fits its buffers, so the
        longer ones are dropped on arrival here.
        """
        police = f"police rate 100gbit burst 64m mtu {mtu + 14} conform-exceed drop"
        self.run(
            f"ip link set {netdev} mtu {mtu} && ethtool -K {netdev} gro off && "
            f"{{ tc qdisc del dev {netdev} ingress 2>/dev/null; tc qdisc add dev {netdev} ingress; }} && "
            f"tc filter add dev {netdev} ingress matchall action {police}"
        )

    def remove_address(self, netdev: str) -> None:
        """All IPv4 addresses of the netdev go, as when another tool takes the port over."""
        self.run(f"ip -4 address flush dev {netdev}")

    def add_address(self, netdev: str, address: str, prefix: int = 24) -> None:
        self.run(f"ip address add {address}/{prefix} dev {netdev}")

    def move_gid(self, function: Function, address: str | None = None) -> tuple[int, int]:
        """The address keeps but its GID moves up one slot or more; (before, after).

        A placeholder takes the slot while the address is away for a few milliseconds.
        """
        address = address or self.address(function)
        before = self.await_gid(function.device, address)
        dev, filler = f"dev {function.netdev}", "198.51.100.77/32"
        steps = (
            f"address del {address}/24 {dev}",
            f"address add {filler} {dev}",
            f"address add {address}/24 {dev}",
        )
        self.run("ip -batch -", stdin="\n".join(steps).encode() + b"\n")
        after = self.await_gid(function.device, address, other_than=before)
        self.run(f"ip address del {filler} {dev}")
        return before, after

    def await_gid(self, device: str, address: str, other_than: int | None = None) -> int:
        """The slot of an address once the kernel has filled it."""
        end = time.monotonic() + _GID_SECONDS
        while True:
            index = self.gid_index(device, address)
            if index is not None and index != other_than:
                return index
            if time.monotonic() > end:
                raise AssertionError(f"{self.name}: {device} has {address} at {index}; table {self.gids(device)}")
            time.sleep(0.1)

    def set_arp_flux(self, on: bool) -> None:
        """With it each twin answers ARP for the other's address, as a stock kernel does."""
        ignore, announce = (0, 0) if on else (1, 2)
        self.run(f"sysctl -qw net.ipv4.conf.all.arp_ignore={ignore} net.ipv4.conf.all.arp_announce={announce}")
        self.run("ip neigh flush all")

    # --- devices

    def delete_device(self, device: str) -> None:
        self.run(f"rdma link delete {device}")

    def add_device(self, device: str, netdev: str) -> None:
        self.run(f"rdma link add {device} type rxe netdev {netdev}")

    def remove_function(self, function: Function) -> None:
        """The PCIe function vanishes with its netdev and device, as when a firmware drops it with the cable."""
        self.run(f"rdma link delete {function.device} 2>/dev/null; true")
        self.run(f"echo 1 > $(readlink -f /sys/class/net/{function.netdev}/device/..)/remove")

    def restore_function(self, function: Function) -> None:
        """The function comes back, with the address the topology gives it and its device."""
        self.run("echo 1 > /sys/bus/pci/rescan && udevadm settle")
        self.run(f"ip link set {function.netdev} up mtu {FABRIC_MTU}")
        address = self.topology.address(function)
        if address is not None:
            self.add_address(function.netdev, address)
        self.add_device(function.device, function.netdev)

    # --- what passes the wire

    def lose_outgoing(self, netdev: str, percent: float = 100.0) -> None:
        """What leaves on the netdev is lost, what arrives is not: a one-way loss that no interface shows."""
        self.run(f"tc qdisc replace dev {netdev} root netem loss {percent}%")

    def slow_outgoing(self, netdev: str, options: str) -> None:
        """netem with options of its own, such as `delay 5ms` or `rate 1gbit`."""
        self.run(f"tc qdisc replace dev {netdev} root netem {options}")

    def heal_outgoing(self, netdev: str) -> None:
        self.run(f"tc qdisc del dev {netdev} root")

    def firewall(self, rule: str) -> None:
        """An nftables rule in an input chain of its own, for instance `iifname enp1s0f0np0 udp dport 4791 drop`."""
        self.run(
            "nft add table inet lab && nft 'add chain inet lab input { type filter hook input priority 0; }' && "
            f"nft add rule inet lab input {shlex.quote(rule)}"
        )

    def no_firewall(self) -> None:
        self.run("nft delete table inet lab")

    def ping(self, function: Function, *, size: int = 56, count: int = 1) -> bool:
        """Reach the peer's same function, bound to the netdev, unfragmented; `size` is the ICMP payload in bytes."""
        peer = self.topology.address(self.topology.peer(function))
        command = f"ping -c{count} -W3 -M do -s {size} -I {function.netdev} {peer}"
        return self.run(command, check=False).status == 0
