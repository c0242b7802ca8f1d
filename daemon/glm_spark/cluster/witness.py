"""Asks rank 0's engine what the course wants to know: does it serve, does it answer, how does it do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Literal

import aiohttp

from glm_spark.api.gate import Gate
from glm_spark.config.model import Config
from glm_spark.engine import canary, health
from glm_spark.engine.vigil import Limits, Sight, Vigil
from glm_spark.finding import Finding, Severity

HEALTH_SECONDS = 1.0
FIRST_TOKENS, CANARY_TOKENS = 16, 4
CANARY_SECONDS = 86_400.0  # its patience is the vigil's to end
ASK_AGAIN_SECONDS = 0.1  # while loading; a refused connection on loopback costs next to nothing

Question = Literal["nothing", "models", "reply", "health"]


class Witness:
    """One question at a time. Its answers belong to `generation`; a new generation or question forgets them."""

    def __init__(
        self, node: str, base_url: str, config: Callable[[], Config], gate: Gate, on_news: Callable[[], None]
    ) -> None:
        self.served = False
        self.answer: str | Finding | None = None
        self.health: health.EngineHealth | None = None
        self.tokens_per_second: float | None = None
        self.stall: Finding | None = None
        self.note = ""
        self._node = node
        self._base_url = base_url
        self._config = config
        self._gate = gate
        self._on_news = on_news
        self._question: Question = "nothing"
        self._generation = 0
        self._changed = asyncio.Event()
        self._read_at = 0.0
        self._vigil: Vigil | None = None
        self._canary: asyncio.Task[None] | None = None

    def ask(self, question: Question, generation: int) -> None:
        """Sets what is to be found out; idempotent."""
        if generation != self._generation:
            self._generation = generation
            self.served, self.answer, self.health, self.tokens_per_second = False, None, None, None
            self.stall, self.note, self._vigil = None, "", None
            if self._canary is not None:
                self._canary.cancel()
        if question != self._question:
            self._question = question
            self._changed.set()

    async def run(self) -> None:
        # One connection a question: the engine closes its connections as it likes.
        connector = aiohttp.TCPConnector(force_close=True)
        async with aiohttp.ClientSession(connector=connector) as http, asyncio.TaskGroup() as tasks:
            while True:
                self._changed.clear()
                pause = await self._pursue(http, tasks, self._question, self._generation)
                try:
                    async with asyncio.timeout(pause):
                        await self._changed.wait()
                except TimeoutError:
                    continue

    async def _pursue(
        self, http: aiohttp.ClientSession, tasks: asyncio.TaskGroup, question: Question, generation: int
    ) -> float | None:
        """Does one step of a question; returns the seconds until the next, None for when the question changes."""
        if question == "models" and not self.served:
            served = await canary.models_ready(http, self._base_url, self._config().model.name)
            if generation == self._generation and served:
                self.served = True
                self._on_news()
                return None
            return ASK_AGAIN_SECONDS
        if question == "reply" and self.answer is None:
            answer = await self._ask(http, self._config().timeouts.answer_seconds, FIRST_TOKENS)
            if generation == self._generation:
                self.answer = answer
                self._on_news()
            return None
        if question == "health":
            await self._watch(http, tasks, generation)
            return HEALTH_SECONDS
        return None

    async def _ask(self, http: aiohttp.ClientSession, seconds: float, tokens: int) -> str | Finding:
        """A real reply through all ranks, its content judged."""
        answer = await canary.ask(
            http, self._base_url, self._config().model.name, seconds, tokens=tokens, node=self._node
        )
        if isinstance(answer, str) and (fault := canary.content_fault(answer)) is not None:
            return canary.content_finding(self._node, fault)
        return answer

    async def _watch(self, http: aiohttp.ClientSession, tasks: asyncio.TaskGroup, generation: int) -> None:
        """One look at a live engine: its figures, whether it hangs, whether it is to be asked something."""
        loop = asyncio.get_running_loop()
        read = await health.poll(http, self._base_url, HEALTH_SECONDS * 2, node=self._node)
        now = loop.time()
        if generation != self._generation:
            return
        seen = None if isinstance(read, Finding) else read
        if seen is not None:
            if self.health is not None:
                self.tokens_per_second = health.tokens_per_second(self.health, self._read_at, seen, now)
            self._read_at, self.health = now, seen
        limits = self._config().canary
        if self._vigil is None:
            self._vigil = Vigil(
                self._node,
                Limits(limits.interval_seconds, limits.answer_seconds, limits.decode_seconds, limits.prefill_seconds),
                now,
            )
        idle = time.monotonic() - self._gate.idle_since
        verdict = self._vigil.see(Sight(now, seen, self._gate.in_flight, idle))
        self.note = verdict.note
        if verdict.ask:
            self._vigil.asked(now)
            self._canary = tasks.create_task(self._send_canary(http, self._vigil), name="canary")
        if verdict.stall is not None and self.stall is None:
            self.stall = verdict.stall
            self._on_news()

    async def _send_canary(self, http: aiohttp.ClientSession, vigil: Vigil) -> None:
        """Awaited as long as it takes: a late answer means busy, and a second one would only wait behind the first."""
        answer = await self._ask(http, CANARY_SECONDS, CANARY_TOKENS)
        if vigil is not self._vigil:
            return
        vigil.heard(asyncio.get_running_loop().time())
        if isinstance(answer, Finding) and answer.severity is Severity.ERROR and self.stall is None:
            self.stall = answer
            self._on_news()
