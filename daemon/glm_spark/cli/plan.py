"""glm-spark plan: the links found and what every rank would be started with; nothing is started."""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from glm_spark.cli import exits, tell
from glm_spark.cli.ask import LONG_SECONDS, Unanswered, ask, socket_path
from glm_spark.cli.check import findings_in
from glm_spark.cli.terminal import complain, show, working
from glm_spark.cli.wording import printable
from glm_spark.config.load import ConfigFault
from glm_spark.finding import Finding
from glm_spark.status import LinkStatus, RailEnd

if TYPE_CHECKING:
    from glm_spark.cli.here import Here


def main(arguments: argparse.Namespace) -> int:
    alone = ""
    try:
        with working("looking at the links", arguments):
            body = ask(socket_path(arguments.socket), "GET", "/v1/plan", LONG_SECONDS).body
    except Unanswered as fault:
        alone = str(fault)
        try:
            body = _alone(arguments)
        except ConfigFault as bad:
            complain(alone)
            complain(str(bad))
            return exits.BAD_CONFIGURATION
    found = findings_in(body)
    if arguments.json:
        print(json.dumps(body))
    else:
        print("\n".join(lines(body)))
        if found:
            print()
            show(tell.findings(found))
    if alone:
        complain(f"{alone}. Above is what this Spark can see alone; the ranks follow from all Sparks' links.")
        return max(exits.UNKNOWN, exits.of(found)) if exits.of(found) != exits.WRONG else exits.WRONG
    return exits.of(found)


def lines(body: dict[str, Any]) -> Iterator[str]:
    """The plan as text. The shape is that of GET /v1/plan, with "here" where this Spark looked alone."""
    links = [LinkStatus.model_validate_json(json.dumps(link)) for link in body.get("links", [])]
    for link in links:
        yield printable(f"link {link.a} - {link.b}")
        for rail in link.rails:
            yield printable(f"  rail {_end(rail.a)}  -  {_end(rail.b)}  {rail.state}")
    for end in body.get("here", []):
        yield printable(f"cable {_end(RailEnd.model_validate(end))}")
    if not links and not body.get("here"):
        yield "no link was found"
    for rank in body.get("ranks", []):
        yield ""
        yield printable(f"rank {rank['rank']} on {rank['node']}")
        yield printable(f"  {shlex.join(rank['argv'])}")
        for name, value in sorted(rank["environment"].items()):
            yield printable(f"  {name}={shlex.quote(value)}")


def _end(end: RailEnd) -> str:
    parts = [end.netdev or "?", end.address]
    if end.device:
        parts.append(end.device + (f" GID {end.gid_index}" if end.gid_index is not None else " no GID"))
    if end.mtu is not None:
        parts.append(f"MTU {end.mtu}")
    return " ".join(part for part in parts if part)


def _alone(arguments: argparse.Namespace) -> dict[str, Any]:
    """This Spark's ends of the cable and its ways to the others. Raises ConfigFault."""
    from glm_spark.cli.here import entry, look

    config, me = entry(arguments)
    with working(f"looking at {me}'s links", arguments):
        return _own_ends(asyncio.run(look(config, me)))


def _own_ends(here: Here) -> dict[str, Any]:
    from glm_spark.fabric.dial import dial
    from glm_spark.fabric.ends import ends_of, gid_of

    config, me, inventory, findings = here
    ends, found = [], list(findings)
    if inventory is not None:
        for end in ends_of(config, me, inventory):
            device = inventory.device_on(end.netdev.name)
            gid = gid_of(inventory, end.netdev.name, end.address)
            ends.append(
                RailEnd(
                    netdev=end.netdev.name,
                    device=device.name if device else None,
                    gid_index=gid.index if gid else None,
                    address=end.address,
                    mtu=end.netdev.mtu,
                )
            )
        ways = [dial(config, me, inventory, node) for node in config.node if node.name != me and node.address]
        found.extend(way for way in ways if isinstance(way, Finding))
    return {
        "links": [],
        "ranks": [],
        "here": [end.model_dump(mode="json") for end in ends],
        "findings": [finding.model_dump(mode="json") for finding in found],
    }
