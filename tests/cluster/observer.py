"""What must hold of a set at every moment, seen from outside: /proc for its ranks and daemons, /readyz on sockets,
the journals. It asks no daemon what it thinks of itself."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from tests.cluster.conftest import Cluster
from tests.sparks import processes
from tests.sparks.daemon import Daemon

LOOK_SECONDS = 0.05
ASK_SECONDS = 0.05
# Between two looks at most so much time counts: while this machine holds the observer up, it holds the daemons up too.
MOST_SECONDS = 0.15
DEAD_SECONDS = 1.0  # a dead rank or daemon, or a cut cable
HELD_SECONDS = 3.0  # a rank that a signal stopped: its process is looked at once a second
SLACK_SECONDS = 1.5

FRONT, CONTROL = 8888, 8899


@dataclass(frozen=True)
class Limits:
    """Seconds, as the set under test is configured."""

    suspect: float
    lease: float
    kill: float

    @property
    def silent(self) -> float:
        """A daemon that stands still, or that nobody can reach."""
        return self.suspect + DEAD_SECONDS

    @property
    def lone(self) -> float:
        return self.lease + self.kill + SLACK_SECONDS


@dataclass
class Since:
    """Since when each of several things has been so without a break."""

    began: dict[str, float] = field(default_factory=dict)

    def now(self, things: Mapping[str, object], at: float) -> None:
        self.began = {thing: self.began.get(thing, at) for thing in things}


class Observer:
    """`violations` stays empty as long as the set keeps its promises. Run with `run`, one task for each Spark's
    sockets and one for /proc."""

    def __init__(self, cluster: Cluster, limits: Limits) -> None:
        self.cluster = cluster
        self.limits = limits
        self.violations: list[str] = []
        self.hung: set[str] = set()  # Sparks whose daemon's loop stands still, as the test made it
        self.severed: set[tuple[int, int]] = set()  # cables that carry nothing, as the test made them
        self.looks = 0
        self.answers = 0
        self.time = 0.0  # seconds, without what this process itself was held up for
        self.absent = 0.0  # when the leader's daemon was last seen gone or standing still
        self._looked = time.monotonic()
        self._broken = Since()
        self._lone = Since()
        self._read: dict[Path, int] = {}

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch(), name="observer")
            for daemon in self.cluster.daemons:
                ports = (FRONT, CONTROL) if daemon is self.cluster.leader else (CONTROL,)
                for port in ports:
                    tasks.create_task(self._ask(daemon, port), name=f"observer of {daemon.spark.name}:{port}")

    # -- /proc -------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(LOOK_SECONDS)

    def look(self) -> None:
        now = time.monotonic()
        self.time += min(now - self._looked, MOST_SECONDS)
        self._looked = now
        self.looks += 1
        ranks = processes.ranks()
        silent = set(self._silent())
        leader = self.cluster.leader
        if not leader.running or leader.spark.name in silent:
            self.absent = self.time
        self._one_generation(ranks)
        self._broken.now(dict.fromkeys(self._wrong(ranks, silent)), self.time)
        self._no_lone_rank(ranks, silent)
        self._journals()

    def _silent(self) -> Iterator[str]:
        """Sparks whose daemon stands still."""
        for daemon in self.cluster.daemons:
            name = daemon.spark.name
            if daemon.running and (name in self.hung or processes.state(daemon.pid) in ("T", "t")):
                yield name

    def _wrong(self, ranks: list[processes.Rank], silent: set[str]) -> Iterator[str]:
        """All that keeps this set from answering a request; the first word says how soon it has to be known."""
        there = {rank.node for rank in ranks if _leads(rank)}
        for daemon in self.cluster.daemons:
            name = daemon.spark.name
            if name not in there:
                yield f"dead: {name} has no rank"
            if not daemon.running:
                yield f"dead: the daemon of {name}"
            elif name in silent:
                yield f"silent: the daemon of {name}"
        for rank in ranks:
            if processes.state(rank.pid) in ("T", "t"):
                yield f"held: the rank of {rank.node} (pid {rank.pid})"
        for first, second in self.severed:
            yield f"silent: the cable between spark-{first} and spark-{second}"

    def _one_generation(self, ranks: list[processes.Rank]) -> None:
        if len({rank.generation for rank in ranks}) > 1:
            # The table is not read at one moment: both must be there still.
            still = [rank for rank in ranks if processes.alive(rank.pid)]
            if len({rank.generation for rank in still}) > 1:
                told = ", ".join(f"{rank.node}: {rank.generation} (pid {rank.pid})" for rank in still)
                self.violations.append(f"two generations alive at once: {told}")
        names = [rank.node for rank in ranks if _leads(rank)]
        if twice := {name for name in names if names.count(name) > 1}:
            pids = [rank.pid for rank in ranks if rank.node in twice]
            self.violations.append(f"two ranks on {', '.join(sorted(twice))}: pids {pids}")

    def _no_lone_rank(self, ranks: list[processes.Rank], silent: set[str]) -> None:
        """While its own daemon stands still nobody could end it; from then on the clock runs."""
        nodes: dict[int, set[str]] = {}
        for rank in ranks:
            nodes.setdefault(rank.generation, set()).add(rank.node)
        lone = {
            f"{rank.node} pid {rank.pid}": None
            for rank in ranks
            if len(nodes[rank.generation]) < len(self.cluster.daemons) and rank.node not in silent
        }
        self._lone.now(lone, self.time)
        for who, began in self._lone.began.items():
            if self.time - began > self.limits.lone:
                self.violations.append(f"a lone rank for {self.time - began:.1f} s: {who}")
                self._lone.began[who] = self.time

    # -- sockets -----------------------------------------------------------------------------------------------

    async def _ask(self, daemon: Daemon, port: int) -> None:
        url = f"http://127.0.0.1:{port}/readyz"
        async with daemon.spark.session(2.0) as session:
            while True:
                sent, wrong = self.time, dict(self._broken.began)
                try:
                    async with session.get(url) as response:
                        ready = response.status == 200
                    self.answers += 1
                except (aiohttp.ClientError, OSError, TimeoutError):
                    ready = False
                if ready:
                    self._judge(f"{daemon.spark.name}:{port}", sent, wrong)
                await asyncio.sleep(ASK_SECONDS)

    def _judge(self, who: str, sent: float, wrong: Mapping[str, float]) -> None:
        """A "ready" given to a question asked after it should have been known that it is not so."""
        for what, began in wrong.items():
            if sent - began > self.grace(what):
                self.violations.append(f"{who} says ready {sent - began:.1f} s after {what}")

    def grace(self, what: str) -> float:
        kind = what.partition(":")[0]
        return {"dead": DEAD_SECONDS, "held": HELD_SECONDS, "silent": self.limits.silent}[kind]

    # -- journals ----------------------------------------------------------------------------------------------

    def _journals(self) -> None:
        """No daemon ends on a fault of its own or loses an error of one of its tasks."""
        for daemon in self.cluster.daemons:
            for line in self._new_lines(daemon.journal_file):
                own = line.startswith("<") and line[3:].startswith(OWN_FAULTS)
                if own or line.startswith("Traceback"):
                    self.violations.append(f"the journal of {daemon.spark.name}: {line}")

    def _new_lines(self, file: Path) -> list[str]:
        if not file.exists():
            return []
        with file.open("rb") as journal:
            journal.seek(self._read.get(file, 0))
            text = journal.read()
        whole, newline, _ = text.rpartition(b"\n")
        self._read[file] = self._read.get(file, 0) + len(whole) + len(newline)
        return whole.decode(errors="replace").splitlines()

    # -- what a test waits for ---------------------------------------------------------------------------------

    def whole(self) -> bool:
        """Every Spark has its rank of one generation, nothing stands still and every daemon runs."""
        ranks = processes.ranks()
        wrong = list(self._wrong(ranks, set(self._silent())))
        return not wrong and len({rank.generation for rank in ranks}) == 1

    def check(self) -> None:
        assert not self.violations, "\n".join(self.violations[:10])


OWN_FAULTS = ("the daemon ends on a fault", "Task exception was never", "Exception in callback", "Unhandled exception")


def _leads(rank: processes.Rank) -> bool:
    """Whether it is the rank itself: it leads its session. What it left in another session does not."""
    try:
        return os.getsid(rank.pid) == rank.pid and processes.alive(rank.pid)
    except ProcessLookupError:
        return False
