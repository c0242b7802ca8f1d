"""What an RDMA exchange says about a rail: fine, slower than the link's speed allows, broken, or unknown. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict

from glm_spark.fabric.exchange import Answer, Failed, Measured
from glm_spark.fabric.inventory import Inventory, NetDev, RdmaDevice
from glm_spark.finding import Finding, Severity

# One function of a Spark's port is PCIe Gen5 x4, which carries about 112 of the port's 200 Gb/s.
FUNCTION_GBPS = 112.0
SLOW = 0.5  # of what the link allows; a short exchange by one thread reaches more on a sound rail

_UNREACHED = (110, 113)  # ETIMEDOUT, EHOSTUNREACH: the other end's hardware address was asked for in vain


class RailProof(BaseModel):
    """A rail with its verdict. `round_trip` in seconds; `gbps` from a to b and from b to a."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    a: str
    b: str
    rail: tuple[str, str]
    verdict: Literal["fine", "slow", "broken", "unknown"]
    round_trip: float | None = None
    gbps: tuple[float | None, float | None] = (None, None)
    finding: Finding | None = None


@dataclass(frozen=True, slots=True)
class Ends:
    """A rail between two Sparks, with what they last said of themselves."""

    a: str
    b: str
    rail: tuple[str, str]
    of_a: Inventory | None = None
    of_b: Inventory | None = None

    @property
    def named(self) -> str:
        """`enp1s0f0np0 (192.168.100.1) - enp1s0f0np0 (192.168.100.2)`."""
        return f"{self._end(0)} - {self._end(1)}"

    def _end(self, index: int) -> str:
        netdev = self.netdev(index)
        return f"{netdev.name} ({self.rail[index]})" if netdev else self.rail[index]

    def netdev(self, index: int) -> NetDev | None:
        inventory = (self.of_a, self.of_b)[index]
        return inventory.netdev_with(self.rail[index]) if inventory else None

    def device(self, index: int) -> RdmaDevice | None:
        inventory, netdev = (self.of_a, self.of_b)[index], self.netdev(index)
        return inventory.device_on(netdev.name) if inventory and netdev else None


def verdict(ends: Ends, a: Answer, b: Answer) -> RailProof:
    """From both ends' last answers. Nothing is concluded where one could not take part."""
    finding = next((one.finding for one in (a, b) if one.finding is not None), None)
    failed = _first_failure(a, b)
    if failed is not None and finding is None:
        return _proof(ends, "broken", a, b, _broken(ends, failed, a, b))
    if finding is not None or a.measured is None or b.measured is None:
        broken = finding is not None and finding.severity is Severity.ERROR
        return _proof(ends, "broken" if broken else "unknown", a, b, finding)
    slow = _slow(ends, a.measured, b.measured)
    return _proof(ends, "slow" if slow else "fine", a, b, slow)


def allowed(ends: Ends) -> float | None:
    """Gb/s that this rail can carry by what its ends say of themselves; None for a device in software."""
    speeds = []
    for index in (0, 1):
        device, netdev = ends.device(index), ends.netdev(index)
        if device is None or netdev is None or device.software or device.speed is None:
            return None
        speeds += [device.speed, FUNCTION_GBPS]
        if netdev.pcie is not None and netdev.pcie.gbps is not None:
            speeds.append(netdev.pcie.gbps)
    return min(speeds)


def said(proof: RailProof) -> str:
    """`rail spark-1 - spark-2, 192.168.100.1 - 192.168.100.2: fine, round trip 3.4 us, ...`, with why if it is not."""
    why = f": {proof.finding.measured}" if proof.finding is not None else ""
    return f"rail {proof.a} - {proof.b}, {proof.rail[0]} - {proof.rail[1]}: {proof.verdict}{figures(proof)}{why}"


def figures(proof: RailProof) -> str:
    """`, round trip 3.4 us, 97.1 Gb/s there, 96.8 Gb/s back`, as far as it was measured."""
    told = f", round trip {proof.round_trip * 1e6:.1f} us" if proof.round_trip is not None else ""
    for gbps, way in zip(proof.gbps, ("there", "back"), strict=True):
        told += f", {gbps:.1f} Gb/s {way}" if gbps is not None else ""
    return told


