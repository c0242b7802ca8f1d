"""Rank 0's scheduler: requests wait for a slot, then decode together, one ring round a step."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from glm_spark.standin.console import say
from glm_spark.standin.failures import LATCHED, RoceError
from glm_spark.standin.faults import Faults, FaultSource
from glm_spark.standin.ring import Head, is_small
from glm_spark.standin.wording import word

SHORTEST_STEP_S = 0.005
MOST_TOKENS_A_STEP = 64
MOST_CATCH_UP_S = 0.25
DUMP_LOOK_S = 0.1
POOL_TOKENS = 2_922_496

Sink = Callable[[list[str], list[str]], None]


class Broken(Exception):
    """The engine cannot decode any more; the request is answered with an error."""


class Full(Exception):
    """TF_GLM_MAX_QUEUED requests wait already."""


@dataclass
class Request:
    """One reply in the making. `sink` gets (reasoning words, answer words) as they come."""

    seed: int
    prompt_tokens: int
    think_tokens: int
    answer_tokens: int
    limit: int
    sink: Sink
    done: asyncio.Future[str]  # "stop", "length" or "cut"
    arrived: float = field(default_factory=time.monotonic)
    first: float = 0.0
    ended: float = 0.0
    position: int = 0
    rounds: int = 0
    cancelled: bool = False

    @property
    def length(self) -> int:
        return min(self.limit, self.think_tokens + self.answer_tokens)


@dataclass
class Counters:
    """The running sums of /health and /metrics."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    rounds: int = 0
    latencies: list[float] = field(default_factory=list)
    first_tokens: list[float] = field(default_factory=list)


