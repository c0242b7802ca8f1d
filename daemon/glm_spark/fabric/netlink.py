"""What the kernel says about links, addresses, routes and neighbours, over rtnetlink.

Runs in the child program (`glm_spark.fabric.child`), never in the daemon: a wedged driver can hold the kernel's
rtnl lock for ever, and then no call in here returns. The messages are pyroute2's; the socket is a plain one,
because pyroute2's own brings an event loop, threads and 18 MB, and this process is there all the time. For the
same reason nothing here imports pydantic: readings are dicts in the shape of `fabric.inventory`.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct
from collections.abc import Iterable, Iterator
from typing import Any

from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.ndmsg import ndmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from glm_spark.fabric import sysfs

Parts = dict[str, Any]  # fields of an Inventory (or of a part of it) by name

_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_NLM_F_REQUEST, _NLM_F_DUMP, _NLM_F_DUMP_INTR = 0x1, 0x300, 0x10
_RTM_GETLINK, _RTM_GETADDR, _RTM_GETROUTE, _RTM_GETNEIGH = 18, 22, 26, 30
_RT_TABLE_MAIN, _RTN_UNICAST = 254, 1
_NUD_SEEN = 0x02 | 0x04 | 0x08 | 0x10 | 0x80  # reachable, stale, delay, probe, permanent
_CHANGES = 0x1 | 0x10 | 0x40  # the groups of links, IPv4 addresses and IPv4 routes
_HEADER = struct.Struct("=IHHII")


class Interrupted(Exception):
    """A table changed while it was read; read it again."""


def read(peers: Iterable[str]) -> Parts:
    """One reading: netdevs, the default route, a route for each peer address, neighbours. Raises OSError."""
    for _ in range(4):
        try:
            with _Socket() as kernel:
                return _read(kernel, tuple(peers))
        except Interrupted:
            continue
    raise OSError(errno.EAGAIN, "the kernel's tables changed during four readings")


def listener() -> socket.socket:
    """A non-blocking socket that becomes readable when a link, an IPv4 address or a route changes."""
    heard = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.NETLINK_ROUTE)
    heard.bind((0, _CHANGES))
    return heard


def drain(heard: socket.socket) -> None:
    """Forget what the listener heard; a full buffer is news like any other, since everything is read anew."""
    while True:
        try:
            heard.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise


class _Socket:
    """A request socket to rtnetlink."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        self._socket.bind((0, 0))
        self._sequence = 0

    def __enter__(self) -> _Socket:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, message: Any, kind: int, *, dump: bool) -> Iterator[Any]:
        """Send a request and yield its answers as messages of the same class. Raises OSError, Interrupted."""
        self._sequence += 1
        message["header"]["type"] = kind
        message["header"]["flags"] = _NLM_F_REQUEST | (_NLM_F_DUMP if dump else 0)
        message["header"]["sequence_number"] = self._sequence
        message.encode()
        self._socket.send(message.data)
        while True:
            data, offset = self._socket.recv(1 << 18), 0
            while offset < len(data):
                length, answer, flags, sequence, _ = _HEADER.unpack_from(data, offset)
                body = data[offset : offset + length]
                offset += (length + 3) & ~3
                if sequence != self._sequence:
                    continue
                if flags & _NLM_F_DUMP_INTR:
                    raise Interrupted
                if answer == _NLMSG_ERROR:
                    code = -struct.unpack_from("=i", body, _HEADER.size)[0]
                    raise OSError(code, os.strerror(code))
                if answer == _NLMSG_DONE:
                    return
                told = type(message)(body)
                told.decode()
                yield told
                if not dump:
                    return

    def dump(self, cls: type[Any], kind: int, family: int) -> list[Any]:
        message = cls()
        message["family"] = family
        return list(self.ask(message, kind, dump=True))


def _read(kernel: _Socket, peers: tuple[str, ...]) -> Parts:
    links = {link["index"]: link for link in kernel.dump(ifinfmsg, _RTM_GETLINK, socket.AF_UNSPEC)}
    names = {index: str(link.get_attr("IFLA_IFNAME")) for index, link in links.items()}
    addresses: dict[int, list[str]] = {}
    for told in kernel.dump(ifaddrmsg, _RTM_GETADDR, socket.AF_INET):
        local = told.get_attr("IFA_LOCAL") or told.get_attr("IFA_ADDRESS")
        addresses.setdefault(told["index"], []).append(f"{local}/{told['prefixlen']}")
    defaults = _default_routes(kernel)
    leaving = {index for _, index, _, _ in defaults}
    netdevs = [
        _netdev(index, link, names, sorted(addresses.get(index, [])), index in leaving)
        for index, link in sorted(links.items())
    ]
    parts: Parts = {
        "netdevs": netdevs,
        "routes": [_route(kernel, peer, names) for peer in dict.fromkeys(peers)],
        "neighbours": _neighbours(kernel, names),
    }
    if defaults:
        _, index, gateway, source = defaults[0]
        parts["default_netdev"] = names.get(index, "")
        parts["default_address"] = source or _facing(addresses.get(index, []), gateway)
    return parts


