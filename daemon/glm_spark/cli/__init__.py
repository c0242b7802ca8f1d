"""The command `glm-spark`: verbs without logic of their own. Heavy rooms are imported by the verb that needs them."""

from __future__ import annotations

import os
import sys


def main(argv: list[str] | None = None) -> int:
    """Runs one verb; its exit status. Interrupting it with Ctrl-C is no fault of the set's."""
    from glm_spark.cli.arguments import parser, verb

    arguments = parser().parse_args(argv)
    try:
        status = verb(arguments)
        # Here rather than at exit, where a reader that has gone is a fault to Python.
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader, `head` perhaps, has what it wanted; Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
