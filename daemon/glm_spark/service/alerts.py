"""When the owner's program is told something, and what. Pure: the set's state goes in, events come out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from glm_spark.finding import Finding, Severity

Trouble = Literal["not-ready", "degraded", "breaker-open"]
GRACE_SECONDS = 120.0  # Sparks that boot together do not come up at the same moment
BREAKER = "set.breaker"  # how the code of a set that stays stopped begins


@dataclass(frozen=True, slots=True)
class View:
    """The set as the leader sees it. `since` is when its state began, in UNIX seconds."""

    cluster: str
    node: str
    state: str
    ready: bool
    degraded: tuple[str, ...]
    reason: Finding | None
    generation: int
    since: float


class Alerts:
    """Remembers what was told last. `event` is asked at every change, and now and then for the repeat."""

    def __init__(self) -> None:
        self._trouble: Trouble | None = None
        self._what: tuple[str, ...] = ()
        self._told_at = 0.0
        self._began: float | None = None  # until the set was ready once

    def event(self, view: View, now: float, repeat_seconds: float) -> dict[str, Any] | None:
        """The event to tell now, None for none. `now` in UNIX seconds."""
        trouble, what = self._judge(view)
        if self._booting(view, trouble, now):
            return None
        if trouble is None:
            if self._trouble is None:
                return None
            self._trouble, self._what = None, ()
            return told("cleared", view, now, repeated=False)
        same = (trouble, what) == (self._trouble, self._what)
        if same and (not repeat_seconds or 0 <= now - self._told_at < repeat_seconds):
            return None
        self._trouble, self._what, self._told_at = trouble, what, now
        return told(trouble, view, now, repeated=same)

    def _booting(self, view: View, trouble: Trouble | None, now: float) -> bool:
        """Whether the first start of this daemon's life is young enough to say nothing of a Spark that is missing."""
        if view.ready:
            self._began = float("-inf")
        elif self._began is None:
            self._began = now
        young = self._began is not None and 0 <= now - self._began < GRACE_SECONDS
        return young and trouble == "not-ready" and view.state == "waiting"

    def _judge(self, view: View) -> tuple[Trouble | None, tuple[str, ...]]:
        """What is wrong now. A set that comes back is still not ready; one that its owner stopped is not in trouble."""
        if view.ready:
            return ("degraded", view.degraded) if view.degraded else (None, ())
        reason = view.reason
        if reason is not None and reason.code.startswith(BREAKER):
            return "breaker-open", ()
        if reason is not None and reason.code in ("set.stopped", "set.restarting"):
            return None, ()
        if view.state == "failed" or (reason is not None and reason.severity is Severity.ERROR):
            return "not-ready", ()
        if self._trouble == "degraded":  # a planned start from a degraded life
            return None, ()
        return self._trouble, self._what


def told(event: str, view: View, now: float, *, repeated: bool) -> dict[str, Any]:
    """The JSON that the program reads; `summary` is one line for a person."""
    return {
        "event": event,
        "summary": summary(event, view),
        "cluster": view.cluster,
        "node": view.node,
        "at": now,
        "repeated": repeated,
        "state": view.state,
        "since": view.since,
        "ready": view.ready,
        "degraded": list(view.degraded),
        "generation": view.generation,
        "reason": view.reason.model_dump(mode="json") if view.reason else None,
    }


def summary(event: str, view: View) -> str:
    reason = f": {view.reason}" if view.reason else ""
    match event:
        case "cleared":
            return f"{view.cluster}: {'live again' if view.ready else 'no longer in trouble'}{reason}"
        case "degraded":
            return f"{view.cluster}: live, but degraded: {', '.join(view.degraded)}"
        case "breaker-open":
            return f"{view.cluster}: stays stopped after too many failures{reason}"
        case _:
            return f"{view.cluster}: not ready, {view.state}{reason}"
