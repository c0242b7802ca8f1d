"""A random run of faults and repairs over a living set, from a list of steps that can be recorded and played again.

A step is a list: what, whom (an index that is taken modulo how many there are), how long afterwards until the next.
What cannot be done at the moment (a rank that is not there) is left out, so that any part of a list can be played.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import aiohttp

from tests.cluster.client import QUESTION
from tests.cluster.conftest import Cluster
from tests.cluster.observer import FRONT, Observer
from tests.sparks import processes
from tests.sparks.daemon import Daemon, until

Step = tuple[str, int, float]

CALM = "calm"
CALM_EVERY = 25
PAUSES = (0.0, 0.0, 0.1, 0.2, 0.4, 0.8, 1.2)
BACK_SECONDS = 45.0
WATCHDOG_SECONDS = 4.0  # a daemon whose loop stands still is killed after so long

# The stand-in's scripts: for one rank, or (None) for all.
SCRIPTS: tuple[tuple[bool, dict[str, Any]], ...] = (
    (False, {}),
    (False, {"delay_s": {"weights": 0.5}}),
    (False, {"token_rate": 20}),
    (False, {"fail_with": "nccl"}),
    (False, {"broken": "request"}),
    (False, {"broken": "scheduler"}),
    (True, {"exit_phase": "banner"}),
    (True, {"exit_phase": "weights"}),
    (True, {"exit_phase": "ready", "exit_code": -11}),
    (True, {"silent_phase": "weights"}),
    (True, {"silent_phase": "rendezvous"}),
    (True, {"hang": True}),
    (True, {"crash_at_round": 1}),
    (True, {"crash_after_s": 0.5}),
    (True, {"deaf": True, "grandchild": True}),
)

# What may come, and how often.
WEIGHTS = {
    "kill-rank": 6,
    "stop-rank": 4,
    "continue-rank": 4,
    "kill-keeper": 2,
    "stop-keeper": 1,
    "kill-daemon": 5,
    "exit-daemon": 2,
    "end-daemon": 3,
    "hang-daemon": 2,
    "stop-daemon": 4,
    "continue-daemon": 5,
    "start-daemons": 6,
    "freeze-spark": 2,
    "thaw-spark": 3,
    "reset-spark": 2,
    "cut-cable": 3,
    "plug-cable": 4,
    "lose-cable": 2,
    "find-cable": 3,
    "remove-address": 2,
    "add-address": 3,
    "restart": 3,
    "stop": 1,
    "script": 6,
    "wait": 6,
}


def plan(seed: int, steps: int) -> list[Step]:
    """So many steps; the same seed gives the same ones. Every so often the faults end and the set must come back."""
    dice = random.Random(seed)
    chosen: list[Step] = []
    while len(chosen) < steps:
        if len(chosen) % CALM_EVERY == CALM_EVERY - 1:
            chosen.append((CALM, 0, 0.0))
            continue
        (what,) = dice.choices(list(WEIGHTS), list(WEIGHTS.values()))
        chosen.append((what, dice.randrange(1000), dice.choice(PAUSES)))
    return chosen if chosen[-1][0] == CALM else [*chosen, (CALM, 0, 0.0)]


class Storm:
    """`play` raises AssertionError at the first broken promise; `played` are the steps so far."""

    def __init__(self, cluster: Cluster, observer: Observer) -> None:
        self.cluster = cluster
        self.observer = observer
        self.played: list[Step] = []
        self.done = 0  # steps that found something to do
        self.stopped = False
        self._hung: dict[str, float] = {}
        self._cut: set[int] = set()
        self._lost: set[int] = set()

    async def play(self, steps: list[Step]) -> None:
        for step in steps:
            self.played.append(step)
            what, whom, pause = step
            acted: bool | None
            if what == CALM:
                acted = await self.calm()
            else:
                result = ACTS[what](self, whom)
                acted = await result if isinstance(result, Awaitable) else result
            self.done += acted is not False
            await self._pass(pause)

    async def _pass(self, seconds: float) -> None:
        """Lets time go by; what has hung for too long is killed, as systemd's watchdog does."""
        await asyncio.sleep(seconds)
        now = asyncio.get_running_loop().time()
        for daemon in self.cluster.daemons:
            since = self._hung.get(daemon.spark.name)
            if since is not None and now - since > WATCHDOG_SECONDS:
                await self._unhang(daemon)
        self.observer.look()
        self.observer.check()

    # -- whom --------------------------------------------------------------------------------------------------

    def _daemon(self, whom: int) -> Daemon:
        return self.cluster.daemons[whom % len(self.cluster.daemons)]

    def _cable(self, whom: int) -> int:
        return whom % len(self.cluster.sparks.layout.cables)

    def _ends(self, cable: int) -> tuple[int, int]:
        found = self.cluster.sparks.layout.cables[cable]
        return found.a[0], found.b[0]

    # -- ranks -------------------------------------------------------------------------------------------------

    def _signal_ranks(self, whom: int, number: int, *, keepers: bool = False) -> bool:
        name = self._daemon(whom).spark.name
        found = processes.keepers(name) if keepers else processes.ranks(name)
        for one in found:
            processes.send(one.pid, number)
        return bool(found)

    # -- daemons -----------------------------------------------------------------------------------------------

    def _signal_daemon(self, whom: int, number: int) -> bool:
        daemon = self._daemon(whom)
        if not daemon.running:
            return False
        daemon.signal(number)
        return True

    def hang_daemon(self, whom: int) -> bool:
        daemon = self._daemon(whom)
        # One that has just begun has not set its handlers yet, and the signal would end it: that is another fault.
        if not daemon.running or not daemon.spark.control_socket.exists():
            return False
        daemon.signal(signal.SIGUSR1)
        self._hung[daemon.spark.name] = asyncio.get_running_loop().time()
        self.observer.hung.add(daemon.spark.name)
        return True

    async def _unhang(self, daemon: Daemon) -> None:
        self._hung.pop(daemon.spark.name, None)
        await daemon.kill9()
        self.observer.hung.discard(daemon.spark.name)

    async def kill_daemon(self, whom: int) -> bool:
        daemon = self._daemon(whom)
        if not daemon.running:
            return False
        await self._unhang(daemon)
        return True

    def start_daemons(self, _whom: int) -> bool:
        before = [daemon.pid for daemon in self.cluster.daemons if daemon.running]
        self.cluster.start()
        return len(before) < len(self.cluster.daemons)

    # -- whole Sparks ------------------------------------------------------------------------------------------

    def freeze(self, whom: int) -> bool:
        self._daemon(whom).spark.freeze()
        return True

    def thaw(self, whom: int) -> bool:
        self._daemon(whom).spark.thaw()
        return True

    async def reset(self, whom: int) -> bool:
        daemon = self._daemon(whom)
        self.cluster.sparks.reset_host(daemon.spark.number)
        if daemon.process is not None:
            await daemon.exit_status(10)
        self._hung.pop(daemon.spark.name, None)
        self.observer.hung.discard(daemon.spark.name)
        return True

    # -- the cable ---------------------------------------------------------------------------------------------

    def cut(self, whom: int) -> bool:
        cable = self._cable(whom)
        self.cluster.sparks.cut_cable(*self._ends(cable))
        self._cut.add(cable)
        self._mark(cable)
        return True

    def plug(self, whom: int) -> bool:
        cable = self._cable(whom)
        self._cut.discard(cable)
        self._mark(cable)
        self.cluster.sparks.plug_cable(*self._ends(cable))
        return True

    def lose(self, whom: int) -> bool:
        cable = self._cable(whom)
        self.cluster.sparks.lose_silently(*self._ends(cable))
        self._lost.add(cable)
        self._mark(cable)
        return True

    def find(self, whom: int) -> bool:
        cable = self._cable(whom)
        self._lost.discard(cable)
        self._mark(cable)
        self.cluster.sparks.find_again(*self._ends(cable))
        return True

    def _mark(self, cable: int) -> None:
        """A cable that loses everything without a word is noticed by the daemons only where beats cross it."""
        ends = self._ends(cable)
        dead = cable in self._cut or (cable in self._lost and 1 in ends)
        (self.observer.severed.add if dead else self.observer.severed.discard)(ends)

    def _netdev(self, whom: int) -> tuple[Any, Any]:
        spark = self._daemon(whom).spark
        addressed = [netdev for netdev in spark.plan.netdevs if netdev.port is not None and netdev.address]
        return spark, addressed[(whom // 7) % len(addressed)]

    def remove_address(self, whom: int) -> bool:
        spark, netdev = self._netdev(whom)
        spark.remove_address(netdev.name)
        return True

    def add_address(self, whom: int) -> bool:
        spark, netdev = self._netdev(whom)
        spark.remove_address(netdev.name)
        spark.add_address(netdev.name, str(netdev.address))
        return True

    # -- the owner and the engine ------------------------------------------------------------------------------

    async def owner(self, verb: str) -> bool:
        if not self.cluster.leader.running:
            return False
        try:
            async with asyncio.timeout(1.0):
                code, _ = await self.cluster.leader.control("POST", f"/v1/{verb}")
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False
        self.stopped = verb == "stop"
        return code == 202

    def script(self, whom: int) -> bool:
        alone, behaviour = SCRIPTS[whom % len(SCRIPTS)]
        rank = str((whom // len(SCRIPTS)) % len(self.cluster.daemons))
        self.cluster.sparks.set_standin({"ranks": {rank: behaviour}} if alone else behaviour)
        return True

    # -- the end of all faults ---------------------------------------------------------------------------------

    async def calm(self) -> bool:
        """Every fault ends; the set has to be live again by itself, and an asked question is answered."""
        self.cluster.sparks.set_standin({})
        for cable in range(len(self.cluster.sparks.layout.cables)):
            self.find(cable)
            self.plug(cable)
        for daemon in self.cluster.daemons:
            spark = daemon.spark
            for netdev in spark.plan.netdevs:
                if netdev.port is not None and netdev.address:
                    spark.remove_address(netdev.name)
                    spark.add_address(netdev.name, str(netdev.address))
            spark.thaw()
            if spark.name in self._hung:
                await self._unhang(daemon)
        self.cluster.start()
        leader = self.cluster.leader

        async def back() -> bool:
            self.observer.check()
            self.cluster.start()
            if self.stopped and await self.owner("restart"):
                self.stopped = False
            return self.observer.whole() and await leader.endpoint_ready() == 200 and await self._answered()

        await until(back, BACK_SECONDS, "live again after all faults ended")
        return True

    async def _answered(self) -> bool:
        """What ended with the last faults may still break the set once more; then it has to come back again."""
        url = f"http://127.0.0.1:{FRONT}/v1/chat/completions"
        try:
            reply = await self.cluster.leader.spark.http("POST", url, json=QUESTION, timeout=10)
        except (aiohttp.ClientError, OSError):
            return False
        return reply.status == 200


ACTS: Mapping[str, Callable[[Storm, int], bool | Awaitable[bool]]] = {
    "kill-rank": lambda storm, whom: storm._signal_ranks(whom, signal.SIGKILL),
    "stop-rank": lambda storm, whom: storm._signal_ranks(whom, signal.SIGSTOP),
    "continue-rank": lambda storm, whom: storm._signal_ranks(whom, signal.SIGCONT),
    "kill-keeper": lambda storm, whom: storm._signal_ranks(whom, signal.SIGKILL, keepers=True),
    "stop-keeper": lambda storm, whom: storm._signal_ranks(whom, signal.SIGSTOP, keepers=True),
    "kill-daemon": Storm.kill_daemon,
    "exit-daemon": lambda storm, whom: storm._signal_daemon(whom, signal.SIGUSR2),
    "end-daemon": lambda storm, whom: storm._signal_daemon(whom, signal.SIGTERM),
    "hang-daemon": Storm.hang_daemon,
    "stop-daemon": lambda storm, whom: storm._signal_daemon(whom, signal.SIGSTOP),
    "continue-daemon": lambda storm, whom: storm._signal_daemon(whom, signal.SIGCONT),
    "start-daemons": Storm.start_daemons,
    "freeze-spark": Storm.freeze,
    "thaw-spark": Storm.thaw,
    "reset-spark": Storm.reset,
    "cut-cable": Storm.cut,
    "plug-cable": Storm.plug,
    "lose-cable": Storm.lose,
    "find-cable": Storm.find,
    "remove-address": Storm.remove_address,
    "add-address": Storm.add_address,
    "restart": lambda storm, _whom: storm.owner("restart"),
    "stop": lambda storm, _whom: storm.owner("stop"),
    "script": Storm.script,
    "wait": lambda _storm, _whom: True,
}


def asked_seed() -> int:
    return int(os.environ.get("GLM_SPARK_STORM_SEED", "1"))
