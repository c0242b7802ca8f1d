"""Times, amounts and codes in the words of the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, tzinfo

from glm_spark.finding import Finding

# Codes that say by themselves what a set runs without. Others are shown with the finding that explains them.
_DEGRADED = {
    "engine.transport-socket": "the ranks talk over TCP sockets instead of RoCE, about half as fast",
    "engine.smaller-window": "the window is smaller than asked for",
    "engine.gentle-start": "prompt chunks are not split between the Sparks: long prompts fill slower",
    "fabric.netdev-unused": "a netdev of the cable carries no rail: less bandwidth",
    "fabric.mtu-differs": "the two ends of a rail have different MTUs",
    "fabric.no-address": "a netdev of the cable has no address: less bandwidth",
    "fabric.no-gid": "a rail has no RoCE v2 GID: less bandwidth",
    "fabric.link-down": "a netdev of the cable has no carrier: less bandwidth",
}


def duration(seconds: float) -> str:
    """12 s, 3 min 5 s, 2 h 5 min, 3 d 4 h. A clock that was set back counts as now."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    for size, unit, smaller, name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {unit}" + (f" {rest} {name}" if rest else "")
    raise AssertionError(whole)


def moment(unix: float, zone: tzinfo | None, *, seconds: bool = False) -> str:
    """2026-12-01 14:02, in the local zone when `zone` is None."""
    form = "%Y-%m-%d %H:%M:%S" if seconds else "%Y-%m-%d %H:%M"
    return datetime.fromtimestamp(unix, UTC).astimezone(zone).strftime(form)


def tokens(count: int) -> str:
    """1,048,576"""
    return f"{count:,}"


def degraded(code: str, findings: Iterable[Finding]) -> str:
    """What the set runs without, in words, with the code that programs key on."""
    explained = next((finding for finding in findings if finding.code == code), None)
    if explained is not None:
        return printable(str(explained))
    words = _DEGRADED.get(code) or code.rpartition(".")[2].replace("-", " ")
    return f"{words} [{code}]"


def printable(text: str) -> str:
    """Without control characters: what a peer or the engine wrote must not steer the terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
