"""glm-spark status --history: what happened, when, and what became of it."""

from __future__ import annotations

import json
from typing import Any

from glm_spark.cli import exits
from glm_spark.cli.terminal import console
from glm_spark.cli.wording import duration, moment, printable
from glm_spark.finding import Finding

_SHOWN_APART = ("at", "state", "generation", "reason", "done", "seconds_to_live")


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
    if incident.get("done"):
        lines.append(f"  done: {incident['done']}")
    took = incident.get("seconds_to_live")
    lines += [f"  live again after {duration(float(took))}"] if isinstance(took, int | float) else []
    lines += [f"  {key}: {value}" for key, value in incident.items() if key not in _SHOWN_APART and value]
    return [printable(line) for line in lines]


def _why(incident: dict[str, Any]) -> str:
    reason = incident.get("reason")
    if isinstance(reason, dict):
        return str(Finding.model_validate(reason))
    generation = f"generation {incident['generation']}" if incident.get("generation") else ""
    return str(reason or generation)
