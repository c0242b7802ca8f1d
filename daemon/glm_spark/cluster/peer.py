"""The leader's side of one session: dials a worker over the cable, keeps the lease, remembers what it said."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

import aiohttp

from glm_spark.cluster import protocol, session
from glm_spark.cluster.lease import Freshness, Lease, boottime
from glm_spark.cluster.protocol import Beat, Goal, Hello, Opening, ProtocolFault, Report, Told
from glm_spark.cluster.session import Session, SessionLost
from glm_spark.cluster.worker import Self
from glm_spark.config.model import Node
from glm_spark.fabric.exchange import STEP_SECONDS, Answer, Order
from glm_spark.fabric.inventory import Inventory
from glm_spark.fabric.links import Dial
from glm_spark.finding import Finding, Severity
from glm_spark.status import Status

log = logging.getLogger(__name__)

BEAT_SECONDS = 0.5
CONNECT_SECONDS = 3.0
_RETRY_FIRST, _RETRY_LAST = 0.02, 2.0
_RETRY_GONE = 0.25  # where a host answers that nothing listens yet: its daemon is about to start, and asking is cheap
_STEADY = 5.0  # a session that ends sooner is dialled again with growing pauses


@dataclass
class Known:
    """What the leader knows of a worker. `problem` is why there is no session; the rest is the worker's own word."""

    opening: Opening | None = None
    hello: Hello | None = None
    report: Report | None = None
    inventory: Inventory | None = None
    problem: Finding | None = None
    gone: bool = False  # its control port refuses: the daemon is not running, so its rank is not either
    up: bool = False
    lapsed: bool = False


