"""glm-spark status: the set at one glance, once or until Ctrl-C."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from glm_spark.cli import exits
from glm_spark.cli.ask import Unanswered, ask, socket_path
from glm_spark.cli.terminal import complain, console, show
from glm_spark.finding import Severity, worst
from glm_spark.status import Status

_POLL_SECONDS = 1.0


def main(arguments: argparse.Namespace) -> int:
    path = socket_path(arguments.socket)
    try:
        if arguments.history:
            from glm_spark.cli.history import show_history

            return show_history(ask(path, "GET", "/v1/incidents").body, as_json=arguments.json)
        if arguments.watch:
            return _watch(path, as_json=arguments.json)
        body = ask(path, "GET", "/v1/status").body
        status = read(body)
    except Unanswered as fault:
        if arguments.json:
            print(json.dumps({"error": str(fault)}))
        complain(str(fault))
        return exits.UNKNOWN
    _print(status, body, as_json=arguments.json)
    return exit_status(status)


def read(body: Any) -> Status:
    """Raises Unanswered for what a daemon of another version says."""
    try:
        return Status.model_validate_json(json.dumps(body))
    except ValidationError:
        raise Unanswered(
            "the daemon that answers is of another version; restart it: systemctl restart glm-spark"
        ) from None


def exit_status(status: Status) -> int:
    """0 live; 1 live with less, or on its way; 2 something must be mended; 3 this Spark does not know."""
    if status.state == "unknown":
        return exits.UNKNOWN
    if status.state == "failed":
        return exits.WRONG
    found = [finding for node in status.nodes for finding in node.findings]
    if status.ready:
        wrong = worst(found) in (Severity.ERROR, Severity.WARNING)
        return exits.WARNINGS if status.degraded or wrong else exits.FINE
    if status.reason is not None and status.reason.severity is Severity.ERROR:
        return exits.WRONG
    return exits.WARNINGS


def _print(status: Status, body: Any, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(body), flush=True)
        return
    from glm_spark.cli.show import render

    show(render(status, time.time()))


def _watch(path: Path, *, as_json: bool) -> int:
    """On a terminal one picture that is kept current; elsewhere a picture for each change."""
    if not as_json and sys.stdout.isatty():
        return _live(path)
    shown: Any = None
    while True:
        try:
            body = ask(path, "GET", "/v1/status").body
            status = read(body)
            if _gist(body) != shown:
                _print(status, body, as_json=as_json)
                shown = _gist(body)
        except Unanswered as fault:
            if str(fault) != shown:
                complain(str(fault))
                shown = str(fault)
        time.sleep(_POLL_SECONDS)


def _gist(body: Any) -> Any:
    """What counts as a change: not the figures that move by themselves."""
    nodes = [{key: value for key, value in node.items() if key != "memory"} for node in body.get("nodes", [])]
    phase = body.get("engine", {}).get("phase")
    return {**{key: body.get(key) for key in ("state", "ready", "degraded", "reason")}, "nodes": nodes, "phase": phase}


def _live(path: Path) -> int:
    from rich.live import Live
    from rich.text import Text

    from glm_spark.cli.show import render

    with Live(console=console(), auto_refresh=False, screen=False, transient=False) as live:
        while True:
            try:
                live.update(render(read(ask(path, "GET", "/v1/status").body), time.time()), refresh=True)
            except Unanswered as fault:
                live.update(Text(f"glm-spark: {fault}", "bold magenta"), refresh=True)
            time.sleep(_POLL_SECONDS)
