"""Did a killed kernel build leave a lock that the next start would wait on?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from glm_spark.engine import buildlock
from glm_spark.finding import Finding, Severity
from glm_spark.preflight.context import Check, Context


def run(context: Context) -> Iterator[Finding]:
    for lock in buildlock.find(Path(context.config.engine.kernel_cache)):
        yield context.finding(
            "engine.build-lock",
            Severity.NOTE,
            f"kernel build lock {lock.path}",
            measured=str(lock),
            wanted="no lock, or a build that goes on",
            fix="Nothing to do: it is removed before the next start."
            if lock.stale
            else "Nothing to do while the build goes on.",
        )


CHECK = Check(
    id="kernels",
    measures="lock files in engine.kernel_cache, who holds them, whether a compiler runs",
    wants="no lock of a build that was killed",
    advice="It is removed before the next start, unless somebody builds.",
    run=run,
)
