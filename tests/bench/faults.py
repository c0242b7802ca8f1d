"""How long each kind of loss takes to be told, to end, and to be over: watched in /proc and on sockets."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.bench.report import Figure, median, spread
from tests.bench.streams import stream
from tests.sparks import processes
from tests.sparks.cluster import Sparks
from tests.sparks.daemon import Daemon

FRONT, CONTROL, ENGINE = 8888, 8899, 8889
_LOOK_S = 0.003
_SCAN_S = 0.01  # reading every process's environment is not free
_LIMIT_S = 60.0

# As the product ships, but for how often an idle engine is asked: shown so that the rest is not hidden by it.
CANARY = {"interval_seconds": 2.0, "answer_seconds": 2.0}
CONFIG: dict[str, Any] = {"canary": CANARY, "recovery": {"failures": 1000}}

# What the scripts, patches and field reports that are public give for the same loss.
BASELINES = {
    "rank": "a script that polls every 30 s; peer-watch 120 s; 6 min of 200s on a killed worker",
    "hang": "for ever (NCCL); 300 s (TF_ROCE_WAIT_S)",
    "host": "peer-watch 120 s; for ever without",
}


@dataclass
class Run:
    """One loss: seconds since it began. `mended` is when what was broken was whole again, `loaded` what the new ranks
    themselves needed from their first process to an open port."""

    not_ready: float = 0.0
    stopped: float = 0.0
    mended: float = 0.0
    relaunch: float = 0.0
    served: float = 0.0
    live: float = 0.0

    @property
    def clean(self) -> float:
        return max(self.stopped, self.mended)

    @property
    def after_clean(self) -> float:
        return self.relaunch - self.clean

    @property
    def beyond(self) -> float:
        """From clean ground to LIVE without the engine's own load."""
        return self.live - self.clean - (self.served - self.relaunch)


@dataclass(frozen=True)
class Loss:
    """`strike` breaks something; `mend` (awaited once the told ranks are gone) puts it right; `told_on` is the Spark
    whose /readyz is asked; `obedient` those whose ranks can be ended while it lasts."""

    name: str
    baseline: str
    strike: Callable[[Scene], Awaitable[None]]
    mend: Callable[[Scene], Awaitable[None]] | None = None
    told_on: int = 0
    obedient: tuple[int, ...] = (0, 1)
    wanted: Mapping[str, float] = field(default_factory=dict)
    runs: int = 5


class Scene:
    """A live set and a clock."""

    def __init__(self, sparks: Sparks, daemons: list[Daemon]) -> None:
        self.sparks = sparks
        self.daemons = daemons
        self.generation = 0
        self.began = 0.0

    def now(self) -> float:
        return time.monotonic() - self.began

    async def measure(self, loss: Loss) -> Run:
        run = Run()
        await self._settle()
        self.generation = int((await self.daemons[0].status())["generation"])
        old = {rank.pid: rank.node for rank in processes.ranks(generation=self.generation)}
        obedient = {f"spark-{rank + 1}" for rank in loss.obedient}
        told = self.daemons[loss.told_on].spark
        port = FRONT if loss.told_on == 0 else CONTROL
        async with told.session(1.0) as http:
            assert await _ready(http, port)
            self.began = time.monotonic()
            async with asyncio.TaskGroup() as tasks:
                unready = tasks.create_task(self._until(lambda: _unready(http, port)))
                gone = tasks.create_task(
                    self._until(lambda: _none([pid for pid, node in old.items() if node in obedient]))
                )
                await loss.strike(self)
            run.not_ready, run.stopped = unready.result(), gone.result()
        if loss.mend is not None:
            await loss.mend(self)
            run.mended = self.now()
            await self._until(lambda: _none(list(old)))
            run.mended = max(run.mended, self.now()) if len(obedient) < len(self.daemons) else run.mended
        async with self.daemons[0].spark.session(1.0) as http:
            run.relaunch = await self._until(self._newer, _SCAN_S)
            run.served = await self._until(self._serves)
            run.live = await self._until(lambda: _ready(http, FRONT))
        return run

    async def _until(self, seen: Callable[[], Awaitable[bool]], pause: float = _LOOK_S) -> float:
        while not await seen():
            if self.now() > _LIMIT_S:
                raise TimeoutError(f"not seen within {_LIMIT_S:g} s")
            await asyncio.sleep(pause)
        return self.now()

    async def _newer(self) -> bool:
        return any(rank.generation > self.generation for rank in processes.ranks())

    async def _serves(self) -> bool:
        sock = self.daemons[0].spark.socket()
        try:
            sock.setblocking(False)
            async with asyncio.timeout(1.0):
                await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", ENGINE))
        except OSError:  # TimeoutError is one
            return False
        finally:
            sock.close()
        return True

    async def _settle(self) -> None:
        await self.daemons[0].wait_state("live", timeout=60)
        async with self.daemons[1].spark.session(1.0) as http:
            self.began = time.monotonic()
            await self._until(lambda: _ready(http, CONTROL), 0.05)
        await asyncio.sleep(0.5)


