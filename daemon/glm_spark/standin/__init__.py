"""A stand-in for the TensorFold engine: same command line, log lines, HTTP and failures, no model.

A program of its own (`glm-spark-standin`). The daemon never imports it and it imports nothing of the daemon:
they meet only over argv, environment, pipes, sockets and signals, as they do with the real engine.
"""

from __future__ import annotations

import sys


def main(argv: list[str] | None = None) -> int:
    """Run the stand-in; returns the exit status TensorFold v0.6.0 would give (0, 1 or 2)."""
    # Imported late: `--version` and a refused command line answer without loading asyncio.
    from glm_spark.standin.command import run

    return run(sys.argv[1:] if argv is None else argv)
