"""Did the kernel answer at all when links, routes and devices were read?"""

from __future__ import annotations

from collections.abc import Iterator

from glm_spark.finding import Finding, Severity
from glm_spark.preflight.context import Check, Context


def run(context: Context) -> Iterator[Finding]:
    yield from context.reader
    if context.inventory is not None:
        yield from context.inventory.findings
    elif not context.reader:
        yield context.finding(
            "fabric.not-read",
            Severity.UNKNOWN,
            "links and RoCE devices",
            measured="the kernel has not answered",
            wanted="a reading of netdevs, routes and devices",
            fix="Run python3 -m glm_spark.fabric.child once, and see journalctl -k.",
        )


CHECK = Check(
    id="reading",
    measures="netdevs, addresses, routes and RoCE devices, over netlink and verbs",
    wants="an answer to every question",
    advice="A call that never returns means that a driver holds the kernel's lock.",
    run=run,
)
