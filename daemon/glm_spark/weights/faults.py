"""What stands in the way of the weights, as Findings."""

from __future__ import annotations

import errno
import os

from glm_spark.finding import Finding, Severity


class Fault(Exception):
    """It cannot go on; `finding` says why and what to do."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(str(finding))
        self.finding = finding


def fault(node: str, code: str, subject: str, measured: str, wanted: str, fix: str) -> Fault:
    return Fault(finding(node, code, subject, measured, wanted, fix))


def finding(
    node: str,
    code: str,
    subject: str,
    measured: str,
    wanted: str = "",
    fix: str = "",
    severity: Severity = Severity.ERROR,
) -> Finding:
    return Finding(
        code=f"weights.{code}",
        severity=severity,
        node=node[:64],
        subject=subject[:300],
        measured=measured[:4000],
        wanted=wanted[:1000],
        fix=fix[:2000],
    )


def amount(size: float) -> str:
    """176.0 GB, 2.3 GB, 12.5 MB, 0 bytes: decimal units, as disks and the Hub count."""
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(size) >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size:.0f} bytes"


def of_disk(node: str, place: str, error: OSError) -> Fault:
    """A disk's refusal in words. `place` is the directory or file that was used."""
    user = os.geteuid()
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            what = "the disk is full" if error.errno == errno.ENOSPC else "this user's quota is used up"
            free = _free(place)
            measured = f"{what}, {amount(free)} free" if free is not None else what
            fix = (
                f"Make room on the disk that holds {place} (glm-spark weights gc shows what may go), or set "
                "model.cache to another one. What was received stays and is not sent again."
            )
            return fault(node, "disk-full", place, measured, "room for what is missing", fix)
        case errno.EROFS:
            fix = "Mount it writable, or put the complete weights there: what is there already is used as it is."
            return fault(node, "read-only", place, "a read-only file system", "a writable one", fix)
        case errno.EACCES | errno.EPERM:
            fix = f"Run chown -R {user} {place}, or set model.cache to a directory of this user's own."
            return fault(node, "owner", place, f"user id {user} may not write there", "a directory it owns", fix)
        case errno.ELOOP | errno.ENOTDIR:
            return planted(node, place)
        case errno.ENOENT:
            fix = "Mount the disk that belongs there, or correct model.cache."
            return fault(node, "no-directory", place, "no such directory", "the Hugging Face cache", fix)
        case _:
            fix = "See journalctl -k on this Spark for what the disk says."
            return fault(node, "disk", place, error.strerror or str(error), "a disk that works", fix)


def not_owned(node: str, place: str, owner: int) -> Fault:
    user = os.geteuid()
    fix = f"Run this as that user, as the daemon does; or, if it should be this one's: chown {user} {place}."
    return fault(node, "owner", place, f"owned by user id {owner}", f"user id {user}, who writes here", fix)


def planted(node: str, place: str) -> Fault:
    """Something stands where only a plain file or folder of ours may; it is neither followed nor replaced."""
    return fault(
        node,
        "not-ours",
        place,
        "a link or something else that this program did not make stands there",
        "a plain file or folder",
        "Look at what it is and remove it. A cache on another disk is named by model.cache, not by a link inside it.",
    )


def _free(place: str) -> int | None:
    while place and place != "/":
        try:
            room = os.statvfs(place)
        except OSError:
            place = os.path.dirname(place)
            continue
        return room.f_bavail * room.f_frsize
    return None
