"""Whether a serving engine still gets on: when to ask it something, and when its silence means that it hangs. Pure.

TensorFold's /health says 200 and `ok` whatever happens (v0.6.0). What counts is its counters, the age of its current
step, and a real question (the canary) while nobody else asks. Busy is not dead: a prefill of a million tokens takes
a quarter of an hour, and a request that its client abandoned still holds its slot.
"""

from __future__ import annotations

from dataclasses import dataclass

from glm_spark.engine.health import EngineHealth
from glm_spark.finding import Finding, Severity

HTTP_SILENT_SECONDS = 10.0  # /health answers in milliseconds, also in a hung engine


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds. `decode` and `prefill` without any counter moving are a stall; `answer` is the canary's."""

    interval: float
    answer: float
    decode: float
    prefill: float


@dataclass(frozen=True, slots=True)
class Sight:
    """One look: `health` is None when it was not answered. `passing` requests are under way through the endpoint."""

    now: float
    health: EngineHealth | None
    passing: int
    idle_seconds: float  # since the last of them ended


@dataclass(frozen=True, slots=True)
class Verdict:
    """`ask`: the canary is due. `stall`: the engine hangs. `note`: what it does, when that needs a word."""

    ask: bool = False
    stall: Finding | None = None
    note: str = ""


class Vigil:
    """Looks at one engine's life from its first reply on. At most one canary is outstanding, ever."""

    def __init__(self, node: str, limits: Limits, now: float) -> None:
        self._node = node
        self._limits = limits
        self._answered_at = now
        self._moved_at = now
        self._counters: tuple[float, ...] = ()
        self._requests: tuple[int, int] = (0, 0)
        self._tokens_before = 0
        self._canary_since: float | None = None
        self._canary_ended = now

    def asked(self, now: float) -> None:
        self._canary_since = now

    def heard(self, now: float) -> None:
        """The canary was answered, however."""
        self._canary_since = None
        self._canary_ended = now

    def see(self, sight: Sight) -> Verdict:
        health = sight.health
        if health is None:
            silent = sight.now - self._answered_at
            if silent >= HTTP_SILENT_SECONDS:
                return Verdict(stall=self._stall("engine.http-silent", f"/health did not answer for {silent:.0f} s"))
            return Verdict()
        self._answered_at = sight.now
        self._take(health, sight.now)
        if health.requests_running or sight.passing:
            return self._busy(sight, health)
        if self._canary_since is not None:
            return self._canary(sight.now)
        quiet = min(sight.idle_seconds, sight.now - self._canary_ended)
        return Verdict(ask=quiet >= self._limits.interval)

    def _take(self, health: EngineHealth, now: float) -> None:
        counters = (
            health.completion_tokens_total,
            health.prompt_tokens_total,
            health.requests_total,
            health.rounds_total,
            health.prefill_seconds_total,
            health.decode_seconds_total,
            health.requests_running,
        )
        if counters != self._counters:
            self._counters, self._moved_at = counters, now
        requests = (health.requests_total, health.requests_running)
        if requests != self._requests:
            self._requests, self._tokens_before = requests, health.completion_tokens_total

    def _busy(self, sight: Sight, health: EngineHealth) -> Verdict:
        alone = self._canary_since is not None and health.requests_running <= 1 and not sight.passing
        if alone:
            return self._canary(sight.now)
        decoding = health.completion_tokens_total > self._tokens_before
        limit = self._limits.decode if decoding else self._limits.prefill
        quiet = min(sight.now - self._moved_at, health.iteration_s)
        if quiet >= limit:
            text = f"its step is {health.iteration_s:.0f} s old and no counter moved for {quiet:.0f} s"
            return Verdict(stall=self._stall("engine.stalled", text))
        if health.requests_running and not sight.passing and self._canary_since is None:
            return Verdict(note="busy with a request that nobody waits for any more")
        return Verdict()

    def _canary(self, now: float) -> Verdict:
        assert self._canary_since is not None
        waited = now - self._canary_since
        if waited < self._limits.answer:
            return Verdict()
        text = f"a question of its own got no answer for {waited:.0f} s while nothing else ran"
        return Verdict(stall=self._stall("engine.canary-silent", text))

    def _stall(self, code: str, measured: str) -> Finding:
        return Finding(
            code=code,
            severity=Severity.ERROR,
            node=self._node,
            subject="the engine",
            measured=measured,
            wanted="an engine that gets on",
            fix="All ranks are restarted together; the stacks of each rank's threads are in the journal before that.",
        )
