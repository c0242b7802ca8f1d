"""What the course sees and what it orders: frozen data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from glm_spark.cluster.lease import Freshness
from glm_spark.cluster.protocol import Goal, Hello, Opening, Report
from glm_spark.engine.rank import RankView
from glm_spark.engine.spec import Link
from glm_spark.fabric.inventory import Inventory
from glm_spark.fabric.rails import RailFault
from glm_spark.finding import Finding


@dataclass(frozen=True, slots=True)
class Spark:
    """One Spark as the leader knows it now. The leader's own is always up and fresh."""

    name: str
    up: bool
    freshness: Freshness
    opening: Opening | None = None
    hello: Hello | None = None
    report: Report | None = None
    inventory: Inventory | None = None
    problem: Finding | None = None
    gone: bool = False  # its control port refuses connections

    @property
    def reachable(self) -> bool:
        return self.up and self.freshness is not Freshness.LAPSED

    @property
    def rank(self) -> RankView | None:
        return self.report.rank if self.report else None

    @property
    def occupied(self) -> bool:
        """A rank is alive there, as far as it said."""
        return self.rank is not None and self.rank.state not in ("none", "ended")


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a new try could go better by: a change of it is worth one. `memory` in steps of 8 GiB, so it is calm."""

    configuration: int = 0  # a hash of the settings that the Sparks agree on
    boots: tuple[str, ...] = ()
    carriers: tuple[tuple[str, str], ...] = ()  # (Spark, netdev) with a carrier
    memory: tuple[int, ...] = ()

    def with_memory(self, memory: tuple[int, ...]) -> Evidence:
        """The same evidence with the larger memory of each Spark; of the newer ones where their number changed."""
        if len(memory) != len(self.memory):
            return replace(self, memory=memory)
        return replace(self, memory=tuple(max(pair) for pair in zip(self.memory, memory, strict=True)))


@dataclass(frozen=True, slots=True)
class World:
    """Everything the course depends on. `served` and `answer` are the engine's, for the current generation."""

    now: float  # CLOCK_BOOTTIME seconds
    sparks: tuple[Spark, ...]  # in rank order
    links: tuple[Link, ...] = ()
    obstacles: tuple[Finding, ...] = ()  # errors of the fabric and differing settings
    wanted: Literal["run", "stop"] = "run"
    served: bool = False
    answer: str | Finding | None = None
    silence: Finding | None = None  # a load without progress
    stall: Finding | None = None  # a live engine that does not get on
    proof: tuple[RailFault, ...] | None = ()  # what exchanges over the agreed rails broke on; None: not done yet
    cable: Finding | None = None  # a link of the running set has no rail left
    hold_seconds: float = 0.0  # how long that is borne
    drained: bool = True
    drain_seconds: float = 0.0
    evidence: Evidence = Evidence()


@dataclass(frozen=True, slots=True)
class Orders:
    """What follows: a goal for each Spark in rank order, what the endpoint does, what the engine is asked."""

    goals: tuple[Goal, ...]
    gate: Literal["open", "pause", "close", "drain"]
    ask: Literal["nothing", "models", "reply", "health"]
    prove: bool = False  # exchanges over the agreed rails


def living(sparks: tuple[Spark, ...]) -> bool:
    """Whether any Spark that can be heard still has a rank. One that cannot be heard ends its own by its lease."""
    return any(spark.occupied for spark in sparks if spark.reachable)


def highest_generation(sparks: tuple[Spark, ...]) -> int:
    """The highest generation that any Spark has seen; 0 for none."""
    seen = [spark.report.generation for spark in sparks if spark.report]
    return max([0, *seen, *(spark.hello.generation for spark in sparks if spark.hello)])