class Peer:
    """One worker as the leader sees it. Redials for ever; a wake-up (the inventory changed) redials at once."""

    def __init__(
        self,
        node: Node,
        port: int,
        me: Self,
        token: bytes,
        suspect: float,
        lease: float,
        route: Callable[[], Dial | Finding],
        on_change: Callable[[], None],
        on_reboot: Callable[[Finding], None] = lambda _finding: None,
    ) -> None:
        self.node = node
        self.known = Known()
        self._port = port
        self._me = me
        self._token = token
        self._suspect = suspect
        self._lease_seconds = lease
        self._route = route
        self._on_change = on_change
        self._on_reboot = on_reboot
        self._boot_id = ""  # of the last session that was held
        self._lease: Lease | None = None
        self._session: Session | None = None
        self._patience: asyncio.Timeout | None = None  # the session's, while there is one
        self._sent: dict[int, float] = {}
        self._seq = 0
        self._ack = 0
        self._rehello = False
        self._numbers = count(1)
        self._asked: dict[int, asyncio.Future[tuple[Finding, ...]]] = {}
        self._check: int | None = None
        self._orders: list[Told] = []
        self._ordered: dict[int, asyncio.Future[Answer]] = {}
        self._provide: bool | None = None
        self._goal: Goal | None = None
        self._status: Status | None = None
        self._due = asyncio.Event()
        self._redial = asyncio.Event()

    def freshness(self) -> Freshness:
        """LAPSED also while there was never a session."""
        return self._lease.freshness(boottime()) if self._lease else Freshness.LAPSED

    def silent_for(self) -> float:
        return self._lease.silent_for(boottime()) if self._lease else float("inf")

    def pursue(self, goal: Goal) -> None:
        if goal != self._goal:
            self._goal = goal
            self._due.set()

    def tell(self, status: Status, at_once: bool) -> None:
        """Pushes the set's status, with the next beat unless `at_once`."""
        self._status = status
        if at_once:
            self._due.set()

    async def check(self, timeout: float) -> tuple[Finding, ...]:
        """The worker's own preflight; TimeoutError without a session or an answer in time."""
        if not self.known.up:
            raise TimeoutError
        number = next(self._numbers)
        answer: asyncio.Future[tuple[Finding, ...]] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        self._check = number
        self._due.set()
        try:
            async with asyncio.timeout(timeout):
                return await answer
        finally:
            self._asked.pop(number, None)

    def provide(self) -> None:
        """Has the worker bring its weights now, with the next beat."""
        self._provide = True
        self._due.set()

    async def exchange(self, order: Order) -> Answer:
        """One step of an RDMA exchange on that Spark; TimeoutError without a session or an answer in time."""
        if not self.known.up:
            raise TimeoutError
        number = next(self._numbers)
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._ordered[number] = answer
        self._orders.append(Told(number=number, order=order))
        self._due.set()
        try:
            async with asyncio.timeout(STEP_SECONDS + 2.0):
                return await answer
        finally:
            self._ordered.pop(number, None)

    def wake(self) -> None:
        """The way to this worker may have changed.

        A connection that fell silent before is given up: TCP would wait on for as long as the cable was out.
        """
        self._redial.set()
        if self._session is not None and self._patience is not None and self.silent_for() > self._suspect:
            self._patience.reschedule(asyncio.get_running_loop().time())

    def forget(self) -> None:
        """This Spark's settings changed: compare them again."""
        self._rehello = True
        self._due.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_dialling(), name=f"session with {self.node.name}")
            tasks.create_task(self._watch_lease(), name=f"lease of {self.node.name}")

    async def _keep_dialling(self) -> None:
        delay = _RETRY_FIRST
        while True:
            self._redial.clear()
            route = self._route()
            if isinstance(route, Finding):
                self._fail(route)
            elif await self._dial(route):
                delay = _RETRY_FIRST
            try:
                async with asyncio.timeout(delay * random.uniform(0.8, 1.2)):
                    await self._redial.wait()
                delay = _RETRY_FIRST
            except TimeoutError:
                delay = min(delay * 1.6, _RETRY_GONE if self.known.gone else _RETRY_LAST)

    async def _dial(self, route: Dial) -> bool:
        """One connection from dial to end; True when a session was held for a while."""
        began = boottime()
        try:
            async with aiohttp.ClientSession(connector=_connector(route)) as http:
                url = f"http://{route.address}:{self._port}/v1/session"
                async with asyncio.timeout(CONNECT_SECONDS):
                    websocket = await http.ws_connect(
                        url, max_msg_size=protocol.MAX_FRAME, timeout=aiohttp.ClientWSTimeout(ws_close=0.5)
                    )
                live = await session.open_as_leader(websocket, self._me.opening(), self._token, self.node.name)
                await self._serve(live)
        except ProtocolFault as fault:
            self._fail(self._problem(_CODES.get(fault.code, "cluster.protocol"), fault.text, _FIXES.get(fault.code)))
        except SessionLost as lost:
            code = lost.code or 0
            self._fail(self._problem(_CODES.get(code, "cluster.session-lost"), lost.how, _FIXES.get(code)))
        except TimeoutError:
            self._fail(self._problem("cluster.no-answer", f"no answer from {route.address}:{self._port}", None))
        except (OSError, aiohttp.ClientError) as error:
            self._refused(route, error)
        return boottime() - began > _STEADY

    async def _serve(self, live: Session) -> None:
        now = boottime()
        self._session = live
        self._lease = Lease(self._suspect, self._lease_seconds, now)
        self._sent, self._seq, self._ack = {}, 0, 0
        known = self.known
        # What kept the last session from being held stays in sight until this one carries a first word.
        known.opening, known.hello = live.peer, None
        known.gone, known.lapsed = False, False
        beats = asyncio.create_task(self._beat(live), name=f"beats to {self.node.name}")
        try:
            async with asyncio.timeout(None) as self._patience:
                while True:
                    self._take(await live.receive())
        finally:
            known.up = False
            open_questions: list[asyncio.Future[Any]] = [*self._ordered.values(), *self._asked.values()]
            for waiting in open_questions:
                if not waiting.done():
                    waiting.set_exception(TimeoutError())
            self._session = None
            beats.cancel()
            await asyncio.gather(beats, return_exceptions=True)
            self._on_change()

    async def _beat(self, live: Session) -> None:
        """Beats on time, and at once when the goal changes. Its failure ends the session through the reader."""
        self._rehello = True
        goal: Goal | None = None
        status: Status | None = None
        while True:
            self._due.clear()
            self._seq += 1
            self._sent[self._seq] = boottime()
            beat = Beat(
                seq=self._seq,
                ack=self._ack,
                hello=self._me.hello() if self._rehello else None,
                goal=self._goal if self._goal != goal else None,
                status=self._status if self._status is not status else None,
                check=self._check,
                orders=tuple(self._orders) or None,
                provide=self._provide,
            )
            self._check = self._provide = None
            self._orders = []
            goal, status, self._rehello = self._goal, self._status, False
            try:
                await live.send(beat)
            except SessionLost:
                await live.close()
                return
            try:
                async with asyncio.timeout(BEAT_SECONDS):
                    await self._due.wait()
            except TimeoutError:
                continue

    def _take(self, beat: Beat) -> None:
        now = boottime()
        sent = self._sent.get(beat.ack)
        if sent is not None:
            if self._lease is None or not self._lease.renew(sent, now):
                raise SessionLost("the answer came after the lease had lapsed")
            for seq in [seq for seq in self._sent if seq <= beat.ack]:
                del self._sent[seq]
        self._ack = beat.seq
        changed = False
        if beat.checked is not None and (answer := self._asked.get(beat.checked.number)) and not answer.done():
            answer.set_result(beat.checked.findings)
        for did in beat.answers or ():
            if (waiting := self._ordered.get(did.number)) and not waiting.done():
                waiting.set_result(did.answer)
        if beat.hello is not None:
            if self.known.hello is None and self.known.opening is not None:
                # Only now: the last report may be of a rank that has ended since.
                self.known.problem, self.known.up = None, True
                log.info("session with %s, boot %s", self.node.name, self.known.opening.boot_id[:8])
                self._compare_boots(self.known.opening.boot_id)
            self.known.hello, changed = beat.hello, True
        if beat.inventory is not None:
            self.known.inventory, changed = beat.inventory, True
        if beat.report is not None and beat.report != self.known.report:
            self.known.report, changed = beat.report, True
        if changed:
            self._on_change()

    async def _watch_lease(self) -> None:
        """Suspicion and expiry are news by themselves, whatever the socket does."""
        last = Freshness.LAPSED
        while True:
            await asyncio.sleep(0.1)
            fresh = self.freshness()
            if fresh is last:
                continue
            last = fresh
            if fresh is Freshness.LAPSED and self._lease is not None:
                self.known.lapsed = True
                self._fail(
                    self._problem("cluster.lease-lapsed", f"no answer to a beat for {self.silent_for():.0f} s", None)
                )
                if self._session is not None:
                    await self._session.close(1000, "the lease lapsed")
            self._on_change()

    def _compare_boots(self, boot_id: str) -> None:
        """A Spark that was reset leaves no other trace than another boot id."""
        before, self._boot_id = self._boot_id, boot_id
        if before in ("", boot_id):
            return
        rebooted = Finding(
            code="host.rebooted",
            severity=Severity.WARNING,
            node=self.node.name,
            subject="this Spark",
            measured=f"boot {boot_id[:8]}, before it {before[:8]}: it was started anew",
            wanted="the same boot as in its last session",
            fix=f"Nothing to do if that was meant; else on {self.node.name} journalctl -b -1 -e shows its last words.",
        )
        log.warning("%s", rebooted, extra={"code": rebooted.code})
        self._on_reboot(rebooted)

    def _fail(self, problem: Finding) -> None:
        if self.known.problem != problem:
            self.known.problem = problem
            log.warning("%s", problem, extra={"code": problem.code})
            self._on_change()

    def _refused(self, route: Dial, error: Exception) -> None:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, ConnectionRefusedError):
            cause = getattr(cause, "os_error", None) or cause.__cause__
        gone = isinstance(cause, ConnectionRefusedError)
        self.known.gone = gone
        what = "connection refused" if gone else (str(error) or type(error).__name__)
        fix = f"On {self.node.name}: systemctl start glm-spark." if gone else None
        self._fail(self._problem("cluster.no-session", f"{what} at {route.address}:{self._port}", fix))
        self._on_change()

    def _problem(self, code: str, measured: str, fix: str | None) -> Finding:
        return Finding(
            code=code,
            severity=Severity.ERROR,
            node=self.node.name,
            subject="session with the leader",
            measured=measured,
            wanted="an authenticated session over the cable",
            fix=fix or f"On {self.node.name}: systemctl status glm-spark; then glm-spark check.",
        )


