"""glm-spark sweep: ends what a dead daemon left of this Spark's ranks. The unit runs it when the daemon has ended."""

from __future__ import annotations

import argparse
import asyncio
import os
import socket

from glm_spark.cli import exits
from glm_spark.cli.here import entry
from glm_spark.cli.terminal import complain
from glm_spark.config import directories
from glm_spark.config.load import ConfigFault
from glm_spark.engine.chosen import ChosenRuntime

_ANSWER_SECONDS = 2.0


def main(arguments: argparse.Namespace) -> int:
    """Never beside a living daemon: its rank would be the leftover."""
    try:
        config, me = entry(arguments)
    except ConfigFault as fault:
        complain(str(fault))
        return exits.BAD_CONFIGURATION
    if _daemon_lives():
        complain(f"the daemon of {me} runs: nothing is swept. To end its rank: glm-spark stop")
        return exits.WRONG
    ended = asyncio.run(ChosenRuntime(lambda: config).sweep(config.cluster.name, me))
    for text in ended:
        print(f"ended a leftover: {text}")
    return exits.FINE


def _daemon_lives() -> bool:
    path = directories.runtime(os.environ) / "control.sock"
    with socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(_ANSWER_SECONDS)
        try:
            caller.connect(str(path))
        except OSError:
            return False
    return True
