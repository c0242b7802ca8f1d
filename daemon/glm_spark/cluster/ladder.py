"""What is tried differently after a failed start: enumerated rungs, the same on every rank, each climbed once. Pure.

The rungs are the MiaAI recipe's own remedies: a first NCCL connection that fails is tried once more as it was, then
without HC_SPLIT and PREFILL_OVERLAP; a window that does not fit is asked for as the engine proposes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from glm_spark.engine.rank import RankView
from glm_spark.engine.spec import Variant
from glm_spark.finding import Finding

WINDOW_STEPS = 2  # a second proposal can be smaller still when memory shrinks; a third means something else is wrong


@dataclass(frozen=True, slots=True)
class Rungs:
    """What was tried since the owner, the configuration or a reboot last changed something."""

    variant: Variant = field(default_factory=Variant)
    connection_failures: int = 0
    window_steps: int = 0
    exhausted: bool = False  # this failure has no further rung


def climb(rungs: Rungs, reason: Finding, views: Iterable[RankView]) -> Rungs:
    """The rungs after a failure; the same ones, not exhausted, where the ladder has no word on it."""
    if reason.code == "engine.nccl-error":
        return _connection(rungs)
    if reason.code == "engine.window-refused":
        return _window(rungs, [view.window for view in views if view.window])
    return Rungs(rungs.variant, rungs.connection_failures, rungs.window_steps)


def _connection(rungs: Rungs) -> Rungs:
    failures = rungs.connection_failures + 1
    gentle = rungs.variant.gentle or failures >= 2
    return Rungs(rungs.variant.model_copy(update={"gentle": gentle}), failures, rungs.window_steps)


def _window(rungs: Rungs, proposals: list[int]) -> Rungs:
    """The smallest window that any rank proposed, if it is smaller than what was tried."""
    proposed = min(proposals, default=0)
    tried = rungs.variant.context
    if rungs.window_steps >= WINDOW_STEPS or not proposed or (tried is not None and proposed >= tried):
        return Rungs(rungs.variant, rungs.connection_failures, rungs.window_steps, exhausted=True)
    variant = rungs.variant.model_copy(update={"context": proposed})
    return Rungs(variant, rungs.connection_failures, rungs.window_steps + 1)