def _netdev(index: int, link: Any, names: dict[int, str], addresses: list[str], default: bool) -> Parts:
    name = names[index]
    folder = _sysfs(name, index)
    pci = sysfs.pci_folder(f"{folder}/device") if folder else ""
    kind = link.get_nested("IFLA_LINKINFO", "IFLA_INFO_KIND") or ""
    if folder and not kind and os.path.exists(f"{folder}/phy80211"):
        kind = "wlan"
    return {
        "name": name,
        "index": index,
        "mac": link.get_attr("IFLA_ADDRESS") or "",
        "mtu": link.get_attr("IFLA_MTU"),
        "operstate": str(link.get_attr("IFLA_OPERSTATE") or "").lower(),
        "carrier": bool(link.get_attr("IFLA_CARRIER")) and bool(link["flags"] & 0x1),
        "speed": _speed(folder),
        "kind": kind,
        "addresses": addresses,
        "pci": _pci(link, pci),
        "pcie": sysfs.pcie(pci) if pci else None,
        "driver": sysfs.driver(f"{folder}/device") if folder else "",
        "port": link.get_attr("IFLA_PHYS_PORT_NAME") or "",
        "master": names.get(link.get_attr("IFLA_MASTER") or 0, ""),
        "default_route": default,
    }


def _default_routes(kernel: _Socket) -> list[tuple[int, int, str, str]]:
    """(metric, netdev index, gateway, source address) of each default route in the main table, best first."""
    found = []
    for route in kernel.dump(rtmsg, _RTM_GETROUTE, socket.AF_INET):
        table = route.get_attr("RTA_TABLE") or route["table"]
        if route["dst_len"] or table != _RT_TABLE_MAIN or route["type"] != _RTN_UNICAST:
            continue
        metric, source = route.get_attr("RTA_PRIORITY") or 0, route.get_attr("RTA_PREFSRC") or ""
        if route.get_attr("RTA_OIF"):
            found.append((metric, route.get_attr("RTA_OIF"), route.get_attr("RTA_GATEWAY") or "", source))
        for hop in route.get_attr("RTA_MULTIPATH") or ():
            found.append((metric, hop["oif"], hop.get_attr("RTA_GATEWAY") or "", source))
    return sorted(found, key=lambda one: one[0])


def _facing(addresses: list[str], gateway: str) -> str:
    """The address in the gateway's subnet, else the first."""
    interfaces = [ipaddress.IPv4Interface(text) for text in addresses]
    if gateway:
        for interface in interfaces:
            if ipaddress.IPv4Address(gateway) in interface.network:
                return str(interface.ip)
    return str(interfaces[0].ip) if interfaces else ""


def _route(kernel: _Socket, peer: str, names: dict[int, str]) -> Parts:
    request = rtmsg()
    request["family"], request["dst_len"] = socket.AF_INET, 32
    request["attrs"] = [["RTA_DST", peer]]
    try:
        told = next(kernel.ask(request, _RTM_GETROUTE, dump=False))
    except OSError as error:
        # "unreachable", "prohibit" and "blackhole" routes answer with an error of their own, which is an answer.
        if error.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES, errno.EINVAL):
            return {"destination": peer}
        raise
    return {
        "destination": peer,
        "netdev": names.get(told.get_attr("RTA_OIF") or 0, ""),
        "source": told.get_attr("RTA_PREFSRC") or "",
        "gateway": told.get_attr("RTA_GATEWAY") or "",
    }


def _neighbours(kernel: _Socket, names: dict[int, str]) -> list[Parts]:
    seen = []
    for told in kernel.dump(ndmsg, _RTM_GETNEIGH, socket.AF_INET):
        address, mac = told.get_attr("NDA_DST"), told.get_attr("NDA_LLADDR")
        if told["state"] & _NUD_SEEN and address and mac and mac != "00:00:00:00:00:00":
            seen.append({"netdev": names.get(told["ifindex"], ""), "address": address, "mac": mac})
    return sorted(seen, key=lambda one: (one["netdev"], ipaddress.IPv4Address(one["address"])))


def _sysfs(name: str, index: int) -> str:
    """The netdev's folder in sysfs, or "".

    A sysfs mount shows the network namespace it was mounted in, which need not be this process's: another
    netdev of the same name must not lend its speed, so the index is compared.
    """
    folder = f"/sys/class/net/{name}"
    try:
        with open(f"{folder}/ifindex", encoding="ascii") as file:
            return folder if int(file.read()) == index else ""
    except (OSError, ValueError):
        return ""


def _speed(folder: str) -> int | None:
    """Mb/s, or None: the driver answers EINVAL while the link is down and -1 when it does not know."""
    if not folder:
        return None
    try:
        with open(f"{folder}/speed", encoding="ascii") as file:
            speed = int(file.read())
    except (OSError, ValueError):
        return None
    return speed if speed > 0 else None


def _pci(link: Any, folder: str) -> str:
    """The netdev's PCIe function: as the kernel says it, else by its folder in sysfs."""
    if link.get_attr("IFLA_PARENT_DEV_BUS_NAME") == "pci":
        return link.get_attr("IFLA_PARENT_DEV_NAME") or ""
    return os.path.basename(folder)
