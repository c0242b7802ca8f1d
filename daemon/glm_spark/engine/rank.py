"""One rank's life on this Spark: started, followed, ended, with nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field

from glm_spark.config.model import Stop
from glm_spark.engine import vocabulary
from glm_spark.engine.lines import Tail
from glm_spark.engine.runtime import Exit, Running, Runtime, StartFault
from glm_spark.engine.spec import RankSpec
from glm_spark.finding import Finding, Severity
from glm_spark.status import RankState

VIEW_LINES = 20
VIEW_WIDTH = 300  # characters of a line
VIEW_FINDINGS = 10
NEWS_SECONDS = 0.1  # between a rank's end and the news of it, at most
DRAIN_SECONDS = 2.0  # for the last lines once everything is gone: they are in the pipe already
ABANDON_SECONDS = 10.0  # an abandoned rank is killed, and its end waited for so long

OnLine = Callable[[int, str, Severity], None]


class RankView(BaseModel):
    """One rank as its Spark tells it; small enough to cross the wire at every change. `phase_since` in UNIX seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    generation: int
    rank: int
    state: RankState = "none"
    phase: str = Field(default="", max_length=40)
    phase_since: float | None = None
    pid: int | None = None
    estimate_gib: float | None = None
    window: int | None = None  # tokens the engine has room for; beside engine.window-refused the window that would fit
    served_context: int | None = None
    transport: str = Field(default="", max_length=20)
    version: str = Field(default="", max_length=40)
    exit_text: str = Field(default="", max_length=200)
    findings: tuple[Finding, ...] = Field(default=(), max_length=VIEW_FINDINGS)
    tail: tuple[str, ...] = Field(default=(), max_length=VIEW_LINES)


@dataclass(frozen=True, slots=True)
class Facts:
    """What the lines said so far."""

    phase: str = ""
    phase_since: float | None = None
    estimate_gib: float | None = None
    window: int | None = None
    served_context: int | None = None
    transport: str = ""
    version: str = ""
    findings: tuple[Finding, ...] = ()


def learn(facts: Facts, event: vocabulary.Event, now: float) -> Facts:
    """Pure: the facts after one event. `now` in UNIX seconds. Phases only change when another one is entered."""
    changes: dict[str, object] = {}
    match event:
        case vocabulary.Phase(name) if name != facts.phase:
            changes = {"phase": name, "phase_since": now}
        case vocabulary.Estimate(gib):
            changes = {"estimate_gib": gib}
        case vocabulary.Window(tokens):
            changes = {"window": tokens}
        case vocabulary.Serving(context) if context is not None:
            changes = {"served_context": context}
        case vocabulary.Transport(name):
            changes = {"transport": name}
        case vocabulary.Version(text):
            changes = {"version": text}
        case vocabulary.Fault(finding):
            changes = {"findings": with_finding(facts.findings, finding)}
    return replaced(facts, changes)


def replaced(facts: Facts, changes: dict[str, object]) -> Facts:
    if not changes:
        return facts
    values = {name: getattr(facts, name) for name in Facts.__slots__}
    return Facts(**{**values, **changes})


def with_finding(known: tuple[Finding, ...], finding: Finding) -> tuple[Finding, ...]:
    """One finding a code, the first one seen, and the first codes when there are too many: the cause comes first."""
    if len(known) >= VIEW_FINDINGS or any(other.code == finding.code for other in known):
        return known
    return (*known, finding)


def severity_of(events: list[vocabulary.Event]) -> Severity:
    """How loud a line is in the journal: a note, unless it is a fault."""
    found = [event.finding.severity for event in events if isinstance(event, vocabulary.Fault)]
    return Severity.ERROR if Severity.ERROR in found else found[0] if found else Severity.NOTE


