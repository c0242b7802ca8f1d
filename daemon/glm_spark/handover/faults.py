"""What stands in the way of an image's hand-over, as Findings."""

from __future__ import annotations

from glm_spark.finding import Finding, Severity
from glm_spark.weights.faults import Fault


def fault(node: str, code: str, subject: str, measured: str, wanted: str, fix: str) -> Fault:
    return Fault(
        Finding(
            code=f"image.{code}",
            severity=Severity.ERROR,
            node=node[:64],
            subject=subject[:300],
            measured=measured[:4000],
            wanted=wanted[:1000],
            fix=fix[:2000],
        )
    )


def unproven(node: str, reference: str, where: str, why: str) -> Fault:
    return fault(
        node,
        "not-the-pinned",
        f"image {reference} from {where}",
        why,
        "the image that engine.image pins",
        f"On {where}: podman pull {reference}, so that its store has the pinned image as the registry has it.",
    )


def leader_lacks(node: str, reference: str, leader: str, why: str) -> Fault:
    return fault(
        node,
        "leader-lacks",
        f"image {reference} from {leader}",
        why or "refused",
        f"the pinned image in podman's store on {leader}",
        f"On {leader}: podman pull {reference}. Give all Sparks the same engine.image.",
    )


def podman(node: str, reference: str, words: str) -> Fault:
    fix = "See its words and the disk; it is tried again."
    return fault(node, "podman", f"image {reference}", words, "an end without an error", fix)


def words(found: Finding) -> str:
    """What stands in the way, for a message that names the image already."""
    return found.measured if found.code.startswith("image.") else f"{found.subject}: {found.measured}"


def no_room(node: str, place: str, free: str, wanted: str) -> Fault:
    fix = "Make room on that disk (podman image prune, glm-spark weights gc), or move model.cache or podman's store."
    return fault(node, "no-room", place, f"{free} free", wanted, fix)
