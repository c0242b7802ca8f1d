"""glm-spark check: what is wrong on this Spark, or on all of them; changes nothing."""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import TYPE_CHECKING, Any

from glm_spark.cli import exits, tell
from glm_spark.cli.ask import LONG_SECONDS, Unanswered, ask, socket_path
from glm_spark.cli.terminal import complain, show, working
from glm_spark.config.load import ConfigFault
from glm_spark.finding import Finding

if TYPE_CHECKING:
    from glm_spark.config.model import Config


def main(arguments: argparse.Namespace) -> int:
    try:
        found, whose = _of_all(arguments) if arguments.cluster else _of_this_one(arguments)
    except ConfigFault as fault:
        if arguments.json:
            print(json.dumps({"file": str(arguments.config), "faults": list(fault.faults)}))
        complain(str(fault))
        return exits.BAD_CONFIGURATION
    except Unanswered as fault:
        if arguments.json:
            print(json.dumps({"error": str(fault)}))
        complain(str(fault))
        return exits.UNKNOWN
    if arguments.json:
        print(json.dumps({"findings": [finding.model_dump(mode="json") for finding in found]}))
    else:
        if found:
            show(tell.findings(found))
        print(tell.summary(found, whose))
    return exits.of(found)


def _of_all(arguments: argparse.Namespace) -> tuple[list[Finding], str]:
    with working("checking every Spark", arguments):
        body = ask(socket_path(arguments.socket), "GET", "/v1/check", LONG_SECONDS).body
    return findings_in(body), "the set"


def findings_in(body: Any) -> list[Finding]:
    """The findings of an answer, which is a list of them or has one."""
    listed = body.get("findings", []) if isinstance(body, dict) else body
    return [Finding.model_validate(item) for item in listed]


def _of_this_one(arguments: argparse.Namespace) -> tuple[list[Finding], str]:
    from glm_spark.cli.here import entry

    config, me = entry(arguments)
    with working(f"checking {me}", arguments):
        return list(asyncio.run(_checked(config, me))), me


async def _checked(config: Config, me: str) -> tuple[Finding, ...]:
    from glm_spark.cli.here import look
    from glm_spark.preflight import runner
    from glm_spark.preflight.context import Context

    here = await look(config, me)
    found = await runner.run(Context(config=config, me=me, inventory=here.inventory, reader=here.findings))
    return tuple(dict.fromkeys((*here.findings, *found)))