class Rank:
    """Run with `run`; ended with `stop`, which may come at any time, before the start has finished too.

    `on_change` is called whenever the view differs from the last one told, on the loop's thread; `on_line` with
    (rank, line, severity) for every line of the engine.
    """

    def __init__(
        self,
        spec: RankSpec,
        runtime: Runtime,
        stop: Stop,
        on_change: Callable[[], None],
        on_line: OnLine | None = None,
    ) -> None:
        self._spec = spec
        self._runtime = runtime
        self._stop = stop
        self._on_change = on_change
        self._on_line = on_line
        self._running: Running | None = None
        self._state: RankState = "none"
        self._facts = Facts()
        self._tail = Tail()
        self._exit: Exit | None = None
        self._asked = False
        self._by_itself = False  # it ended before anybody asked it to
        self._graceful = True
        self._killed = False
        self._deadline: asyncio.TimerHandle | None = None
        self._view: RankView | None = None

    @property
    def spec(self) -> RankSpec:
        return self._spec

    @property
    def view(self) -> RankView:
        if self._view is None:
            facts = self._facts
            self._view = RankView(
                generation=self._spec.generation,
                rank=self._spec.rank,
                state=self._state,
                phase=facts.phase,
                phase_since=facts.phase_since,
                pid=self._running.pid if self._running is not None and self._exit is None else None,
                estimate_gib=facts.estimate_gib,
                window=facts.window,
                served_context=facts.served_context,
                transport=facts.transport,
                version=facts.version,
                exit_text=str(self._exit) if self._exit is not None else "",
                findings=facts.findings,
                tail=self._tail.last(VIEW_LINES, VIEW_WIDTH),
            )
        return self._view

    @property
    def lines(self) -> tuple[str, ...]:
        """The last lines, for a fault's report."""
        return self._tail.last(200, 8192)

    async def run(self) -> None:
        """Start the rank and stay until it and all it started are gone. Engine faults are in the view, not raised.

        Cancelled, it kills the rank first and waits for that.
        """
        if self._asked:  # it was stopped before it began
            self._enter("ended")
            return
        self._enter("loading", "starting")
        try:
            self._running = await self._runtime.start(self._spec)
        except StartFault as fault:
            self._facts = replaced(self._facts, {"findings": with_finding(self._facts.findings, fault.finding)})
            self._enter("ended")
            return
        try:
            self._changed()
            if self._asked:
                self._end()
            await self._follow(self._running)
        finally:
            if self._deadline is not None:
                self._deadline.cancel()

    async def _follow(self, running: Running) -> None:
        done = False
        try:
            async with asyncio.TaskGroup() as group:
                reader = group.create_task(self._read(running), name=f"rank-{self._spec.rank}-lines")
                self._exit = await running.wait()
                self._by_itself = not self._asked
                rest = group.create_task(self._outlast(running, reader), name=f"rank-{self._spec.rank}-end")
                # The line that says why came before the end, but through another pipe: let it be read first.
                await asyncio.wait({rest}, timeout=NEWS_SECONDS)
                self._ended()
                await rest
                done = True
                reader.cancel()
        finally:
            if not done:
                running.kill()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(ABANDON_SECONDS):
                        await running.gone()
        if self._by_itself:
            self._explain()
        self._enter("ended")

    async def _outlast(self, running: Running, reader: asyncio.Task[None]) -> None:
        """Until nothing is left of the rank and its last words are read."""
        await running.gone()
        await asyncio.wait({reader}, timeout=DRAIN_SECONDS)

    async def _read(self, running: Running) -> None:
        async for line in running.lines:
            self._hear(line)

    def _hear(self, line: str) -> None:
        self._tail.add(line)
        events = vocabulary.read(line, self._spec.rank, self._spec.node)
        if self._asked and not self._by_itself:  # what a rank cries out while the set is taken down is no fault
            events = [event for event in events if not isinstance(event, vocabulary.Fault)]
        facts = self._facts
        for event in events:
            facts = learn(facts, event, time.time())
        if self._on_line is not None:
            self._on_line(self._spec.rank, line, severity_of(events))
        if facts is self._facts:
            self._view = None  # the tail moved; nobody needs to be told of that alone
            return
        self._facts = facts
        if facts.phase == "ready" and self._state == "loading":
            self._state = "ready"
        self._changed()

    def stop(self, graceful: bool) -> None:
        """Ask for the end; returns at once. A second call can only make it harsher."""
        if self._asked and (graceful or self._killed):
            return
        self._asked = True
        self._graceful = graceful
        if self._running is not None and self._state != "ended":
            self._end()

    def _end(self) -> None:
        """SIGTERM where it is heeded: by rank 0 once it serves. The others, and a loading rank, are killed.

        TensorFold v0.6.0 installs its handler when it serves; ranks above 0 have none at all.
        """
        running = self._running
        assert running is not None
        heeds = self._spec.rank == 0 and self._facts.phase == "ready"
        if self._exit is not None:
            running.kill()  # only what it left
            return
        if self._graceful and heeds and not self._killed:
            running.terminate()
            self._deadline = asyncio.get_running_loop().call_later(self._patience(), self._kill)
        else:
            self._kill()
        self._enter("stopping")

    def _patience(self) -> float:
        """Seconds between SIGTERM and SIGKILL; a spill tier is flushed first."""
        with contextlib.suppress(ValueError):
            return self._stop.kill_seconds + float(self._spec.environment.get("TF_SPILL_FLUSH_S", "0"))
        return self._stop.kill_seconds

    def _kill(self) -> None:
        self._killed = True
        if self._deadline is not None:
            self._deadline.cancel()
        if self._running is not None:
            self._running.kill()

    def dump(self) -> None:
        """Have the engine write all its threads' stacks into its lines, before a hung rank is killed."""
        if self._running is not None and self._exit is None:
            self._running.dump()

    def _ended(self) -> None:
        """The rank itself is gone: said at once, even while something of its tree is left."""
        if self._by_itself:
            self._explain()
        self._enter("ended")

    def _explain(self) -> None:
        """The finding about an end nobody asked for, with the last words read so far."""
        kept = tuple(finding for finding in self._facts.findings if finding.code != "engine.rank-ended")
        self._facts = replaced(self._facts, {"findings": self._with_end(kept, self._tail.last(5, VIEW_WIDTH))})

    def _with_end(self, known: tuple[Finding, ...], last: tuple[str, ...]) -> tuple[Finding, ...]:
        said = f"; its last lines: {' | '.join(last)}" if last else ""
        finding = Finding(
            code="engine.rank-ended",
            severity=Severity.ERROR,
            node=self._spec.node,
            subject=f"rank {self._spec.rank} ended by itself",
            measured=f"{self._exit}{said}"[:4000],
            wanted="a rank that runs until it is stopped",
            fix="All ranks are restarted together; its lines in the journal say why.",
        )
        return (*known[: VIEW_FINDINGS - 1], finding)

    def _enter(self, state: RankState, phase: str = "") -> None:
        self._state = state
        if phase:
            self._facts = replaced(self._facts, {"phase": phase, "phase_since": time.time()})
        self._changed()

    def _changed(self) -> None:
        before, self._view = self._view, None
        if before is None or before != self.view:
            self._on_change()
