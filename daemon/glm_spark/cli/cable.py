"""The fabric as a small drawing with a verdict a rail: a pure function from what check --cluster is told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from glm_spark.cli.wording import printable
from glm_spark.fabric.verdict import RailProof, figures
from glm_spark.status import LinkStatus, RailEnd, RailStatus

if TYPE_CHECKING:
    from rich.console import RenderableType

_STYLES = {"fine": "green", "slow": "yellow", "broken": "bold red", "down": "bold red", "unknown": "magenta"}


def drawing(links: tuple[LinkStatus, ...], proofs: Mapping[tuple[str, str], RailProof]) -> RenderableType:
    """Two Sparks face each other, each rail a line between them:

    spark-1                                           spark-2
      enp1s0f0np0 192.168.100.1  ---  192.168.100.2 enp1s0f0np0  fine, round trip 3.4 us, ...
    """
    from rich.console import Group
    from rich.text import Text

    lines = []
    rails = [rail for link in links for rail in link.rails]
    left = max((len(_left(rail.a)) for rail in rails), default=0)
    right = max((len(_right(rail.b)) for rail in rails), default=0)
    for link in links:
        lines.append(Text(printable(f"{link.a:{left + 9}}{link.b}"), "bold"))
        for rail in link.rails:
            proof = proofs.get((rail.a.address, rail.b.address))
            word, rest = _verdict(rail, proof)
            wire = {"broken": "-x-", "down": "-x-", "unknown": "-?-"}.get(word, "---")
            line = Text(printable(f"  {_left(rail.a):>{left}}  {wire}  {_right(rail.b):{right}}  "))
            lines.append(line.append(word, _STYLES.get(word, "")).append(printable(rest)))
    return Group(*lines)


def _left(end: RailEnd) -> str:
    return " ".join(part for part in (end.device or end.netdev or "?", end.address) if part)


def _right(end: RailEnd) -> str:
    return " ".join(part for part in (end.address, end.device or end.netdev or "?") if part)


def _verdict(rail: RailStatus, proof: RailProof | None) -> tuple[str, str]:
    """The word that is coloured, and what follows it."""
    if proof is None:
        return ("down" if rail.state == "down" else "unknown", "" if rail.state == "down" else _unproven(rail))
    return proof.verdict, "".join(_details(proof))


def _details(proof: RailProof) -> Iterator[str]:
    yield figures(proof)
    if proof.finding is not None:
        yield f" [{proof.finding.code}]"


def _unproven(rail: RailStatus) -> str:
    return ", both ends are up; no RDMA exchange was made" if rail.state == "ok" else ", not read at both ends"
