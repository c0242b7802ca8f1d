"""The secret that all Sparks share: there, long enough, private. Its value is never shown."""

from __future__ import annotations

from collections.abc import Iterator

from glm_spark.config import token
from glm_spark.finding import Finding
from glm_spark.preflight.context import Check, Context


def run(context: Context) -> Iterator[Finding]:
    if context.moment == "start" and context.token is not None:
        return  # the daemon has read it; it is not needed anew for a start
    try:
        token.read(context.config, context.environ, context.me)
    except token.TokenFault as fault:
        yield fault.finding


CHECK = Check(
    id="token",
    measures="the systemd credential glm-spark-token, else cluster.token_file",
    wants="at least 32 bytes, readable by its owner alone",
    advice="glm-spark token new makes one; put the same on all Sparks.",
    run=run,
)
