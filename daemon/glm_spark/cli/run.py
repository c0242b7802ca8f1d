"""glm-spark run: the daemon."""

from __future__ import annotations

import argparse

from glm_spark import service


def main(arguments: argparse.Namespace) -> int:
    return service.main(arguments.config, arguments.node)
