"""A worker's side of the session: accepts the leader, obeys its goals, and ends its rank when the lease lapses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web

from glm_spark.cluster import protocol, session
from glm_spark.cluster.lease import Freshness, Lease, boottime
from glm_spark.cluster.post import Post
from glm_spark.cluster.protocol import Beat, Checked, Did, Goal, Hello, Opening, ProtocolFault, Told
from glm_spark.cluster.session import Session, SessionLost
from glm_spark.fabric.exchange import Answer, Order
from glm_spark.fabric.inventory import Inventory
from glm_spark.finding import Finding, Severity
from glm_spark.status import MemoryStatus, Status

log = logging.getLogger(__name__)

HANDSHAKES = 8  # strangers at the door at once; the leader is one
CHECK_SECONDS = 0.1  # how late the worker may notice that its own lease lapsed


async def _no_exchange(_order: Order) -> Answer:
    """For a Spark without RDMA devices of its own."""
    return Answer()


@dataclass(frozen=True, slots=True)
class Self:
    """What this Spark says of itself. The callables are read whenever a session opens or a beat is due."""

    opening: Callable[[], Opening]  # with a new nonce each time
    hello: Callable[[], Hello]
    inventory: Callable[[], Inventory | None]
    memory: Callable[[], MemoryStatus | None]
    check: Callable[[], Awaitable[tuple[Finding, ...]]]
    provide: Callable[[], Awaitable[None]]  # brings the weights; says by itself when it cannot
    exchange: Callable[[Order], Awaitable[Answer]] = _no_exchange


class Worker:
    """Holds at most one session. `told` is the set's status as the leader last pushed it, while the lease lasts."""

    def __init__(
        self,
        me: Self,
        post: Post,
        token: bytes,
        leader: str,
        suspect: float,
        lease: float,
        on_change: Callable[[], None],
    ) -> None:
        self._me = me
        self._post = post
        self._token = token
        self._leader = leader
        self._suspect = suspect
        self._lease_seconds = lease
        self._on_change = on_change
        self._session: Session | None = None
        self._lease: Lease | None = None
        self._ack = 0
        self._seq = 0
        self._told: Status | None = None
        self._sent_inventory: Inventory | None = None
        self._knocking = 0
        self._dirty = asyncio.Event()
        self._moved = asyncio.Event()
        self._rehello = False
        self._checks: asyncio.Queue[int] = asyncio.Queue()
        self._checked: Checked | None = None
        self._orders: asyncio.Queue[Told] = asyncio.Queue()
        self._answers: list[Did] = []
        self._provide = asyncio.Event()
        self.reason: Finding | None = self._waiting("no session yet")
        self.leader_hello: Hello | None = None

    @property
    def connected(self) -> bool:
        return self._session is not None

    def told(self) -> Status | None:
        """The leader's last word on the set; None once the lease lapsed."""
        if self._lease is None or self._lease.freshness(boottime()) is Freshness.LAPSED:
            return None
        return self._told

    def fresh(self) -> bool:
        return (
            self._session is not None
            and self._lease is not None
            and self._lease.freshness(boottime()) is Freshness.FRESH
        )

    def changed(self) -> None:
        """The post or the inventory changed: tell the leader at once."""
        self._dirty.set()
        self._moved.set()
        self._moved = asyncio.Event()

    def forget(self) -> None:
        """This Spark's settings changed: the leader compares them again."""
        self._rehello = True
        self._dirty.set()

    async def moved(self) -> None:
        """Returns after the next change of the post or the session."""
        await self._moved.wait()

    async def run(self) -> None:
        """Keeps the worker's own clock and sends what changed; independent of whether the socket delivers."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch_lease(), name="lease")
            tasks.create_task(self._send_changes(), name="reports")
            tasks.create_task(self._run_checks(), name="checks")
            tasks.create_task(self._run_orders(tasks), name="orders")
            tasks.create_task(self._run_provide(), name="weights")

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """GET /v1/session: one connection from its challenge to its end."""
        socket = web.WebSocketResponse(max_msg_size=protocol.MAX_FRAME, autoping=True, timeout=1.0)
        if self._knocking >= HANDSHAKES:
            return web.Response(status=503, text="too many sessions are being opened\n")
        await socket.prepare(request)
        self._knocking += 1
        try:
            opened = await session.open_as_worker(socket, self._me.opening(), self._token, self._leader)
        except ProtocolFault as fault:
            log.warning(
                "refused a session from %s: %s", request.remote, fault.text, extra={"code": "cluster.session-refused"}
            )
            await session.close(socket, fault.code, fault.text)
            return socket
        except (SessionLost, TimeoutError, ConnectionError):
            await session.close(socket, protocol.MALFORMED, "no challenge was answered")
            return socket
        finally:
            self._knocking -= 1
        await self._serve(opened, request.remote or "")
        return socket

    async def _serve(self, opened: Session, remote: str) -> None:
        if self._session is not None:
            await self._session.close(protocol.TAKEN_OVER, "the leader opened a newer session")
        self._session = opened
        self._lease = Lease(self._suspect, self._lease_seconds, boottime())
        self._ack, self._seq, self._sent_inventory = 0, 0, None
        # The set may have ended since the last word on it: what this session has not said yet is not known.
        self._told = None
        self.reason = None
        log.info("session with the leader %s at %s", opened.peer.node, remote)
        try:
            self._rehello = True
            await self._send()
            while True:
                beat = await opened.receive()
                if self._session is not opened:
                    raise SessionLost("a newer session took over")
                await self._take(beat)
        except (SessionLost, ProtocolFault) as end:
            if self._session is opened:
                self._end_session(str(end))
            if isinstance(end, ProtocolFault):
                log.error("the session broke its protocol: %s", end.text)
                await opened.close(end.code, end.text)

    async def _take(self, beat: Beat) -> None:
        now = boottime()
        if self._lease is None or not self._lease.renew(now, now):
            raise SessionLost("a beat came after the lease had lapsed")
        self._ack = beat.seq
        if beat.hello is not None:
            self.leader_hello = beat.hello
        if beat.status is not None:
            self._told = beat.status
        if beat.check is not None:
            self._checks.put_nowait(beat.check)
        for told in beat.orders or ():
            self._orders.put_nowait(told)
        if beat.provide:
            self._provide.set()
        if beat.goal is not None:
            self._post.pursue(beat.goal)
        self._on_change()
        await self._send()

    async def _send(self) -> None:
        """Answers or tells. The report goes with every beat: it is small and whole."""
        current = self._session
        if current is None:
            return
        self._seq += 1
        inventory = self._me.inventory()
        news = inventory if inventory is not self._sent_inventory else None
        self._sent_inventory = inventory
        report = self._post.report.model_copy(update={"memory": self._me.memory()})
        hello = self._me.hello() if self._rehello else None
        self._rehello = False
        checked, self._checked = self._checked, None
        answers, self._answers = tuple(self._answers), []
        beat = Beat(
            seq=self._seq,
            ack=self._ack,
            hello=hello,
            report=report,
            inventory=news,
            checked=checked,
            answers=answers or None,
        )
        await current.send(beat)

    async def _send_changes(self) -> None:
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            try:
                await self._send()
            except SessionLost as end:
                self._end_session(str(end))

    async def _run_orders(self, tasks: asyncio.TaskGroup) -> None:
        """Steps of RDMA exchanges, each in a task of its own: an "end" must not wait for what it ends."""
        while True:
            told = await self._orders.get()
            tasks.create_task(self._obey(told), name=f"{told.order.step} of {told.order.own}")

    async def _obey(self, told: Told) -> None:
        answer = await self._me.exchange(told.order)
        self._answers.append(Did(number=told.number, answer=answer))  # to the list as it is now: beats went meanwhile
        self._dirty.set()

    async def _run_checks(self) -> None:
        while True:
            number = await self._checks.get()
            self._checked = Checked(number=number, findings=await self._me.check())
            self._dirty.set()

    async def _run_provide(self) -> None:
        while True:
            await self._provide.wait()
            self._provide.clear()
            await self._me.provide()

    async def _watch_lease(self) -> None:
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            if self._lease is not None and self._lease.freshness(boottime()) is Freshness.LAPSED:
                silent = self._lease.silent_for(boottime())
                await self._lapse(f"no beat from {self._leader} for {silent:.0f} s")

    async def abandon(self, how: str) -> None:
        """The leader cannot reach this Spark any more: what its lease would end later ends now."""
        if self._lease is not None:
            await self._lapse(how)

    async def _lapse(self, how: str) -> None:
        """The leader is gone or cannot reach this Spark. A lone rank holds its memory and hangs, so it ends."""
        reason = self._waiting(how)
        self._lease = None
        self._told = None
        self.reason = reason
        log.warning("%s", reason, extra={"code": reason.code})
        self._post.pursue(Goal(generation=0, phase="idle", hard=True, reason=reason))
        current, self._session = self._session, None
        if current is not None:
            await current.close(protocol.TAKEN_OVER, how)
        self._on_change()

    def _end_session(self, how: str) -> None:
        """The connection is gone; the lease goes on, so that a leader that comes right back finds its set alive."""
        self._session = None
        self.reason = self._waiting(how)
        log.warning("the session with %s ended: %s", self._leader, how, extra={"code": "cluster.session-lost"})
        self._on_change()

    def _waiting(self, how: str) -> Finding:
        return Finding(
            code="cluster.no-leader",
            severity=Severity.ERROR,
            node=self._post.node,
            subject=f"session with {self._leader}",
            measured=how,
            wanted="beats twice a second",
            fix=f"On {self._leader}: systemctl status glm-spark; glm-spark check.",
        )
