"""Each measurement: Sparks with real daemons, watched from outside."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from tests.bench.report import Figure, median, spread
from tests.bench.streams import Stream, stream
from tests.sparks import processes
from tests.sparks.cluster import Sparks
from tests.sparks.daemon import Daemon

FRONT, ENGINE = 8888, 8889
INSTANT = {"token_rate": 0.0, "reply_tokens": 16}
_LOOK_S = 0.002


@asynccontextmanager
async def live(count: int = 2, **standin: Any) -> AsyncIterator[tuple[Sparks, list[Daemon]]]:
    """Sparks that are live, with a stand-in that loads at once."""
    config = {"stop": {"drain_seconds": 0.0, "kill_seconds": 2.0}}
    with Sparks(count, config=config, standin={**INSTANT, **standin}) as sparks:
        daemons = [Daemon(spark, sparks.config_file) for spark in sparks]
        try:
            for daemon in daemons:
                daemon.start()
            await daemons[0].wait_state("live", timeout=60)
            yield sparks, daemons
        finally:
            for daemon in daemons:
                daemon.close()


async def _seconds_until(seen: Callable[[], bool], since: float, timeout: float) -> float:
    while not seen():
        if time.monotonic() - since > timeout:
            raise TimeoutError(f"not seen within {timeout} s")
        await asyncio.sleep(_LOOK_S)
    return time.monotonic() - since


async def start_to_live(runs: int) -> list[Figure]:
    """From `glm-spark run` on both Sparks to the LIVE line in the leader's journal."""
    taken = []
    for _ in range(runs):
        with Sparks(2, standin=INSTANT) as sparks:
            daemons = [Daemon(spark, sparks.config_file) for spark in sparks]
            try:
                began = time.monotonic()
                for daemon in daemons:
                    daemon.start()
                leader = daemons[0]
                taken.append(
                    await _seconds_until(lambda: "is now LIVE!" in _text(leader), began, 60)  # noqa: B023
                )
            finally:
                for daemon in daemons:
                    daemon.close()
    return [Figure("start to LIVE, two Sparks", median(taken), "s", 3.0, note=spread(taken, 2, "s"))]


def _text(daemon: Daemon) -> str:
    return daemon.journal_file.read_text(errors="replace")


async def rank_killed(rounds: int) -> list[Figure]:
    """kill -9 of the worker's rank: how long until a client is told and until the other rank is gone."""
    told: list[float] = []
    gone: list[float] = []
    back: list[float] = []
    async with live() as (sparks, daemons), sparks[0].session() as session:
        for _ in range(rounds):
            generation = (await daemons[0].status())["generation"]
            (victim,) = daemons[1].ranks(generation)
            others = [rank.pid for rank in daemons[0].ranks(generation)]
            began = time.monotonic()
            os.kill(victim.pid, signal.SIGKILL)
            async with asyncio.TaskGroup() as tasks:
                unready = tasks.create_task(_unready(session, began))
                ended = tasks.create_task(
                    _seconds_until(lambda: not any(map(processes.alive, others)), began, 30)  # noqa: B023
                )
            told.append(unready.result())
            gone.append(ended.result())
            await daemons[0].wait_state("live", timeout=60)
            back.append(time.monotonic() - began)
    return [
        Figure("rank killed: /readyz 503", max(told), "s", 0.5, note=f"worst; {spread(told, 3, 's')}"),
        Figure("rank killed: the other rank gone", max(gone), "s", 0.5, note=f"worst; {spread(gone, 3, 's')}"),
        Figure("rank killed: live again", median(back), "s", note=spread(back, 2, "s")),
    ]


async def _unready(session: aiohttp.ClientSession, began: float) -> float:
    while True:
        async with session.get(f"http://127.0.0.1:{FRONT}/readyz") as response:
            if response.status != 200:
                return time.monotonic() - began
        if time.monotonic() - began > 30:
            raise TimeoutError("/readyz still says 200 after 30 s")
        await asyncio.sleep(_LOOK_S)


