"""Memory that an ended rank still holds: up to 30 GiB linger in the driver for a while (seen on GB10). Pure."""

from __future__ import annotations

from collections.abc import Sequence

from glm_spark.finding import Finding, Severity

MARGIN_GIB = 2.0  # what else on a Spark takes and gives meanwhile


def wanted(before_gib: float) -> float:
    """MemAvailable in GiB at which an ended rank's memory counts as back, from what it was before the rank's start."""
    return max(0.0, before_gib - MARGIN_GIB)


def held(node: str, before_gib: float, now_gib: float, seconds: float, holders: Sequence[str]) -> Finding | None:
    """What is still missing once nothing more comes back; None when it is back. `holders`: the largest, in words."""
    if now_gib >= wanted(before_gib):
        return None
    by = f"; the most is held by {', '.join(holders)}" if holders else "; no process holds it, so the driver does"
    return Finding(
        code="memory.held",
        severity=Severity.WARNING,
        node=node,
        subject="memory of the last rank",
        measured=f"{before_gib - now_gib:.1f} GiB did not come back: {now_gib:.1f} GiB are available after "
        f"{seconds:.0f} s, {before_gib:.1f} were before its start{by}"[:4000],
        wanted=f"{wanted(before_gib):.1f} GiB available",
        fix="End what holds it; what the driver keeps comes back with a reboot at the latest.",
    )
