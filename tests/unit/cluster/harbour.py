"""Imagined Sparks that obey a course's goals: time and faults under the test's hand."""

from __future__ import annotations

from dataclasses import dataclass, field

from glm_spark.cluster.course import Course
from glm_spark.cluster.lease import Freshness
from glm_spark.cluster.protocol import Goal, Hello, Opening, Report
from glm_spark.cluster.world import Evidence, Orders, Spark, World
from glm_spark.engine.rank import RankView
from glm_spark.engine.spec import Link
from glm_spark.finding import Finding, Severity

NAMES = ("spark-1", "spark-2", "spark-3")


@dataclass
class Imagined:
    """One Spark's daemon and rank. `cut` is a broken session, `dead` a daemon that is not running."""

    name: str
    instance: int = 0
    boot: int = 0
    seen: int = 0
    prepared: int | None = None
    rank: RankView | None = None
    reason: Finding | None = None
    refuses: Finding | None = None
    cut: bool = False
    dead: bool = False
    leaving: bool = False
    freshness: Freshness = Freshness.FRESH
    heard: Report = field(default_factory=Report)

    @property
    def alive(self) -> bool:
        """Its rank's process is there."""
        return self.rank is not None and self.rank.state != "ended"

    def obey(self, goal: Goal) -> None:
        if self.dead or self.cut:
            return
        if goal.phase == "idle":
            self._end_rank()
            self.prepared, self.reason = None, goal.reason
        elif goal.phase == "prepare" and self.prepared != goal.generation:
            self.seen = max(self.seen, goal.generation)
            self._end_rank()
            self.rank = None
            self.reason = self.refuses
            self.prepared = None if self.refuses else goal.generation
        elif goal.phase == "run" and self.prepared == goal.generation and self.rank is None:
            self.rank = RankView(generation=goal.generation, rank=NAMES.index(self.name), state="loading")

    def _end_rank(self) -> None:
        if self.rank is not None:
            self.rank = self.rank.model_copy(update={"state": "ended"})

    def lose_rank(self) -> None:
        if self.rank is not None and self.alive:
            self._end_rank()
            self.reason = finding("engine.rank-ended", self.name)

    def restart_daemon(self) -> None:
        self.instance += 1
        self.rank, self.prepared, self.reason, self.dead, self.leaving = None, None, None, False, False
        self.heard = Report()

    def end_daemon(self) -> None:
        self.dead = True
        self.rank = self.prepared = None

    def report(self) -> Report:
        state = "armed"
        if self.refuses and self.reason is self.refuses:
            state = "failed"
        elif self.alive:
            state = "running"
        return Report(
            state=state,
            generation=self.seen,
            prepared=self.prepared,
            rank=self.rank,
            reason=self.reason,
            leaving=self.leaving,
        )

    def as_seen(self) -> Spark:
        if not self.dead and not self.cut:
            self.heard = self.report()
        up = not self.dead and not self.cut
        return Spark(
            name=self.name,
            up=up,
            freshness=self.freshness,
            opening=Opening(
                protocol=1,
                cluster="glm",
                node=self.name,
                boot_id=str(self.boot),
                instance_id=str(self.instance),
                nonce="0" * 64,
            ),
            hello=Hello(version="1", generation=self.seen, settings={}),
            report=self.heard,
            problem=None if up else finding("cluster.no-session", self.name),
            gone=self.dead,
        )


class Harbour:
    """A course and its Sparks. `turn` is one step: look, decide, obey."""

    def __init__(self, count: int = 2) -> None:
        self.course = Course(leader=NAMES[0])
        self.sparks = [Imagined(name) for name in NAMES[:count]]
        self.now = 1000.0
        self.wanted = "run"
        self.answer: str | Finding | None = "a proper reply"
        self.serves = True
        self.silence: Finding | None = None
        self.obstacles: tuple[Finding, ...] = ()
        self.drained = False
        self.stall: Finding | None = None
        self.configuration = 0
        self.memory: tuple[int, ...] = (14, 14)
        self.carriers: tuple[tuple[str, str], ...] = ()
        self.orders: Orders | None = None

    def world(self) -> World:
        running = all(spark.alive for spark in self.sparks)
        return World(
            now=self.now,
            sparks=tuple(spark.as_seen() for spark in self.sparks),
            links=(Link(a="spark-1", b="spark-2", rails=(("192.168.100.1", "192.168.100.2"),)),),
            obstacles=self.obstacles,
            wanted=self.wanted,  # type: ignore[arg-type]
            served=running and self.serves,
            answer=self.answer if running else None,
            silence=self.silence,
            stall=self.stall,
            evidence=Evidence(
                configuration=self.configuration,
                memory=self.memory,
                carriers=self.carriers,
                boots=tuple(f"{spark.name}-{spark.boot}" for spark in self.sparks if not spark.dead and not spark.cut),
            ),
            drained=self.drained,
            drain_seconds=30.0,
        )

    @property
    def ready(self) -> bool:
        return self.course.ready(self.world())

    def turn(self, seconds: float = 0.25) -> Orders:
        self.now += seconds
        self.orders = self.course.step(self.world())
        for spark, goal in zip(self.sparks, self.orders.goals, strict=True):
            spark.obey(goal)
        return self.orders

    def until(self, state: str, turns: int = 1000) -> None:
        for _ in range(turns):
            self.turn()
            if self.course.state == state:
                return
        raise AssertionError(f"{state} was not reached; {self.course.state}: {self.course.reason}")


def finding(code: str, node: str = "spark-1") -> Finding:
    return Finding(code=code, severity=Severity.ERROR, node=node, subject="s", measured="m", wanted="w", fix="f")