async def idle(seconds: float) -> list[Figure]:
    """Memory and processor time of each daemon, and of the helpers it started, while the set is live."""
    figures = []
    async with live() as (_, daemons):
        trees = [_tree(daemon) for daemon in daemons]
        before = [_cpu(tree) for tree in trees]
        began = time.monotonic()
        await asyncio.sleep(seconds)
        taken = time.monotonic() - began
        for daemon, tree, cpu in zip(daemons, trees, before, strict=True):
            memory = [processes.memory(pid) for pid in tree if processes.alive(pid)]
            share = 100 * (_cpu(tree) - cpu) / taken
            who = f"idle, {'leader' if daemon.spark.rank == 0 else 'worker'}"
            each = " + ".join(f"{one.rss / 1e6:.1f}" for one in memory)
            note = f"all its processes, shared pages in each: {each}"
            figures += [
                Figure(f"{who}: resident", sum(m.rss for m in memory) / 1e6, "MB", 70, note=note),
                Figure(f"{who}: proportional", sum(m.pss for m in memory) / 1e6, "MB", note="shared pages divided"),
                Figure(f"{who}: processor", share, "%", 1.0, note=f"of a core, over {taken:.0f} s"),
            ]
    return figures


def _tree(daemon: Daemon) -> list[int]:
    """The daemon and what it started, ranks and what they started left out."""
    ranks = {rank.pid for rank in daemon.ranks()}
    found, new = [daemon.pid], {daemon.pid}
    while new:
        children = {pid for pid in processes.pids() if processes.parent(pid) in new} - ranks
        found += sorted(children)
        new = children
    return found


def _cpu(pids: list[int]) -> float:
    return sum(processes.cpu_seconds(pid) for pid in pids if processes.alive(pid))


async def first_token(pairs: int) -> list[Figure]:
    """The first token through the endpoint against the engine's own port, in turn, in one run."""
    direct: list[float] = []
    through: list[float] = []
    async with live() as (sparks, _):
        for port in (ENGINE, FRONT) * 5:
            await stream(sparks[0], port, 4)
        for _ in range(pairs):
            direct.append((await stream(sparks[0], ENGINE, 4)).first_s)
            through.append((await stream(sparks[0], FRONT, 4)).first_s)
    added = 1000 * (median(through) - median(direct))
    direct_ms, through_ms = ([1000 * value for value in values] for values in (direct, through))
    return [
        Figure("first token: added by the endpoint", added, "ms", 1.0, note=f"medians of {pairs} pairs"),
        Figure("first token: direct", median(direct_ms), "ms", note=spread(direct_ms, 2, "ms")),
        Figure("first token: through", median(through_ms), "ms", note=spread(through_ms, 2, "ms")),
        Figure("first token: ratio", median(through) / median(direct), "", note="through / direct"),
    ]


async def many_streams(streams: int, rate: float, seconds: float) -> list[Figure]:
    """`streams` at once, each `rate` tokens a second: what arrives, directly and through the endpoint."""
    figures = []
    async with live(token_rate=rate, slots=streams, reply_tokens=int(rate * seconds)) as (sparks, daemons):
        reached = streams * rate
        for name, port in (("direct", ENGINE), ("through", FRONT)):
            tree = _tree(daemons[0])
            cpu, began = _cpu(tree), time.monotonic()
            async with asyncio.TaskGroup() as tasks:
                running = [
                    tasks.create_task(stream(sparks[0], port, int(rate * seconds), seconds * 6 + 30))
                    for _ in range(streams)
                ]
            results = [task.result() for task in running]
            # Judged against what the stand-in reaches by itself on this machine.
            found = _sustained(name, results, 0.98 * reached if port == FRONT else None)
            reached = min(reached, found[0].value)
            figures += found
            share = 100 * (_cpu(tree) - cpu) / (time.monotonic() - began)
        figures.append(Figure(f"{streams} streams: processor of the leader's daemon", share, "%", note="of a core"))
    return figures


def _sustained(name: str, results: list[Stream], wanted: float | None) -> list[Figure]:
    arrived = sum(one.events / one.seconds for one in results if one.seconds > 0)
    whole = sum(one.whole for one in results)
    label = f"{len(results)} streams {name}"
    gaps = [1000 * one.longest_gap_s for one in results]
    return [
        Figure(f"{label}: tokens a second", arrived, "/s", wanted, at_least=True, note=f"{whole} came to [DONE]"),
        Figure(f"{label}: longest wait", max(gaps), "ms", note=f"between two reads; {spread(gaps, 0, 'ms')}"),
    ]
