"""glm-spark config: is the file right, and what does it amount to."""

from __future__ import annotations

import argparse
import json
import socket
import sys

from glm_spark.cli import exits
from glm_spark.config.dump import dump, effective
from glm_spark.config.load import ConfigFault, load
from glm_spark.config.me import find_me


def main(arguments: argparse.Namespace) -> int:
    try:
        config = load(arguments.config)
        # A file may be judged on a laptop: only a name that was asked for must be in it.
        me = find_me(config, arguments.node, socket.gethostname()) if arguments.node else ""
    except ConfigFault as fault:
        if arguments.json:
            print(json.dumps({"file": str(arguments.config), "faults": list(fault.faults)}))
        else:
            print(f"glm-spark: {fault}", file=sys.stderr)
        return exits.BAD_CONFIGURATION
    if arguments.json:
        print(json.dumps({"file": str(arguments.config), "faults": [], "settings": effective(config)}))
    elif arguments.effective:
        print(dump(config), end="")
    else:
        names = ", ".join(node.name for node in config.node[1:])
        whose = f" This Spark is {me}, rank {config.rank_of(me)}." if me else ""
        print(f"{arguments.config}: fine. {config.leader.name} leads {names}.{whose}")
    return exits.FINE