def _proof(
    ends: Ends, told: Literal["fine", "slow", "broken", "unknown"], a: Answer, b: Answer, finding: Finding | None
) -> RailProof:
    return RailProof(
        a=ends.a,
        b=ends.b,
        rail=ends.rail,
        verdict=told,
        round_trip=a.measured.round_trip if a.measured else None,
        gbps=(a.measured.gbps if a.measured else None, b.measured.gbps if b.measured else None),
        finding=finding,
    )


def _slow(ends: Ends, a: Measured, b: Measured) -> Finding | None:
    most = allowed(ends)
    figures = [figure for figure in (a.gbps, b.gbps) if figure is not None]
    if most is None or not figures or min(figures) >= SLOW * most:
        return None
    told = " and ".join(
        f"{figure:.1f} Gb/s from {name}" for figure, name in ((a.gbps, ends.a), (b.gbps, ends.b)) if figure is not None
    )
    return Finding(
        code="fabric.rail-slow",
        severity=Severity.WARNING,
        node=ends.a,
        subject=f"rail to {ends.b}: {ends.named}",
        measured=told,
        wanted=f"more than {SLOW * most:.0f} Gb/s: its ports and PCIe links allow {most:.0f}",
        fix="See the PCIe link of both functions (glm-spark check on each Spark), the error counters of both netdevs "
        "(ethtool -S), and that nothing else uses the cable.",
    )


def _first_failure(a: Answer, b: Answer) -> Failed | None:
    """The failure that explains: what an adapter or the content said, before a mere wait that ended."""
    failures = [one.failed for one in (a, b) if one.failed is not None]
    return next((failed for failed in failures if failed.status or failed.errno or failed.step == "payload"), None) or (
        failures[0] if failures else None
    )


def _broken(ends: Ends, failed: Failed, a: Answer, b: Answer) -> Finding:
    measured = _words(failed)
    if failed.step == "payload":
        return _error(
            ends,
            "fabric.rdma-corrupt",
            measured,
            "every byte as it was sent",
            "Replace the cable; if it stays, the adapter or its firmware is at fault: see fwupdmgr get-updates.",
        )
    if failed.errno and failed.errno not in _UNREACHED:
        return _error(
            ends,
            "fabric.rdma-refused",
            measured,
            "a queue pair between both devices",
            "See that the devices and GIDs are still there (glm-spark plan) and the kernel's log (journalctl -k).",
        )
    if failed.step == "long":
        return _error(
            ends,
            "fabric.rdma-large-lost",
            f"small messages pass, those of several full packets do not: {measured}",
            "messages of any size",
            "Set the same MTU at both ends of the cable (9000), and on whatever stands between.",
        )
    lost = _one_way(ends, a, b)
    return _error(
        ends,
        "fabric.rdma-broken",
        f"no RDMA message gets through: {measured}" + (f"; {lost}" if lost else ""),
        "an answer to every message",
        "If plain packets pass, a firewall drops RoCE (UDP port 4791), or another netdev answers for one of these "
        "addresses (set sysctl net.ipv4.conf.all.arp_ignore=1 and arp_announce=2). Else reseat the cable.",
    )


def _one_way(ends: Ends, a: Answer, b: Answer) -> str:
    """The connecting end, which is a's, speaks first: what b received of it tells which way is lost."""
    if a.measured is None or b.measured is None or a.measured.received:
        return ""
    if b.measured.received:
        return f"what {ends.a} sends arrives at {ends.b}, what {ends.b} sends does not come back"
    return f"nothing that {ends.a} sends is acknowledged by {ends.b}"


def _words(failed: Failed) -> str:
    text = failed.text
    if failed.status:
        text += f" (completion status {failed.status}, vendor_err {failed.vendor_error:#x})"
    return text


def _error(ends: Ends, code: str, measured: str, wanted: str, fix: str) -> Finding:
    return Finding(
        code=code,
        severity=Severity.ERROR,
        node=ends.a,
        subject=f"rail to {ends.b}: {ends.named}",
        measured=measured,
        wanted=wanted,
        fix=fix,
    )
