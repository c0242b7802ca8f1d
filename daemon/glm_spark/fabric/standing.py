"""How the agreed rails stand now, against how they stood when the set was started. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from glm_spark.config.model import Config
from glm_spark.engine.spec import Link
from glm_spark.fabric.ends import gid_of
from glm_spark.fabric.inventory import Inventory
from glm_spark.finding import Finding, Severity
from glm_spark.status import LinkStatus, RailEnd


@dataclass(frozen=True, slots=True)
class Standing:
    """`lost`: a link has no rail left, and why. `warnings`: rails lost beside others, GIDs that moved."""

    lost: Finding | None = None
    warnings: tuple[Finding, ...] = ()


def standing(
    config: Config, inventories: Mapping[str, Inventory], links: tuple[Link, ...], before: tuple[LinkStatus, ...]
) -> Standing:
    """`before` is `links.link_status` of the same links at the start. A Spark not read counts as unchanged."""
    lost: Finding | None = None
    warnings: list[Finding] = []
    for link, status in zip(links, before, strict=False):
        whole, troubles = 0, list[Finding]()
        for pair, rail in zip(link.rails, status.rails, strict=False):
            ends = [
                _End(config, name, inventories.get(name), address, was)
                for name, address, was in zip((link.a, link.b), pair, (rail.a, rail.b), strict=True)
            ]
            trouble = next((finding for finding in map(_trouble, ends) if finding is not None), None)
            whole += trouble is None
            troubles.extend([trouble] if trouble else [])
            warnings.extend(finding for finding in map(_moved, ends) if finding is not None)
        if troubles and not whole:
            lost = lost or troubles[0]
        else:
            warnings.extend(trouble.model_copy(update={"severity": Severity.WARNING}) for trouble in troubles)
    return Standing(lost, tuple(dict.fromkeys(warnings)))


def dark(me: str, inventory: Inventory, links: tuple[Link, ...]) -> bool:
    """Whether no rail of this Spark has a carrier, as this Spark alone can see it."""
    mine = [pair[0] if link.a == me else pair[1] for link in links if me in (link.a, link.b) for pair in link.rails]
    netdevs = [inventory.netdev_with(address) for address in mine]
    return bool(netdevs) and all(netdev is not None and not netdev.carrier for netdev in netdevs)


@dataclass(frozen=True, slots=True)
class _End:
    """One end of a rail: where it is, the address that was agreed, and how it was at the start."""

    config: Config
    node: str
    inventory: Inventory | None
    address: str
    was: RailEnd

    def finding(self, code: str, measured: str, wanted: str, fix: str, severity: Severity = Severity.ERROR) -> Finding:
        name = self.was.netdev or self.address
        subject = f"{name} ({self.address})" if self.was.netdev else name
        return Finding(
            code=code, severity=severity, node=self.node, subject=subject, measured=measured, wanted=wanted, fix=fix
        )


def _trouble(end: _End) -> Finding | None:
    """What keeps this end from carrying, or None."""
    if end.inventory is None:
        return None
    netdev = end.inventory.netdev_with(end.address)
    if netdev is None:
        if end.was.netdev and end.inventory.netdev(end.was.netdev) is None:
            fix = "Its PCIe device left with the cable: plug it in again; if it stays away, reboot this Spark."
            return end.finding("fabric.netdev-gone", "the netdev is gone", "a netdev", fix)
        fix = f"Give {end.was.netdev or 'the netdev'} {end.address} again, and see what removed it."
        return end.finding("fabric.address-gone", "its address is gone", end.address, fix)
    if not netdev.carrier:
        return end.finding("fabric.carrier-lost", "no carrier", "a carrier", "Plug the cable in at both ends.")
    if end.config.fabric.transport != "roce":
        return None
    device = end.inventory.device_on(netdev.name)
    if device is None:
        fix = "It may come back by itself; if it stays away, see journalctl -k on this Spark."
        return end.finding("fabric.device-gone", "its RoCE device is gone", end.was.device or "a RoCE device", fix)
    if device.state != "ACTIVE":
        measured = f"port of {device.name} is {device.state}"
        return end.finding("fabric.port-down", measured, "ACTIVE", "Plug the cable in at both ends.")
    if gid_of(end.inventory, netdev.name, end.address) is None:
        fix = "Set the address anew; the GID table follows it."
        return end.finding("fabric.gid-gone", f"{device.name} has no RoCE v2 GID for it", "a GID", fix)
    return None


def _moved(end: _End) -> Finding | None:
    """A GID index that moved while its address is still there: the running ranks keep theirs, a new start reads it."""
    if end.inventory is None or end.was.gid_index is None:
        return None
    netdev = end.inventory.netdev_with(end.address)
    gid = gid_of(end.inventory, netdev.name, end.address) if netdev is not None else None
    if gid is None or gid.index == end.was.gid_index:
        return None
    return end.finding(
        "fabric.gid-moved",
        f"GID index {gid.index}",
        f"{end.was.gid_index}, as at the start",
        "Nothing to do: the next start of the set uses the new one.",
        Severity.WARNING,
    )