class Scheduler:
    def __init__(
        self, head: Head, faults: FaultSource, slots: int, context: int, environment: Mapping[str, str]
    ) -> None:
        self.slots = slots
        self.context = context
        self.counters = Counters()
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()
        self._head = head
        self._faults = faults
        self._work = asyncio.Event()
        self._step_began = 0.0
        self._due = 0.0
        self._broken = ""
        self._most_waiting = int(environment.get("TF_GLM_MAX_QUEUED", "0"))
        over_roce = environment.get("TF_GLM_COMM", "nccl") == "roce"
        self._roce_wait_s = float(environment.get("TF_ROCE_WAIT_S", "300")) if over_roce else None
        self._dump_ends = environment.get("TF_GLM_MULTI_WATCHDOG_EXIT", "0") == "1"

    @property
    def iteration_s(self) -> float:
        """Age of the current step in seconds, 0.0 between steps."""
        return time.monotonic() - self._step_began if self._step_began else 0.0

    def submit(self, request: Request) -> None:
        """Queues it. Raises Broken or Full."""
        if self._faults.now().broken:
            self._latch(LATCHED[self._faults.now().broken])
        if self._broken:
            raise Broken(self._broken)
        if self._most_waiting and len(self.waiting) >= self._most_waiting:
            raise Full
        self.counters.requests += 1
        self.counters.prompt_tokens += request.prompt_tokens
        self.waiting.append(request)
        self._work.set()

    async def run(self) -> None:
        """Steps as long as there are requests, for the life of the engine."""
        while True:
            await self._work.wait()
            self._work.clear()
            self._due = time.monotonic()
            while self.running or self.waiting:
                self._fill_slots()
                await self._step()

    def _fill_slots(self) -> None:
        while self.waiting and len(self.running) < self.slots:
            self.running.append(self.waiting.popleft())

    async def _step(self) -> None:
        script = self._faults.now()
        if script.broken:
            self._latch(LATCHED[script.broken])
            return
        began = self._step_began = time.monotonic()
        tokens, length_s = step_shape(script.token_rate)
        ready = [one for one in self.running if began - one.arrived >= script.first_token_s]
        pieces = [(one.seed, one.position, min(tokens, max(one.length - one.position, 1))) for one in ready]
        if pieces:
            more = any(one.position + tokens < one.length for one in ready)
            # The small collectives of decoding go over RoCE where that is on, and end after TF_ROCE_WAIT_S.
            limit = self._roce_wait_s if is_small(pieces) else None
            try:
                async with asyncio.timeout(limit):
                    pads = await self._head.round(pieces, more)
            except TimeoutError:
                self._latch(LATCHED["roce-late"])
                return
            except RoceError as error:
                self._latch(f"request error: RuntimeError: {error}")
                return
            self._deliver(ready, pieces, pads, script)
        else:
            length_s = max(length_s, SHORTEST_STEP_S)  # every prompt is still being read
        # Paced by an absolute schedule: late wake-ups of a busy machine are caught up, long stalls are not.
        now = time.monotonic()
        self._due = max(self._due + length_s, now - MOST_CATCH_UP_S)
        await asyncio.sleep(max(0.0, self._due - now))
        self._step_began = 0.0

    def _deliver(self, ready: list[Request], pieces: list[tuple[int, int, int]], pads: bytes, script: Faults) -> None:
        self.counters.rounds += 1
        at = 0
        for request, (_, _, count) in zip(ready, pieces, strict=True):
            self._advance(request, pads[at : at + count], script)
            at += count
        self.running = [one for one in self.running if not one.done.done()]

    def _advance(self, request: Request, pads: bytes, script: Faults) -> None:
        now = time.monotonic()
        request.rounds += 1
        if not request.first:
            request.first = now
            self.counters.prefill_s += now - request.arrived
            self.counters.first_tokens.append(now - request.arrived)
        if script.reply == "empty":
            return self._finish(request, "stop")
        words = ["!"] * len(pads) if script.reply == "bang" else spoken(request, pads)
        thought = max(0, min(len(words), request.think_tokens - request.position))
        request.position += len(words)
        self.counters.completion_tokens += len(words)
        request.sink(words[:thought], words[thought:])
        if script.cut_after_tokens and request.position >= script.cut_after_tokens:
            return self._finish(request, "cut")
        if request.cancelled or request.position >= request.length:
            full = request.position >= request.think_tokens + request.answer_tokens
            return self._finish(request, "stop" if full else "length")
        return None

    def _finish(self, request: Request, why: str) -> None:
        request.ended = time.monotonic()
        self.counters.decode_s += request.ended - request.first
        self.counters.latencies.append(request.ended - request.arrived)
        request.done.set_result(why)

    def _latch(self, text: str) -> None:
        if not self._broken:
            self._broken = text
            say(self._broken)
        for request in (*self.running, *self.waiting):
            if not request.done.done():
                request.done.set_exception(Broken(self._broken))
        self.running.clear()
        self.waiting.clear()
        self._step_began = 0.0

    async def watch_steps(self) -> None:
        """Prints every thread's stack, once a step, when a step takes longer than the engine's 300 s."""
        reported = -1
        while True:
            await asyncio.sleep(DUMP_LOOK_S)
            sequence = self._head.sequence
            if self.iteration_s <= self._faults.now().step_limit_s or reported == sequence:
                continue
            reported = sequence
            print("Timeout (0:05:00)!", file=sys.stderr, flush=True)
            faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
            if self._dump_ends:
                os._exit(1)


def step_shape(token_rate: float) -> tuple[int, float]:
    """(tokens a stream and step, seconds a step) for a rate in tokens a second; 0 = no pause at all."""
    if token_rate <= 0:
        return MOST_TOKENS_A_STEP, 0.0
    tokens = min(MOST_TOKENS_A_STEP, max(1, round(token_rate * SHORTEST_STEP_S)))
    return tokens, tokens / token_rate


def spoken(request: Request, pads: bytes) -> list[str]:
    """The next words; the answer starts afresh where the thinking ends."""
    words = []
    for position, pad in enumerate(pads, request.position):
        place = position - request.think_tokens if position >= request.think_tokens else position
        words.append(word(request.seed, place, pad))
    return words
