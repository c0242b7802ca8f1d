"""The last incidents: what happened to the set, the evidence, what was done and how long it took. Pure.

An incident begins when the set leaves live, or when a start fails, and ends when it is live again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from glm_spark.finding import Finding, Severity

MOST = 50
FIRST_DONE, LAST_DONE = 10, 30  # of a long incident its first and its last steps are kept
MOST_EVIDENCE = 20
CYCLE = 6  # steps of a start that fails again and again
TAIL_LINES, TAIL_WIDTH = 20, 300
_STARTING = ("preparing", "loading", "verifying")
_ENDED = ("recovering", "failed", "stopping")
# What may hold a request's text, should an engine ever print one.
_PRIVATE = ('"messages"', '"content"', '"prompt"', "'messages'", "'content'", "'prompt'", "Authorization:", "Bearer ")


class Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Step(Entry):
    """Something that was done, `at` in UNIX seconds. `times` such steps in a row are one."""

    at: float
    what: str = Field(max_length=2500)
    times: int = 1


class Incident(Entry):
    """`state` is the state of the set in which it struck, `at` when, in UNIX seconds. `tails` are the last lines of
    each rank by "rank N on SPARK". `seconds_to_live` is None while it lasts."""

    at: float
    state: str
    generation: int
    reason: Finding | None = None
    evidence: tuple[Finding, ...] = ()
    tails: dict[str, tuple[str, ...]] = {}
    done: tuple[Step, ...] = ()
    seconds_to_live: float | None = None


class Life(Entry):
    """The set is live, and which daemon and boot leads it: a next life that finds this was not told to stop."""

    generation: int
    since: float
    boot_id: str


class Kept(Entry):
    """What lies on the disk; incidents oldest first."""

    incidents: tuple[Incident, ...] = ()
    live: Life | None = None


class View(Entry):
    """The set at one moment: what the history is made of."""

    at: float
    state: str
    generation: int
    reason: Finding | None = None
    evidence: tuple[Finding, ...] = ()
    tails: dict[str, tuple[str, ...]] = {}


def parse(content: bytes) -> Kept:
    """ValueError for what is no history. An incident that is damaged is left out, the others stay."""
    told = json.loads(content)
    if not isinstance(told, dict) or not isinstance(told.get("incidents", []), list):
        raise ValueError("not a history")
    incidents = [one for one in map(_incident, told.get("incidents", [])) if one is not None]
    try:
        live = Life.model_validate(told["live"]) if told.get("live") else None
    except ValidationError:
        live = None
    return Kept(incidents=tuple(incidents[-MOST:]), live=live)


def _incident(told: Any) -> Incident | None:
    try:
        return Incident.model_validate(told)
    except ValidationError:
        return None


class Incidents:
    """Takes a view after every step of the course. `open` is the incident that lasts, the newest one."""

    def __init__(self, node: str, boot_id: str) -> None:
        self._node = node
        self._boot_id = boot_id
        self._kept = Kept()
        self._state = "waiting"
        self._early: tuple[Finding, ...] = ()  # seen before the incident that it explains

    @property
    def kept(self) -> Kept:
        return self._kept

    @property
    def open(self) -> Incident | None:
        last = self._kept.incidents[-1] if self._kept.incidents else None
        return last if last is not None and last.seconds_to_live is None else None

    def resume(self, earlier: Kept, now: float) -> None:
        """Goes on where an earlier life of this daemon ended. A set that was live then has had an incident."""
        self._kept = earlier
        if earlier.live is not None:
            self._put(Incident(at=now, state="live", generation=earlier.live.generation, reason=self._died(earlier)))
            self._kept = self._kept.model_copy(update={"live": None})

    def take(self, view: View) -> bool:
        """Whether there is something to write."""
        before, former = self._kept, self._state
        self._state = view.state
        if view.state == "live":
            if former != "live":
                self._lives(view)
            return self._kept is not before
        if self._kept.live is not None:
            self._kept = self._kept.model_copy(update={"live": None})
        if former in ("live", *_STARTING) and view.state in _ENDED:
            self._ends(view, former)
        elif self.open is not None:
            self._goes_on(view, former)
        return self._kept is not before

    def witness(self, finding: Finding) -> bool:
        """Keeps evidence from elsewhere with the incident that lasts, or the next one; whether there is something to
        write."""
        last = self.open
        if last is None:
            self._early = (finding, *self._early)[:MOST_EVIDENCE]
            return False
        if finding in last.evidence:
            return False
        self._change(evidence=(finding, *last.evidence)[:MOST_EVIDENCE])
        return True

    # -- what happens ------------------------------------------------------------------------------------------

    def _lives(self, view: View) -> None:
        self._early = ()
        last = self.open
        if last is not None:
            took = round(max(0.0, view.at - last.at), 1)
            self._done(view.at, f"live again as generation {view.generation}")
            self._change(seconds_to_live=took)
        life = Life(generation=view.generation, since=view.at, boot_id=self._boot_id)
        self._kept = self._kept.model_copy(update={"live": life})

    def _ends(self, view: View, former: str) -> None:
        """A generation ends: a new incident, or one more failed start of the one that lasts."""
        if self.open is None:
            self._put(
                Incident(
                    at=view.at,
                    state=former,
                    generation=view.generation,
                    reason=view.reason,
                    evidence=(*self._early, *_evidence(view))[:MOST_EVIDENCE],
                    tails=without_requests(view.tails),
                )
            )
            self._early = ()
        else:
            why = str(view.reason) if view.reason else "no reason given"
            self._done(view.at, f"a start failed while {former}: {why}")
            self._gather(view)
        self._done(view.at, _doing(view))

    def _goes_on(self, view: View, former: str) -> None:
        last = self.open
        assert last is not None
        if view.state in _ENDED and view.generation == last.generation:
            self._gather(view)
            if view.reason is not None and view.reason != last.reason and _is_fault(view.reason):
                # The cause may be known only after the first rank that cried out.
                earlier = (last.reason,) if last.reason is not None else ()
                kept = tuple(dict.fromkeys((*earlier, *last.evidence)))[:MOST_EVIDENCE]
                if last.reason is None or _is_fault(last.reason):
                    self._change(reason=view.reason, evidence=kept)
        if view.state != former:
            self._done(view.at, _doing(view))

    def _gather(self, view: View) -> None:
        """Last words and findings that came after the first look, of the generation that the incident is about."""
        last = self.open
        if last is None or view.generation != last.generation:
            return
        tails = {**last.tails, **without_requests(view.tails)}
        evidence = tuple(dict.fromkeys((*last.evidence, *_evidence(view))))[:MOST_EVIDENCE]
        if tails != last.tails or evidence != last.evidence:
            self._change(tails=tails, evidence=evidence)

    # -- keeping -----------------------------------------------------------------------------------------------

    def _put(self, incident: Incident) -> None:
        self._kept = self._kept.model_copy(update={"incidents": (*self._kept.incidents, incident)[-MOST:]})

    def _change(self, **values: Any) -> None:
        *rest, last = self._kept.incidents
        self._kept = self._kept.model_copy(update={"incidents": (*rest, last.model_copy(update=values))})

    def _done(self, at: float, what: str) -> None:
        """One more step. A set that tries again and again repeats a few steps: they are counted, not listed."""
        last = self.open
        if last is None:
            return
        steps = list(last.done)
        same = next((n for n, step in enumerate(steps) if n >= len(steps) - CYCLE and step.what == what), None)
        if same is not None:
            steps[same] = steps[same].model_copy(update={"times": steps[same].times + 1})
        else:
            steps.append(Step(at=at, what=what[:2500]))
        if len(steps) > FIRST_DONE + LAST_DONE:
            del steps[FIRST_DONE]
        self._change(done=tuple(steps))

    def _died(self, earlier: Kept) -> Finding:
        assert earlier.live is not None
        rebooted = earlier.live.boot_id != self._boot_id
        return Finding(
            code="host.rebooted" if rebooted else "daemon.killed",
            severity=Severity.ERROR,
            node=self._node,
            subject="this Spark" if rebooted else "the leader's daemon",
            measured="started anew while the set was live"
            if rebooted
            else "ended without a stop while the set was live",
            wanted="a stop before the end",
            fix="Nothing to do: all ranks start anew. The journal of before says why: journalctl -b -1 -e."
            if rebooted
            else "Nothing to do: all ranks start anew. journalctl -u glm-spark says what ended it.",
        )


def _doing(view: View) -> str:
    """What the set does in a state, in the words of the history."""
    why = f": {view.reason.measured}" if view.reason is not None and not _is_fault(view.reason) else ""
    match view.state:
        case "recovering":
            return "ended all ranks"
        case "stopping":
            return f"stops all ranks{why}"
        case "failed":
            return "stays stopped until its owner restarts it"
        case "waiting":
            return f"waits: {view.reason}" if view.reason is not None else "waits"
        case "preparing":
            return "every Spark checks itself"
        case "loading":
            return "starts all ranks"
        case "verifying":
            return "asks for a first reply through all ranks"
        case _:
            return view.state


def _is_fault(finding: Finding) -> bool:
    return finding.severity is Severity.ERROR


def _evidence(view: View) -> tuple[Finding, ...]:
    """What is wrong beside the reason itself."""
    found = [one for one in view.evidence if one != view.reason and one.severity is not Severity.NOTE]
    return tuple(dict.fromkeys(found))[:MOST_EVIDENCE]


def without_requests(tails: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """The engine prints no prompt (TensorFold v0.6.0); a line that looks like one is left out all the same."""
    return {name: tuple(_tame(line) for line in lines[-TAIL_LINES:]) for name, lines in tails.items() if lines}


def _tame(line: str) -> str:
    if any(word in line for word in _PRIVATE):
        return "(a line with a request's text is left out)"
    return line[:TAIL_WIDTH]


def dump(kept: Kept) -> bytes:
    return kept.model_dump_json().encode() + b"\n"


def listed(incidents: Iterable[Incident]) -> Sequence[dict[str, Any]]:
    """As /v1/incidents tells them, the newest last."""
    return [incident.model_dump(mode="json") for incident in incidents]
