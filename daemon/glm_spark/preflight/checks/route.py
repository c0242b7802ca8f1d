"""Does the way to each peer leave on the cable?"""

from __future__ import annotations

from collections.abc import Iterator

from glm_spark.config.model import Node
from glm_spark.fabric.dial import dial
from glm_spark.finding import Finding
from glm_spark.preflight.context import Check, Context


def targets(context: Context) -> tuple[Node, ...]:
    """Whom this Spark reaches by the address in the file: the leader its workers, a lone worker its leader.

    With three Sparks a worker's address in the file is on its cable to the leader, which says nothing to the
    other worker.
    """
    if context.leads or context.config.size == 2:
        return context.others
    return ()


def run(context: Context) -> Iterator[Finding]:
    if context.inventory is None:
        return
    for peer in targets(context):
        answer = dial(context.config, context.me, context.inventory, peer)
        if isinstance(answer, Finding):
            yield answer


CHECK = Check(
    id="route",
    measures="the kernel's route to each peer's address: netdev and source address",
    wants="a route that leaves on the cable (with roce: on a RoCE netdev)",
    advice="Name each worker by its address on the cable.",
    run=run,
)
