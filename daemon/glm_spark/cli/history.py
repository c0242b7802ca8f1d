"""glm-spark status --history: what happened, when, and what became of it."""

from __future__ import annotations

import json
from typing import Any

from pydantic import ValidationError

from glm_spark.cli import exits
from glm_spark.cli.terminal import console
from glm_spark.cli.wording import duration, moment, printable
from glm_spark.finding import Finding

_SHOWN_APART = ("at", "state", "generation", "reason", "evidence", "tails", "done", "seconds_to_live")

_LINES = 5  # of each rank; --json has them all


def show_history(body: Any, *, as_json: bool) -> int:
    """Incidents as the daemon lists them, the newest last."""
    if as_json:
        print(json.dumps(body))
        return exits.FINE
    incidents = body if isinstance(body, list) else []
    out = console()
    if not incidents:
        out.print("No incident so far.")
    for incident in incidents:
        for line in told(incident):
            out.print(line, soft_wrap=True)
    return exits.FINE


def told(incident: dict[str, Any]) -> list[str]:
    """One incident in a few lines. A key that this version does not know is shown as it is."""
    at = incident.get("at")
    when = moment(float(at), None, seconds=True) if isinstance(at, int | float) else "at an unknown time"
    lines = [f"{when}  {incident.get('state', ''):10}  {_why(incident)}".rstrip()]
    lines += [f"  also {text}" for one in incident.get("evidence") or () if (text := _finding(one))]
    lines += _tails(incident.get("tails"))
    lines += _done(incident.get("done"))
    took = incident.get("seconds_to_live")
    lines += [f"  live again after {duration(float(took))}"] if isinstance(took, int | float) else []
    lines += [f"  {key}: {value}" for key, value in incident.items() if key not in _SHOWN_APART and value]
    return [printable(line) for line in lines]


def _tails(tails: Any) -> list[str]:
    """The last lines of every rank."""
    if not isinstance(tails, dict):
        return []
    lines = []
    for rank, last in tails.items():
        if isinstance(last, list) and last:
            lines += [f"  {rank}:", *(f"    | {line}" for line in last[-_LINES:])]
    return lines


def _done(done: Any) -> list[str]:
    """What was done, each step with its time; a step taken again and again is one line."""
    if not isinstance(done, list):
        return [f"  done: {done}"] if done else []
    lines = []
    for step in done:
        if isinstance(step, dict):
            at, times = step.get("at"), step.get("times", 1)
            when = moment(float(at), None, seconds=True)[11:] if isinstance(at, int | float) else "?"
            again = f" ({times} times)" if times != 1 else ""
            lines.append(f"  {when}  {step.get('what', '')}{again}")
    return lines


def _finding(told: Any) -> str:
    try:
        return str(Finding.model_validate(told))
    except ValidationError:
        return ""


def _why(incident: dict[str, Any]) -> str:
    reason = incident.get("reason")
    if isinstance(reason, dict):
        return _finding(reason)
    generation = f"generation {incident['generation']}" if incident.get("generation") else ""
    return str(reason or generation)
