"""What the demo prints, from the statuses of the daemons. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

Status = Mapping[str, Any] | None

_COLOURS = {"live": "green", "armed": "cyan", "running": "green", "failed": "red", "recovering": "red"}


def state_of(status: Status) -> str:
    return str(status["state"]) if status else "starting"


def doing(name: str, leader: Status) -> str:
    """What the rank of one Spark does, as the leader knows it."""
    for node in (leader or {}).get("nodes", ()):
        if node["name"] == name:
            phase = f": {node['phase']}" if node.get("phase") and node["rank_state"] == "loading" else ""
            return f"{node['rank_state']}{phase}"
    return ""


def reason_of(status: Status) -> str:
    """Why the set is not live: what was measured and what to do."""
    reason = (status or {}).get("reason")
    if not reason:
        return ""
    text = f"{reason['node']}: {reason['subject']}"
    if reason["measured"]:
        text += f": {reason['measured']}"
    return text


def live_line(journal: Sequence[str]) -> str | None:
    """The LIVE line as the owner's journal shows it, without the severity that stands before it."""
    found = (line for line in journal if "is now LIVE!" in line)
    return next((re.sub(r"^<\d>", "", line) for line in found), None)


def table(names: Sequence[str], statuses: Sequence[Status], seconds: float) -> Table:
    shown = Table(box=None, padding=(0, 2, 0, 0), title_justify="left")
    for heading in ("Spark", "role", "state", "rank", f"{seconds:.1f} s"):
        shown.add_column(heading, header_style="bold")
    for rank, (name, status) in enumerate(zip(names, statuses, strict=True)):
        state = state_of(status)
        reason = reason_of(status)
        if rank and reason == reason_of(statuses[0]):
            reason = ""
        shown.add_row(
            name,
            "leader" if rank == 0 else "worker",
            Text(state, style=_COLOURS.get(state, "yellow")),
            doing(name, statuses[0]),
            Text(reason, style="dim", overflow="ellipsis", no_wrap=True),
        )
    return shown


def line(name: str, status: Status, leader: Status) -> str:
    """The same for one Spark as one line, for logs and for what happens after LIVE."""
    rank, reason = doing(name, leader), reason_of(status)
    if status is not leader and reason == reason_of(leader):
        reason = ""  # said already
    doubted = status is not None and status["state"] == "live" and not status["ready"]
    text = f"{name}: {'not ready' if doubted else state_of(status)}"
    text += f", rank {rank}" if rank else ""
    return text + (f" ({reason})" if reason else "")


def next_things(count: int) -> list[tuple[str, str]]:
    """Commands for another terminal, and what each shows."""
    things = [
        ('./dev demo ask "What is a lease?"', "a question to the endpoint, streamed"),
        ("./dev demo kill-rank 2", "kill -9 of the rank on spark-2: not ready at once, then all start again"),
        ("./dev demo cut", "pull the cable between spark-1 and spark-2"),
        ("./dev demo plug", "and put it back"),
        ("./dev demo freeze 2", "spark-2 hangs with its connections open (thaw 2 ends it)"),
        ("./dev demo kill-daemon 2", "kill -9 of a daemon; it is started again as systemd would"),
        ("./dev demo status", "glm-spark status, as on any Spark"),
        ("./dev demo journal 1", "what spark-1's daemon said"),
        ("./dev demo shell 1", "a shell on spark-1: glm-spark, curl http://127.0.0.1:8888/readyz, ip address"),
    ]
    if count == 3:
        things.insert(4, ("./dev demo cut 2 3", "the cable between spark-2 and spark-3"))
    return things
