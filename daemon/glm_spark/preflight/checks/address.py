"""Has the cable an address that stays?"""

from __future__ import annotations

from collections.abc import Iterable

from glm_spark.fabric.told import unaddressed
from glm_spark.finding import Finding
from glm_spark.preflight.context import Check, Context


def run(context: Context) -> Iterable[Finding]:
    if context.inventory is None:
        return ()
    return unaddressed(context.config, context.me, context.inventory)


CHECK = Check(
    id="address",
    measures="the IPv4 addresses of the cable's netdevs that have a carrier",
    wants="a fixed address on each, not one of 169.254.0.0/16",
    advice="Give each netdev of the cable a fixed address in one subnet with the other end.",
    run=run,
)
