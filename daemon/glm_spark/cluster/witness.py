"""Asks rank 0's engine what the course wants to know: does it serve, does it answer, how does it do."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Literal

import aiohttp

from glm_spark.engine import canary, health
from glm_spark.finding import Finding

log = logging.getLogger(__name__)

HEALTH_SECONDS = 1.0
ASK_AGAIN_SECONDS = 0.1  # while loading; a refused connection on loopback costs next to nothing

Question = Literal["nothing", "models", "reply", "health"]


class Witness:
    """One question at a time. Its answers belong to `generation`; a new generation or question forgets them."""

    def __init__(
        self,
        node: str,
        base_url: str,
        model: Callable[[], str],
        answer_seconds: Callable[[], float],
        on_news: Callable[[], None],
    ) -> None:
        self.served = False
        self.answer: str | Finding | None = None
        self.health: health.EngineHealth | None = None
        self.tokens_per_second: float | None = None
        self._node = node
        self._base_url = base_url
        self._model = model
        self._answer_seconds = answer_seconds
        self._on_news = on_news
        self._question: Question = "nothing"
        self._generation = 0
        self._changed = asyncio.Event()
        self._read_at = 0.0

    def ask(self, question: Question, generation: int) -> None:
        """Sets what is to be found out; idempotent."""
        if generation != self._generation:
            self._generation = generation
            self.served, self.answer, self.health, self.tokens_per_second = False, None, None, None
        if question != self._question:
            self._question = question
            self._changed.set()

    async def run(self) -> None:
        # One connection a question: the engine closes its connections as it likes.
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as http:
            while True:
                self._changed.clear()
                pause = await self._pursue(http, self._question, self._generation)
                try:
                    async with asyncio.timeout(pause):
                        await self._changed.wait()
                except TimeoutError:
                    continue

    async def _pursue(self, http: aiohttp.ClientSession, question: Question, generation: int) -> float | None:
        """Does one step of a question; returns the seconds until the next, None for when the question changes."""
        if question == "models" and not self.served:
            served = await canary.models_ready(http, self._base_url, self._model())
            if generation == self._generation and served:
                self.served = True
                self._on_news()
                return None
            return ASK_AGAIN_SECONDS
        if question == "reply" and self.answer is None:
            answer = await canary.ask(http, self._base_url, self._model(), self._answer_seconds(), node=self._node)
            if isinstance(answer, str) and (fault := canary.content_fault(answer)) is not None:
                answer = canary.content_finding(self._node, fault)
            if generation == self._generation:
                self.answer = answer
                self._on_news()
            return None
        if question == "health":
            await self._read_health(http)
            return HEALTH_SECONDS
        return None

    async def _read_health(self, http: aiohttp.ClientSession) -> None:
        now = asyncio.get_running_loop().time()
        read = await health.poll(http, self._base_url, HEALTH_SECONDS * 2, node=self._node)
        if isinstance(read, Finding):
            log.debug("%s", read)
            return
        if self.health is not None:
            self.tokens_per_second = health.tokens_per_second(self.health, self._read_at, read, now)
        self._read_at, self.health = now, read
