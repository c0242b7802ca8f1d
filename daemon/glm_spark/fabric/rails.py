"""Rails that turned out not to carry: named, and taken out of what was agreed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from glm_spark.engine.spec import Link
from glm_spark.fabric.verdict import RailProof
from glm_spark.finding import Finding, Severity

# Of several findings about one rail the one that names its cause is told.
_TELLING = (
    "fabric.wrong-netdev",
    "fabric.path-mtu",
    "fabric.rdma-large-lost",
    "fabric.one-way",
    "fabric.rdma-corrupt",
    "fabric.rdma-refused",
    "fabric.rdma-broken",
)


class RailFault(Finding):
    """An error of one rail, named by its two addresses in any order. Others of the same link may do without it."""

    rail: tuple[str, str]


def fault_of(finding: Finding, rail: tuple[str, str]) -> RailFault:
    return RailFault(**finding.model_dump(exclude={"rail"}), rail=rail)


def faults_proven(proofs: Iterable[RailProof]) -> tuple[RailFault, ...]:
    """The rails that an exchange broke on."""
    return tuple(
        fault_of(proof.finding, proof.rail)
        for proof in proofs
        if proof.finding is not None and proof.finding.severity is Severity.ERROR
    )


def without(links: tuple[Link, ...], faults: Iterable[RailFault]) -> tuple[Link, ...] | None:
    """The links less the faulty rails; None when one of them would have none left."""
    bad = {frozenset(fault.rail) for fault in faults}
    left = tuple(
        link.model_copy(update={"rails": tuple(rail for rail in link.rails if frozenset(rail) not in bad)})
        for link in links
    )
    return left if all(link.rails for link in left) else None


def most_telling(faults: Sequence[RailFault]) -> RailFault:
    """The fault that says most about its cause."""
    return min(faults, key=lambda fault: _TELLING.index(fault.code) if fault.code in _TELLING else len(_TELLING))


def left_out(faults: Sequence[RailFault]) -> tuple[Finding, ...]:
    """One warning for each faulty rail of a set that goes on without it."""
    rails: dict[frozenset[str], list[RailFault]] = {}
    for fault in faults:
        rails.setdefault(frozenset(fault.rail), []).append(fault)
    return tuple(_warning(most_telling(those)) for those in rails.values())


def _warning(fault: RailFault) -> Finding:
    words = fault.model_dump(exclude={"rail", "severity", "fix"})
    fix = f"{fault.fix} Until then the set runs without this rail; a restart takes it in again."
    return Finding(**words, severity=Severity.WARNING, fix=fix)
