"""Are the weights here, as far as one look tells?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from glm_spark.config import directories
from glm_spark.finding import Finding, Severity
from glm_spark.preflight.context import Check, Context
from glm_spark.weights import pins
from glm_spark.weights.look import Store, look, told


def run(context: Context) -> Iterator[Finding]:
    """Before a start they have been brought already; asked for by a person, what lacks is no error yet."""
    weights = context.config.weights
    state = Path(directories.state(context.environ)) / "weights"
    store = Store(context.me, context.config.model.cache, state, weights.roots, derive=True)
    for finding in told(context.me, look(store, pins.wanted(context.config))):
        if finding.code == "weights.path":
            yield finding
        elif context.moment == "check":
            # A start fetches or verifies it; only what a start would refuse is a fault.
            severity = Severity.WARNING if finding.code in ("weights.wrong", "weights.outside") else Severity.NOTE
            yield finding.model_copy(update={"severity": severity})


CHECK = Check(
    id="weights",
    measures="the pinned files in model.cache, or the directories that model.path and model.drafter_path name",
    wants="every file there, with its pinned content",
    advice="glm-spark weights status shows what lacks; a start fetches it on the leader and hands it to the workers.",
    run=run,
    deadline=15.0,
)
