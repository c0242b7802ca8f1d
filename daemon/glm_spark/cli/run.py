"""glm-spark run: the daemon."""

from __future__ import annotations

import argparse

from glm_spark.service import main as serve


def main(arguments: argparse.Namespace) -> int:
    return serve(arguments.config, arguments.node)
