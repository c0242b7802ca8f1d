"""glm-spark restart and stop: asked for, then followed until done."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glm_spark.cli import exits
from glm_spark.cli.ask import LONG_SECONDS, Unanswered, ask, socket_path
from glm_spark.cli.status import read
from glm_spark.cli.terminal import complain, console, show
from glm_spark.cli.wording import duration, printable
from glm_spark.finding import Finding, Severity
from glm_spark.status import Status

if TYPE_CHECKING:
    from rich.status import Status as Spinner

_POLL_SECONDS = 0.5
_UNHEARD_SECONDS = 5.0  # a daemon that is silent for so long in between is taken for gone
_AT_REST_SECONDS = 2.0  # a set that does not leave its rest for so long was stopped after the restart was asked for

_OVERTAKEN = {
    "restart": "the set was stopped meanwhile, by another glm-spark stop. glm-spark restart starts it again.",
    "stop": "the set was started again meanwhile, by another glm-spark restart. glm-spark stop stops it.",
}


def main(arguments: argparse.Namespace) -> int:
    path = socket_path(arguments.socket)
    try:
        before = read(ask(path, "GET", "/v1/status").body)
        answer = ask(path, "POST", f"/v1/{arguments.verb}", LONG_SECONDS)
        if answer.status == 409:
            return _refused(arguments, answer.body)
        if arguments.no_wait:
            return _begun(arguments)
        return _follow(path, arguments, before)
    except Unanswered as fault:
        if arguments.json:
            print(json.dumps({"error": str(fault)}))
        complain(str(fault))
        return exits.UNKNOWN
    except KeyboardInterrupt:
        complain(f"no longer watching; the {arguments.verb} goes on. How it is: glm-spark status")
        return 130


def _refused(arguments: argparse.Namespace, body: Any) -> int:
    if arguments.json:
        print(json.dumps(body))
        return exits.WRONG
    from glm_spark.cli import tell

    found = [Finding.model_validate(item) for item in body.get("findings", [])]
    complain(f"the {arguments.verb} was not begun, and nothing was stopped:")
    show(tell.findings(found), sys.stderr)
    return exits.WRONG


def _begun(arguments: argparse.Namespace) -> int:
    print(json.dumps({"begun": True}) if arguments.json else f"The {arguments.verb} has begun: glm-spark status")
    return exits.FINE


def _follow(path: Path, arguments: argparse.Namespace, before: Status) -> int:
    """Shows each state until the end of it; how it ended."""
    started = time.monotonic()
    spinner = None
    if not arguments.json and sys.stdout.isatty():
        spinner = console().status(f"{arguments.verb}: asked")
        spinner.start()
    shown = ""
    overtaken = False
    moved = started  # when the set was last seen away from its rest
    try:
        while True:
            status = _patiently(path)
            outcome = _outcome(arguments.verb, before, status)
            if outcome is not None:
                break
            moved = moved if _at_rest(status) else time.monotonic()
            overtaken = _overtaken(arguments.verb, before, status, time.monotonic() - moved)
            if overtaken:
                outcome = exits.WRONG
                break
            shown = _progress(status, shown, arguments, spinner, time.monotonic() - started)
            time.sleep(_POLL_SECONDS)
    finally:
        if spinner is not None:
            spinner.stop()
    if arguments.json:
        print(json.dumps({"begun": True, "state": status.state, "ready": status.ready}))
        return outcome
    if overtaken:
        complain(_OVERTAKEN[arguments.verb])
        return outcome
    print(_ending(arguments.verb, status, outcome, time.monotonic() - started))
    return outcome


def _patiently(path: Path) -> Status:
    """The status; a daemon is given a few seconds to answer again. Raises Unanswered."""
    deadline = time.monotonic() + _UNHEARD_SECONDS
    while True:
        try:
            return read(ask(path, "GET", "/v1/status").body)
        except Unanswered:
            if time.monotonic() > deadline:
                raise
            time.sleep(_POLL_SECONDS)


def _outcome(verb: str, before: Status, now: Status) -> int | None:
    """The exit status once it is done, None while it goes on.

    A restart is done when a later generation is live, or when the set has failed anew; a stop when no Spark that
    answers has a rank any more.
    """
    if verb == "stop":
        held = any(node.session == "up" and node.rank_state in ("loading", "ready", "stopping") for node in now.nodes)
        here = any(node.name == now.node and node.rank_state in ("loading", "ready", "stopping") for node in now.nodes)
        return None if held or here or now.state == "stopping" or now.ready else exits.FINE
    if now.ready and now.generation > before.generation:
        return exits.WARNINGS if now.degraded else exits.FINE
    if now.state == "failed" and (now.since, now.generation) != (before.since, before.generation):
        return exits.WRONG
    return None


def _at_rest(status: Status) -> bool:
    return status.state == "waiting" and status.reason is not None and status.reason.code == "set.stopped"


def _overtaken(verb: str, before: Status, now: Status, rested: float) -> bool:
    """Whether somebody asked for the opposite meanwhile, so that this verb would be followed for ever.

    `rested` in seconds: a set that was at rest may be seen so once more before a restart moves it.
    """
    if verb == "restart":
        return _at_rest(now) and rested >= _AT_REST_SECONDS
    return now.ready and now.generation > before.generation


def _progress(
    status: Status, shown: str, arguments: argparse.Namespace, spinner: Spinner | None, seconds: float
) -> str:
    phase = f", {status.engine.phase}" if status.engine.phase and status.state == "loading" else ""
    # A note only repeats the state.
    why = f": {status.reason}" if status.reason is not None and status.reason.severity is not Severity.NOTE else ""
    text = printable(f"{status.state}{phase}{why}")
    if spinner is not None:
        spinner.update(f"{arguments.verb} {duration(seconds)}: {text}")
    elif text != shown and not arguments.json:
        print(text, flush=True)
    return text


def _ending(verb: str, status: Status, outcome: int, seconds: float) -> str:
    after = f"after {duration(seconds)}"
    if outcome == exits.WRONG:
        return printable(f"failed {after}: {status.reason}")
    if verb == "stop":
        return f"stopped {after}. It stays stopped until glm-spark restart."
    return f"{status.api.model} is live {after}: {status.api.url}"
