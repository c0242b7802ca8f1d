"""Rails that failed are left out of what was agreed."""

from __future__ import annotations

from glm_spark.engine.spec import Link
from glm_spark.fabric.rails import RailFault, left_out, most_telling, without
from glm_spark.finding import Severity

LINKS = (
    Link(a="spark-1", b="spark-2", rails=(("10.0.1.1", "10.0.1.2"), ("10.0.2.1", "10.0.2.2"))),
    Link(a="spark-1", b="spark-3", rails=(("10.0.3.1", "10.0.3.3"),)),
)


def fault(code: str, *rail: str, node: str = "spark-1") -> RailFault:
    return RailFault(
        code=code, severity=Severity.ERROR, node=node, subject="rail", fix="Mend it.", rail=(rail[0], rail[1])
    )


def test_a_rail_is_known_by_its_addresses_from_either_end() -> None:
    for rail in (("10.0.2.1", "10.0.2.2"), ("10.0.2.2", "10.0.2.1")):
        left = without(LINKS, [fault("fabric.one-way", *rail)])
        assert left is not None
        assert left[0].rails == (("10.0.1.1", "10.0.1.2"),)
        assert left[1] == LINKS[1]


def test_a_link_that_has_none_left_leaves_nothing_to_agree_on() -> None:
    assert without(LINKS, [fault("fabric.one-way", "10.0.3.1", "10.0.3.3")]) is None


def test_what_is_left_out_is_one_warning_a_rail_that_names_the_cause_and_what_follows() -> None:
    faults = [
        fault("fabric.path-silent", "10.0.2.1", "10.0.2.2"),
        fault("fabric.one-way", "10.0.2.2", "10.0.2.1", node="spark-2"),
        fault("fabric.rdma-broken", "10.0.1.1", "10.0.1.2"),
    ]
    told = left_out(faults)
    assert [(one.code, one.node, one.severity) for one in told] == [
        ("fabric.one-way", "spark-2", Severity.WARNING),
        ("fabric.rdma-broken", "spark-1", Severity.WARNING),
    ]
    assert told[0].fix == "Mend it. Until then the set runs without this rail; a restart takes it in again."


def test_the_cause_is_told_before_what_follows_from_it() -> None:
    faults = [fault("fabric.path-silent", "a", "b"), fault("fabric.path-mtu", "a", "b")]
    assert most_telling(faults).code == "fabric.path-mtu"