async def _none(pids: list[int]) -> bool:
    return not any(map(processes.alive, pids))


async def _ready(http: aiohttp.ClientSession, port: int) -> bool:
    try:
        async with http.get(f"http://127.0.0.1:{port}/readyz") as response:
            return response.status == 200
    except (aiohttp.ClientError, OSError):
        return False


async def _answers(http: aiohttp.ClientSession) -> bool:
    try:
        async with http.get(f"http://127.0.0.1:{CONTROL}/healthz") as response:
            return response.status == 200
    except (aiohttp.ClientError, OSError):
        return False


async def _unready(http: aiohttp.ClientSession, port: int) -> bool:
    return not await _ready(http, port)


# -- the losses --------------------------------------------------------------------------------------------------


def _kill_rank(rank: int) -> Callable[[Scene], Awaitable[None]]:
    async def strike(scene: Scene) -> None:
        (victim,) = scene.daemons[rank].ranks(scene.generation)
        os.kill(victim.pid, signal.SIGKILL)

    return strike


def _kill_daemon(rank: int) -> Callable[[Scene], Awaitable[None]]:
    async def strike(scene: Scene) -> None:
        await scene.daemons[rank].kill9()

    return strike


def _start_daemon(rank: int) -> Callable[[Scene], Awaitable[None]]:
    async def mend(scene: Scene) -> None:
        daemon = scene.daemons[rank]
        daemon.start()
        async with daemon.spark.session(1.0) as http:
            await scene._until(lambda: _answers(http))

    return mend


async def _hang(scene: Scene) -> None:
    scene.sparks.set_standin({**QUICK, "ranks": {"1": {"hang": True}}})


async def _unhang(scene: Scene) -> None:
    scene.sparks.set_standin(QUICK)


async def _pull(scene: Scene) -> None:
    scene.sparks.cut_cable()


async def _plug(scene: Scene) -> None:
    scene.sparks.plug_cable()


async def _freeze(scene: Scene) -> None:
    scene.sparks[1].freeze()


async def _thaw(scene: Scene) -> None:
    scene.sparks[1].thaw()


QUICK: dict[str, Any] = {"token_rate": 0.0, "reply_tokens": 16}
SOON = {"not ready": 0.3, "ranks stopped": 1.0, "relaunch": 1.0}
LOSSES = (
    Loss("rank 0 killed", BASELINES["rank"], _kill_rank(0), wanted=SOON),
    Loss("rank 1 killed", BASELINES["rank"], _kill_rank(1), wanted=SOON),
    Loss("worker's daemon killed", BASELINES["host"], _kill_daemon(1), _start_daemon(1), wanted=SOON),
    Loss(
        "leader's daemon killed",
        BASELINES["host"],
        _kill_daemon(0),
        _start_daemon(0),
        wanted={"relaunch": 1.0},
        obedient=(0,),
    ),
    Loss("engine hangs", BASELINES["hang"], _hang, _unhang, wanted={"relaunch": 1.0}, runs=3),
    Loss("cable pulled", BASELINES["host"], _pull, _plug, wanted={"not ready": 0.3, "relaunch": 1.0}, runs=3),
    Loss(
        "Spark frozen", BASELINES["host"], _freeze, _thaw, obedient=(0,), wanted={"not ready": 3.0, "relaunch": 1.0},
        runs=2,
    ),
)  # fmt: skip
NOTES = {
    "engine hangs": f"asked every {CANARY['interval_seconds']:g} s, {CANARY['answer_seconds']:g} s for the answer "
    "(as shipped 60 and 30)",
    "cable pulled": "the ranks are kept for fabric.hold_seconds (5) first; it is plugged in again when they are gone",
    "Spark frozen": "suspect_seconds 2, lease_seconds 15; thawed when the other rank is gone",
    "leader's daemon killed": "the worker's rank is ended by its lease or by the next leader",
}


@asynccontextmanager
async def _live(config: Mapping[str, Any]) -> AsyncIterator[Scene]:
    with Sparks(2, config=config, standin=QUICK) as sparks:
        daemons = [Daemon(spark, sparks.config_file) for spark in sparks]
        try:
            for daemon in daemons:
                daemon.start()
            await daemons[0].wait_state("live", timeout=60)
            yield Scene(sparks, daemons)
        finally:
            for daemon in daemons:
                daemon.close()


