"""Weights on their way: as long as they move anywhere, nobody is late. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from glm_spark.cluster.world import World
from glm_spark.finding import Finding, Severity
from glm_spark.weights.words import in_words


@dataclass
class Bringing:
    _marks: tuple[tuple[str, int], ...] = ()
    _moved_at: float = 0.0

    def moved_at(self, world: World) -> float:
        """When any Spark's weights last got on, CLOCK_BOOTTIME seconds; 0 for never."""
        told = [spark.report.weights for spark in world.sparks if spark.report and spark.report.weights]
        marks = tuple((one.phase, one.done) for one in told)
        if marks != self._marks:
            self._marks, self._moved_at = marks, world.now
        return self._moved_at

    def told(self, world: World) -> Finding | None:
        """How far the slowest is, for people; None where nothing is brought."""
        busy = [
            (spark.name, spark.report.weights)
            for spark in world.sparks
            if spark.report
            and spark.report.weights
            and spark.report.weights.phase not in ("idle", "complete", "failed")
        ]
        moving = [row for row in busy if row[1].phase != "waiting"] or busy
        if not moving:
            return None
        name, status = max(moving, key=lambda row: row[1].total - row[1].done)
        text = f"{name} {in_words(status)}"
        return Finding(code="set.weights", severity=Severity.NOTE, node=name, subject="weights", measured=text)
