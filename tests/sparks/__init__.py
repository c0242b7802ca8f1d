"""Two or three Sparks as network namespaces on this machine: shared by the demo, the tests and the bench."""

from tests.sparks.cluster import Sparks
from tests.sparks.daemon import Daemon, NotSeenError, until
from tests.sparks.layout import Layout, describe
from tests.sparks.processes import Rank, alive, ranks
from tests.sparks.spark import Reply, Spark

__all__ = [
    "Daemon",
    "Layout",
    "NotSeenError",
    "Rank",
    "Reply",
    "Spark",
    "Sparks",
    "alive",
    "describe",
    "ranks",
    "until",
]