async def losses(quick: bool) -> list[Figure]:
    """Each loss several times on a set that comes back in between."""
    figures: list[Figure] = []
    for loss in LOSSES:
        async with _live(CONFIG) as scene:
            # Not to be mixed up with the pauses that grow with each failure: the first try comes at once.
            runs = []
            for number in range(1 if quick and loss.runs < 5 else 2 if quick else loss.runs):
                if number:
                    await _forget_failures(scene)
                runs.append(await scene.measure(loss))
        figures += _figures(loss, runs)
    return figures


async def _forget_failures(scene: Scene) -> None:
    """A restart by the owner forgets them."""
    before = int((await scene.daemons[0].status())["generation"])
    code, body = await scene.daemons[0].control("POST", "/v1/restart")
    if code != 202:
        raise RuntimeError(f"the restart between two runs was answered with {code}: {body}")
    async with asyncio.timeout(60):
        while True:
            status = await scene.daemons[0].wait_state("live", timeout=60)
            if int(status["generation"]) > before:
                return
            await asyncio.sleep(0.05)


def _figures(loss: Loss, runs: list[Run]) -> list[Figure]:
    rows = (
        ("not ready", [run.not_ready for run in runs], loss.baseline),
        ("ranks stopped", [run.stopped for run in runs], ""),
        ("relaunch", [run.after_clean for run in runs], ""),
        ("LIVE beyond the load", [run.beyond for run in runs], ""),
    )
    extra = NOTES.get(loss.name, "")
    words = {"ranks stopped": "all that can be told", "relaunch": "after clean ground"}
    return [
        Figure(
            f"{loss.name}: {what}",
            median(values),
            "s",
            loss.wanted.get(what),
            note="; ".join(filter(None, [spread(values, 2, "s"), words.get(what, ""), extra if not row else ""])),
            baseline=baseline,
        )
        for row, (what, values, baseline) in enumerate(rows)
    ]


# -- what the watching costs -------------------------------------------------------------------------------------


async def start_beyond_load(runs: int) -> list[Figure]:
    """From `glm-spark run` on both Sparks to LIVE, without what the ranks themselves need."""
    beyond = []
    for _ in range(runs):
        with Sparks(2, standin=QUICK) as sparks:
            daemons = [Daemon(spark, sparks.config_file) for spark in sparks]
            scene = Scene(sparks, daemons)
            try:
                scene.began = time.monotonic()
                for daemon in daemons:
                    daemon.start()
                run = Run(relaunch=await scene._until(scene._newer, _SCAN_S))
                run.served = await scene._until(scene._serves)
                async with daemons[0].spark.session(1.0) as http:
                    run.live = await scene._until(lambda http=http: _ready(http, FRONT))  # type: ignore[misc]
                beyond.append(run.beyond)
            finally:
                for daemon in daemons:
                    daemon.close()
    return [Figure("start: LIVE beyond the load", median(beyond), "s", 3.0, note=spread(beyond, 2, "s"))]


async def canary_cost(pairs: int) -> list[Figure]:
    """The first token of a request that comes while the engine answers the canary, against one that does not.

    One slot and 60 tokens a second, as the engine has with its own drafter: the request waits for the canary."""
    behind: list[float] = []
    alone: list[float] = []
    config = {"canary": {"interval_seconds": 1.0}}
    with Sparks(2, config=config, standin={"token_rate": 60.0, "reply_tokens": 8, "slots": 1}) as sparks:
        daemons = [Daemon(spark, sparks.config_file) for spark in sparks]
        try:
            for daemon in daemons:
                daemon.start()
            await daemons[0].wait_state("live", timeout=60)
            for _ in range(pairs):
                await _busy(sparks, True)
                behind.append(1000 * (await stream(sparks[0], FRONT, 4)).first_s)
                await _busy(sparks, False)
                alone.append(1000 * (await stream(sparks[0], FRONT, 4)).first_s)
        finally:
            for daemon in daemons:
                daemon.close()
    return [
        Figure("canary: first token of a request behind it", median(behind), "ms", note=spread(behind, 1, "ms")),
        Figure("canary: first token of a request alone", median(alone), "ms", note=spread(alone, 1, "ms")),
        Figure(
            "canary: cost to a following request",
            median(behind) - median(alone),
            "ms",
            100.0,
            note="at worst, once in canary.interval_seconds and only after as long without a request",
        ),
    ]


async def _busy(sparks: Sparks, wanted: bool) -> None:
    """Until the engine answers somebody (the canary: nobody else asks), or nobody."""
    async with sparks[0].session(2.0) as http, asyncio.timeout(30):
        while True:
            async with http.get(f"http://127.0.0.1:{ENGINE}/health") as response:
                running = bool((await response.json())["requests_running"])
            if running is wanted:
                return
            await asyncio.sleep(_LOOK_S)


async def faults(quick: bool) -> list[Figure]:
    figures = await losses(quick)
    figures += await start_beyond_load(2 if quick else 5)
    return figures + await canary_cost(5 if quick else 20)
