"""Any storm of faults: never ready with a dead rank, never two generations, and live again when it is over."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from glm_spark.cluster.lease import Freshness
from tests.unit.cluster.harbour import Harbour

INDEX = st.integers(0, 2)
FRESHNESS = st.sampled_from(list(Freshness))


class Storm(RuleBasedStateMachine):
    @initialize(count=st.integers(2, 3))
    def make(self, count: int) -> None:
        self.harbour = Harbour(count)
        self.harbour.course.most_failures = 1_000_000  # that a set may fail too often is another test's
        self.generations: list[int] = []

    def spark(self, index: int) -> int:
        return index % len(self.harbour.sparks)

    @rule(seconds=st.floats(0.01, 30.0))
    def turn(self, seconds: float) -> None:
        running_before = {spark.rank.generation for spark in self.harbour.sparks if spark.rank and spark.alive}
        orders = self.harbour.turn(seconds)
        assert len({goal.generation for goal in orders.goals}) == 1
        assert orders.gate != "open" or all(spark.alive for spark in self.harbour.sparks)
        running = {spark.rank.generation for spark in self.harbour.sparks if spark.rank and spark.alive}
        assert len(running) <= 1, f"two generations: {running_before} -> {running}"
        if self.harbour.course.generation not in self.generations[-1:]:
            assert self.harbour.course.generation > max(self.generations, default=0) or not self.generations
            self.generations.append(self.harbour.course.generation)

    @rule(index=INDEX)
    def rank_dies(self, index: int) -> None:
        self.harbour.sparks[self.spark(index)].lose_rank()

    @rule(index=INDEX)
    def daemon_dies(self, index: int) -> None:
        if self.spark(index):  # the leader's own death is another course
            self.harbour.sparks[self.spark(index)].end_daemon()

    @rule(index=INDEX)
    def daemon_starts(self, index: int) -> None:
        if self.spark(index):
            self.harbour.sparks[self.spark(index)].restart_daemon()

    @rule(index=INDEX, cut=st.booleans())
    def session(self, index: int, cut: bool) -> None:
        if self.spark(index):
            self.harbour.sparks[self.spark(index)].cut = cut

    @rule(index=INDEX, freshness=FRESHNESS)
    def beats(self, index: int, freshness: Freshness) -> None:
        """A lapsed lease also ends that Spark's rank: its own clock says so."""
        if self.spark(index):
            spark = self.harbour.sparks[self.spark(index)]
            spark.freshness = freshness
            if freshness is Freshness.LAPSED:
                spark.lose_rank()
                spark.prepared = None

    @rule()
    def restart_asked(self) -> None:
        self.harbour.course.restart(self.harbour.now)

    @rule(wanted=st.sampled_from(["run", "stop"]))
    def owner(self, wanted: str) -> None:
        self.harbour.wanted = wanted

    @invariant()
    def ready_is_true(self) -> None:
        if hasattr(self, "harbour") and self.harbour.ready:
            assert all(spark.alive for spark in self.harbour.sparks if not spark.dead)
            assert not any(spark.dead or spark.cut for spark in self.harbour.sparks)

    def teardown(self) -> None:
        if not hasattr(self, "harbour"):
            return
        self.harbour.wanted, self.harbour.drained = "run", True
        for spark in self.harbour.sparks[1:]:
            if spark.dead or spark.leaving:
                spark.restart_daemon()
            spark.cut, spark.freshness = False, Freshness.FRESH
        for _ in range(2000):
            self.harbour.turn()
            if self.harbour.ready:
                return
        raise AssertionError(f"not live after the storm: {self.harbour.course.state}, {self.harbour.course.reason}")


Storm.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestStorm = Storm.TestCase