_CODES = {
    protocol.MALFORMED: "cluster.protocol",
    protocol.TOKEN_DIFFERS: "cluster.token-differs",
    protocol.PROTOCOL_DIFFERS: "cluster.version-differs",
    protocol.NOT_THE_LEADER: "cluster.not-the-leader",
    protocol.ANOTHER_CLUSTER: "cluster.name-differs",
    protocol.ANOTHER_NODE: "cluster.another-node",
    protocol.TAKEN_OVER: "cluster.session-lost",
    protocol.CROWDED: "cluster.crowded",
}
_FIXES = {
    protocol.MALFORMED: "Bring both Sparks to the same version of glm-spark (glm-spark --version on each).",
    protocol.TOKEN_DIFFERS: "Copy the leader's token file to this Spark (mode 0600) and restart glm-spark here.",
    protocol.PROTOCOL_DIFFERS: "Bring both Sparks to the same version of glm-spark.",
    protocol.NOT_THE_LEADER: "Give all Sparks the same [[node]] entries in the same order.",
    protocol.ANOTHER_CLUSTER: "Give all Sparks the same cluster.name.",
    protocol.ANOTHER_NODE: "Check the addresses of the [[node]] entries.",
}


def _connector(route: Dial) -> aiohttp.TCPConnector:
    """Connections that leave on the cable's netdev or not at all, from its own address."""

    def make(info: Any) -> socket.socket:
        family, kind, proto, _, _ = info
        made = socket.socket(family, kind, proto)
        try:
            made.setblocking(False)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, route.netdev.encode() + b"\0")
            made.bind((route.source, 0))
        except OSError:
            made.close()
            raise
        return made

    return aiohttp.TCPConnector(socket_factory=make, limit=1, force_close=True)
