"""A start that finds a bad rail goes on without it, by agreement; none left is a stop."""

from __future__ import annotations

import dataclasses

from glm_spark.cluster.protocol import Report
from glm_spark.cluster.world import Orders, World
from glm_spark.engine.spec import Link
from glm_spark.fabric.rails import RailFault
from glm_spark.finding import Severity
from tests.unit.cluster.harbour import Harbour, Imagined

FIRST, SECOND = ("192.168.100.1", "192.168.100.2"), ("192.168.101.1", "192.168.101.2")


def fault(rail: tuple[str, str], node: str = "spark-2") -> RailFault:
    return RailFault(code="fabric.one-way", severity=Severity.ERROR, node=node, subject="rail", rail=rail)


class TwoRails(Harbour):
    """`bad` are rails that a Spark's probes fail on; `proof` what exchanges break on, None while they run."""

    def __init__(self) -> None:
        super().__init__()
        self.bad: set[tuple[str, str]] = set()
        self.proof: tuple[RailFault, ...] | None = ()
        self.asked: list[Orders] = []

    def world(self) -> World:
        world = super().world()
        links = (Link(a="spark-1", b="spark-2", rails=(FIRST, SECOND)),)
        agreed = [rail for link in self.course.links for rail in link.rails]
        sparks = list(world.sparks)
        faults = tuple(fault(rail) for rail in agreed if rail in self.bad)
        report = sparks[1].report
        if report is not None and report.prepared is not None:
            sparks[1] = dataclasses.replace(sparks[1], report=report.model_copy(update={"bad_rails": faults}))
        proof = None if self.proof is None else tuple(one for one in self.proof if one.rail in agreed)
        if self.course.state != "preparing":
            proof = ()
        return dataclasses.replace(world, sparks=tuple(sparks), links=links, proof=proof)

    @property
    def rails(self) -> tuple[tuple[str, str], ...]:
        return self.course.links[0].rails


def test_a_rail_that_fails_at_one_spark_is_left_out_everywhere_under_a_new_generation() -> None:
    harbour = TwoRails()
    harbour.bad = {SECOND}
    harbour.until("live")
    assert harbour.rails == (FIRST,)
    assert harbour.course.generation == 2, "what all Sparks prepared for is not what they start"
    assert [spark.prepared for spark in harbour.sparks] == [2, 2]
    assert [(one.code, one.severity) for one in harbour.course.dropped] == [("fabric.one-way", Severity.WARNING)]


def test_a_link_without_a_sound_rail_starts_nothing_and_says_why() -> None:
    harbour = TwoRails()
    harbour.bad = {FIRST, SECOND}
    harbour.until("recovering")
    assert harbour.course.reason is not None
    assert (harbour.course.reason.code, harbour.course.reason.severity) == ("fabric.one-way", Severity.ERROR)
    assert not any(spark.alive for spark in harbour.sparks)
    harbour.bad = set()
    harbour.now += 10
    harbour.until("live")
    assert harbour.rails == (FIRST, SECOND)
    assert harbour.course.dropped == ()


def test_no_rank_starts_before_every_rail_was_proven() -> None:
    harbour = TwoRails()
    harbour.proof = None
    for _ in range(20):
        orders = harbour.turn()
    assert harbour.course.state == "preparing"
    assert orders.prove
    assert harbour.course.reason is not None
    assert harbour.course.reason.code == "set.proving"
    harbour.proof = ()
    harbour.until("live")


def test_a_rail_on_which_the_exchange_breaks_is_left_out() -> None:
    harbour = TwoRails()
    harbour.proof = (fault(FIRST),)
    harbour.until("live")
    assert harbour.rails == (SECOND,)


def test_every_start_begins_with_all_rails_anew() -> None:
    harbour = TwoRails()
    harbour.bad = {SECOND}
    harbour.until("live")
    harbour.bad = set()
    harbour.sparks[0].lose_rank()
    harbour.turn()
    harbour.now += 100
    harbour.until("live")
    assert harbour.rails == (FIRST, SECOND)


def test_a_report_names_bad_rails_on_the_wire() -> None:
    report = Report(bad_rails=(fault(SECOND),))
    assert Report.model_validate_json(report.model_dump_json()) == report
    assert Imagined("spark-1").report().bad_rails == ()
