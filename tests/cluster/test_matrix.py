"""Every kind of fault in every process at every moment: the set is never called ready without all its ranks, no rank
stays alone, no two generations meet, and the set comes back by itself.

In the usual run so many cases that every pair of (how many Sparks, who, what, when) occurs; all of them with --full.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from tests.cluster.attendant import FRAIL, watched
from tests.cluster.conftest import Cluster, MakeCluster
from tests.cluster.observer import Limits, Observer
from tests.sparks import processes
from tests.sparks.daemon import Daemon, until

SUBJECTS = ("rank-0", "rank-1", "rank-2", "leader", "worker")
FAULTS = ("kill-9", "stop", "exit-1", "hang", "deaf")
STATES = ("waiting", "loading", "live", "stopping")
USUAL_CASES, MOST_CASES = 34, 40

LIMITS = Limits(suspect=0.8, lease=3.0, kill=1.0)
CONFIG: dict[str, Any] = {
    "timeouts": {
        "suspect_seconds": LIMITS.suspect,
        "lease_seconds": LIMITS.lease,
        "silence_seconds": 2,
        "answer_seconds": 3,
    },
    "stop": {"drain_seconds": 1.5, "kill_seconds": LIMITS.kill},
    "canary": {"interval_seconds": 1, "answer_seconds": 2, "decode_seconds": 2, "prefill_seconds": 3},
    "recovery": {"failures": 1000},
    "fabric": {"hold_seconds": 1},
}
LOAD = {"delay_s": {"weights": 1.0}}
QUESTION = {"model": "GLM-5.3-Flash-EXL3", "messages": [{"role": "user", "content": "Are you there?"}]}
REACTION_SECONDS = 15.0
BACK_SECONDS = 30.0


@dataclass(frozen=True)
class Case:
    count: int
    subject: str
    fault: str
    state: str

    def __str__(self) -> str:
        return f"{self.count}-{self.subject}-{self.fault}-{self.state}"

    @property
    def rank(self) -> int:
        return int(self.subject.partition("-")[2])

    @property
    def of_a_rank(self) -> bool:
        return self.subject.startswith("rank")

    def combined(self, strength: int) -> set[tuple[object, ...]]:
        """Its pairs (2) or triples (3) of values."""
        return set(itertools.combinations((self.count, self.subject, self.fault, self.state), strength))


def every_case() -> list[Case]:
    product = itertools.product((2, 3), SUBJECTS, FAULTS, STATES)
    return [Case(*row) for row in product if row[:2] != (2, "rank-2")]


def combined(cases: list[Case], strength: int) -> set[tuple[object, ...]]:
    return set().union(*(case.combined(strength) for case in cases))


def usual(cases: list[Case]) -> list[Case]:
    """Always the case that shows the most pairs not seen yet, then the most triples: the first of them where there
    are several."""
    chosen: list[Case] = []
    for strength in (2, 3):
        missing = combined(cases, strength) - combined(chosen, strength)
        while missing and (strength == 2 or len(chosen) < USUAL_CASES):
            best = max(cases, key=lambda case: len(case.combined(strength) & missing))
            chosen.append(best)
            missing -= best.combined(strength)
    return chosen


CASES = every_case()
USUAL = usual(CASES)


def test_the_usual_cases_show_every_pair() -> None:
    assert len(USUAL) <= MOST_CASES
    assert combined(USUAL, 2) == combined(CASES, 2)


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=str(case), marks=() if case in USUAL else pytest.mark.full) for case in CASES]
)
async def test_a_fault_ends_no_promise_and_the_set_comes_back(make_cluster: MakeCluster, case: Case) -> None:
    script: dict[str, Any] = dict(LOAD) if case.state == "loading" else {}
    if case.of_a_rank and case.fault == "deaf":
        script["ranks"] = {str(case.rank): {"deaf": True}}
    cluster = make_cluster(case.count, config=CONFIG, standin=script, env=FRAIL)
    async with watched(cluster, LIMITS) as observer:
        scene = Scene(cluster, observer, case, script)
        await scene.reach()
        if case.of_a_rank:
            await scene.strike_rank()
        else:
            await scene.strike_daemon()
        await scene.back()


class Scene:
    def __init__(self, cluster: Cluster, observer: Observer, case: Case, script: dict[str, Any]) -> None:
        self.cluster = cluster
        self.observer = observer
        self.case = case
        self.script = script
        self.asked: asyncio.Task[object] | None = None

    # -- before ------------------------------------------------------------------------------------------------

    async def reach(self) -> None:
        """Brings the set into the state in which the fault comes."""
        leader, state = self.cluster.leader, self.case.state
        if state == "waiting":
            self.cluster.sparks.cut_cable(1, 2)
            self.cluster.start()
            await leader.wait_state("waiting")
            for worker in self.cluster.workers:
                await until(lambda: bool(worker.notify.all("READY")), 20.0, "every worker armed")  # noqa: B023
            return
        self.cluster.start()
        if state == "loading":
            await leader.wait_state("loading")
            await until(lambda: len(processes.ranks()) == self.case.count, 10.0, "all ranks")
            return
        await leader.wait_state("live")
        if state == "stopping":
            # A reply of a minute: the stop waits for it, as long as stop.drain_seconds allows.
            self.cluster.sparks.set_standin({**self.script, "token_rate": 2, "reply_tokens": 120})
            self.asked = asyncio.create_task(self._ask())
            await until(self._running, 10.0, "a request in the engine")
            await self._restart()
            await leader.wait_state("stopping")

    async def _ask(self) -> object:
        url = "http://127.0.0.1:8888/v1/chat/completions"
        try:
            return await self.cluster.leader.spark.http("POST", url, json={**QUESTION, "max_tokens": 120})
        except (aiohttp.ClientError, OSError):  # its daemon was killed
            return None

    async def _running(self) -> bool:
        reply = await self.cluster.leader.spark.http("GET", "http://127.0.0.1:8889/health")
        return bool(reply.json()["requests_running"])

    async def _restart(self) -> None:
        code, _ = await self.cluster.leader.control("POST", "/v1/restart")
        assert code == 202

    # -- faults of a rank --------------------------------------------------------------------------------------

    async def strike_rank(self) -> None:
        case, node = self.case, f"spark-{self.case.rank + 1}"
        before = self._newest()
        if case.state == "waiting":
            self._script_fault("banner")
            self.cluster.sparks.plug_cable(1, 2)
            if case.fault == "exit-1":
                await self.cluster.leader.wait_journal("rank-ended")
                self._lift()
                return
            await until(lambda: self._newest(node) > before, 20.0, f"a rank on {node}")
        (victim,) = processes.ranks(node)
        match case.fault:
            case "kill-9":
                os.kill(victim.pid, signal.SIGKILL)
            case "stop":
                os.kill(victim.pid, signal.SIGSTOP)
            case "deaf" if case.state != "stopping":
                await self._restart()
            case "exit-1" | "hang" if case.state != "waiting":
                self._script_fault("kernels")
        await self._ended(victim.generation)
        self._lift()

    def _script_fault(self, phase: str) -> None:
        """Through the stand-in's script: what it does at its next phase or at its next round."""
        fault, state = self.case.fault, self.case.state
        starting = state in ("waiting", "loading")
        if fault == "exit-1":
            told: dict[str, Any] = {"exit_phase": phase} if starting else {"crash_at_round": 1}
        elif fault == "hang":
            told = {"silent_phase": phase} if starting else {"hang": True}
        else:
            return
        self.cluster.sparks.set_standin({**self.script, "ranks": {str(self.case.rank): told}})

    def _lift(self) -> None:
        self.cluster.sparks.set_standin({key: value for key, value in self.script.items() if key != "ranks"})

    def _newest(self, node: str | None = None) -> int:
        return max((rank.generation for rank in processes.ranks(node)), default=0)

    async def _ended(self, generation: int) -> None:
        """The generation with the faulty rank is over, on every Spark."""
        await until(
            lambda: not processes.ranks(generation=generation), REACTION_SECONDS, f"the end of generation {generation}"
        )

    # -- faults of a daemon ------------------------------------------------------------------------------------

    async def strike_daemon(self) -> None:
        daemon = self.cluster.leader if self.case.subject == "leader" else self.cluster.workers[-1]
        match self.case.fault:
            case "kill-9":
                await daemon.kill9()
            case "exit-1":
                daemon.signal(signal.SIGUSR2)
                assert await daemon.exit_status() == 1
            case "stop":
                daemon.freeze()
                await asyncio.sleep(LIMITS.lease + 0.7)
                daemon.thaw()
            case "hang":
                await self._hang(daemon, LIMITS.lease + 0.7)  # then the watchdog's time is over
            case "deaf":
                await self._hang(daemon, 1.0, signal.SIGTERM)  # then the time of systemctl stop is over
        self._lift()
        if self.case.state == "waiting":
            self.cluster.sparks.plug_cable(1, 2)

    async def _hang(self, daemon: Daemon, seconds: float, also: int | None = None) -> None:
        name = daemon.spark.name
        daemon.signal(signal.SIGUSR1)
        self.observer.hung.add(name)
        if also is not None:
            daemon.signal(also)
        await asyncio.sleep(seconds)
        assert daemon.running
        await daemon.kill9()
        self.observer.hung.discard(name)

    # -- after -------------------------------------------------------------------------------------------------

    async def back(self) -> None:
        """Live by itself, and a request is answered."""

        async def everywhere() -> bool:
            if not self.observer.whole() or await self.cluster.leader.endpoint_ready() != 200:
                return False
            return all([await daemon.ready() == 200 for daemon in self.cluster.daemons])

        await until(everywhere, BACK_SECONDS, "live again")
        reply = await self.cluster.leader.spark.http(
            "POST", "http://127.0.0.1:8888/v1/chat/completions", json={**QUESTION, "max_tokens": 8}
        )
        assert reply.status == 200, reply.text
        if self.asked is not None:
            await self.asked
