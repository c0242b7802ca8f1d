"""The drawing of check --cluster."""

from __future__ import annotations

import io

from rich.console import Console

from glm_spark.cli.cable import drawing
from glm_spark.fabric.verdict import RailProof
from glm_spark.finding import Finding, Severity
from glm_spark.status import LinkStatus, RailEnd, RailStatus

FIRST, SECOND = ("192.168.100.1", "192.168.100.2"), ("192.168.101.1", "192.168.101.2")


def end(address: str, device: str) -> RailEnd:
    return RailEnd(netdev=f"en-{device}", device=device, gid_index=3, address=address, mtu=9000)


LINK = LinkStatus(
    a="spark-1",
    b="spark-2",
    rails=(
        RailStatus(a=end(FIRST[0], "rocep1s0f0"), b=end(FIRST[1], "rocep1s0f1"), state="ok"),
        RailStatus(a=end(SECOND[0], "roceP2p1s0f0"), b=end(SECOND[1], "roceP2p1s0f1"), state="ok"),
    ),
)


def drawn(*proofs: RailProof, link: LinkStatus = LINK) -> list[str]:
    console = Console(file=io.StringIO(), width=200, color_system=None)
    console.print(drawing((link,), {proof.rail: proof for proof in proofs}))
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def proof(rail: tuple[str, str], **more: object) -> RailProof:
    return RailProof.model_validate({"a": "spark-1", "b": "spark-2", "rail": rail, "verdict": "fine", **more})


def test_two_sparks_face_each_other_with_a_line_a_rail() -> None:
    broken = Finding(code="fabric.rdma-broken", severity=Severity.ERROR, node="spark-1", subject="rail")
    lines = drawn(proof(FIRST, round_trip=3.4e-6, gbps=(97.1, 96.8)), proof(SECOND, verdict="broken", finding=broken))
    assert lines == [
        "spark-1                            spark-2",
        "    rocep1s0f0 192.168.100.1  ---  192.168.100.2 rocep1s0f1    "
        "fine, round trip 3.4 us, 97.1 Gb/s there, 96.8 Gb/s back",
        "  roceP2p1s0f0 192.168.101.1  -x-  192.168.101.2 roceP2p1s0f1  broken [fabric.rdma-broken]",
    ]


def test_a_rail_that_was_not_proven_says_what_is_known() -> None:
    down = LINK.model_copy(update={"rails": (LINK.rails[0], LINK.rails[1].model_copy(update={"state": "down"}))})
    lines = drawn(link=down)
    assert lines[1].endswith("unknown, both ends are up; no RDMA exchange was made")
    assert lines[2].endswith("down")
