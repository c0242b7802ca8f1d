"""This Spark without its daemon: its entry of the file and one reading of its links and devices."""

from __future__ import annotations

import argparse
import socket
from typing import NamedTuple

from glm_spark.config.load import load
from glm_spark.config.me import find_me
from glm_spark.config.model import Config
from glm_spark.fabric.inventory import Inventory
from glm_spark.fabric.watch import read_once
from glm_spark.finding import Finding, Severity


class Here(NamedTuple):
    """`inventory` is None when it could not be read; `findings` then say so."""

    config: Config
    me: str
    inventory: Inventory | None
    findings: tuple[Finding, ...]


def entry(arguments: argparse.Namespace) -> tuple[Config, str]:
    """The file and this Spark's name in it. Raises ConfigFault."""
    config = load(arguments.config)
    return config, find_me(config, arguments.node, socket.gethostname())


async def look(config: Config, me: str) -> Here:
    """Reads the network and the RDMA devices in a child that can be killed."""
    peers = [node.address for node in config.node if node.address and node.name != me]
    try:
        inventory = await read_once(peers, node=me)
    except (TimeoutError, OSError) as error:
        unread = Finding(
            code="fabric.not-read",
            severity=Severity.UNKNOWN,
            node=me,
            subject="links and RDMA devices",
            measured=str(error)[:500] or "they could not be read",
            wanted="a reading",
            fix="See the kernel's log: journalctl -k.",
        )
        return Here(config, me, None, (unread,))
    return Here(config, me, inventory, inventory.findings)
