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
        body, whose = _of_all(arguments) if arguments.cluster else _of_this_one(arguments)
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
    found = findings_in(body)
    if arguments.json:
        print(json.dumps(body))
    else:
        _draw(body)
        if found:
            show(tell.findings(found))
        print(tell.summary(found, whose))
    return exits.of(found)


def _of_all(arguments: argparse.Namespace) -> tuple[dict[str, Any], str]:
    with working("checking every Spark", arguments):
        body = ask(socket_path(arguments.socket), "GET", "/v1/check", LONG_SECONDS).body
    return body if isinstance(body, dict) else {"findings": body}, "the set"


def _draw(body: dict[str, Any]) -> None:
    """The cable, where the answer has one."""
    if not body.get("links"):
        return
    from glm_spark.cli.cable import drawing
    from glm_spark.fabric.verdict import RailProof
    from glm_spark.status import LinkStatus

    links = tuple(LinkStatus.model_validate_json(json.dumps(link)) for link in body["links"])
    proofs = [RailProof.model_validate_json(json.dumps(proof)) for proof in body.get("proofs", [])]
    show(drawing(links, {proof.rail: proof for proof in proofs}))
    print()


def findings_in(body: Any) -> list[Finding]:
    """The findings of an answer, which is a list of them or has one."""
    listed = body.get("findings", []) if isinstance(body, dict) else body
    return [Finding.model_validate(item) for item in listed]


def _of_this_one(arguments: argparse.Namespace) -> tuple[dict[str, Any], str]:
    from glm_spark.cli.here import entry

    config, me = entry(arguments)
    with working(f"checking {me}", arguments):
        found = asyncio.run(_checked(config, me))
    return {"findings": [finding.model_dump(mode="json") for finding in found]}, me


async def _checked(config: Config, me: str) -> tuple[Finding, ...]:
    from glm_spark.cli.here import look
    from glm_spark.preflight import runner
    from glm_spark.preflight.context import Context

    here = await look(config, me)
    context = Context(config=config, me=me, inventory=here.inventory, reader=here.findings, alone=True)
    found = await runner.run(context)
    return tuple(dict.fromkeys((*here.findings, *found)))
