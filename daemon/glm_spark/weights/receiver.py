"""A worker's end of a transfer: lets the leader in, asks for what its own pins need, proves it, names it."""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import threading
from collections import deque
from collections.abc import Callable

from glm_spark.cluster.protocol import ProtocolFault
from glm_spark.weights import lists, manifest
from glm_spark.weights.faults import Fault, fault
from glm_spark.weights.job import Door, Job
from glm_spark.weights.look import Look
from glm_spark.weights.pins import Pin
from glm_spark.weights.prove import hands
from glm_spark.weights.shelf import Shelf, Task
from glm_spark.weights.wire import Ask, Broken, Wire, prepare, receive_into

AHEAD = 3  # questions under way on a connection: the next chunk is asked for before the last has come
_BUFFER = 1 << 20
_STRANGERS = 8  # connections at once beyond those that are wanted


class Receiver:
    """`run` returns when everything is there and proven, or raises Fault. `settle` proves what is there already.

    `learn` finds out, on the first connection, what there is to bring, where that is not the leader's lists of files;
    `lacks` is then the leader's refusal.
    """

    def __init__(
        self,
        job: Job,
        settle: Callable[[], tuple[Look, ...]],
        learn: Callable[[Wire], None] | None = None,
        lacks: Callable[[str], Fault] | None = None,
    ) -> None:
        assert job.door is not None
        self._job = job
        self._door: Door = job.door
        self._settle = settle
        self._learn = learn or self._ask_for_lists
        self._refused = lacks or self._leader_lacks
        self.shelf = Shelf(job.store)
        self.moved = 0
        self.begun = False
        self._planning = threading.Lock()
        self._planned = False
        self._lock = threading.Lock()
        self._open = 0
        self._over = threading.Event()

    def run(self) -> None:
        listening = self._listen()
        provers = [threading.Thread(target=self._prove, name=f"proof {n}", daemon=True) for n in range(min(4, hands()))]
        try:
            self._accept(listening, provers)
        finally:
            self._over.set()
            for sock in listening:
                sock.close()
        if self.shelf.fault is not None:
            raise self.shelf.fault

    def _listen(self) -> list[socket.socket]:
        door, made = self._door, []
        for address, netdev in door.addresses:
            sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            made.append(sock)
            try:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, netdev.encode() + b"\0")
                sock.bind((address, door.port))
                sock.listen(64)
            except OSError as error:
                for other in made:
                    other.close()
                raise self._unbound(address, error) from None
        if not made:
            raise fault(
                self._job.node,
                "no-cable",
                "what comes from the leader",
                "this Spark has no address on the cable",
                "an address on a netdev of the cable",
                "See glm-spark check for what the cable lacks.",
            )
        return made

    def _unbound(self, address: str, error: OSError) -> Fault:
        port = self._door.port
        fix = "End the program that listens there, or set weights.port to another port on all Sparks."
        if error.errno != errno.EADDRINUSE:
            fix = "See glm-spark check for what the cable lacks."
        what = error.strerror or str(error)
        return fault(self._job.node, "port", f"TCP {address}:{port} (weights.port)", what, "a free port", fix)

    def _accept(self, listening: list[socket.socket], provers: list[threading.Thread]) -> None:
        threads: list[threading.Thread] = []
        while not self._finished():
            ready, _, _ = select.select(listening, [], [], 0.1)
            for door in ready:
                with contextlib.suppress(OSError):
                    sock, _ = door.accept()
                    if self._open >= self._door.connections + _STRANGERS:
                        sock.close()
                        continue
                    with self._lock:
                        self._open += 1
                    thread = threading.Thread(target=self._connection, args=(sock,), daemon=True)
                    thread.start()
                    threads.append(thread)
            if self._planned and not provers[0].ident:
                for prover in provers:
                    prover.start()
        for thread in threads:
            thread.join(2.0)
        for prover in provers:
            if prover.ident:
                prover.join()

    def _finished(self) -> bool:
        return self.shelf.fault is not None or (self._planned and self.shelf.complete)

    def _prove(self) -> None:
        while self.shelf.prove_next():
            pass

    def _connection(self, sock: socket.socket) -> None:
        wire = Wire(sock)
        try:
            prepare(sock)
            wire.open_as_worker(self._door)
        except (Broken, ProtocolFault, OSError):
            self._left(wire)
            return  # a stranger, or a connection that broke: the leader dials again
        try:
            self.begun = True
            self._plan(wire)
            self._bring(wire)
            wire.say(Ask(ask="bye", complete=self.shelf.complete))
        except Broken:
            return
        except ProtocolFault as refused:
            self.shelf.fail(self._refused(refused.text))
        except Fault as trouble:
            self.shelf.fail(trouble)
            with contextlib.suppress(Broken):
                wire.say(Ask(ask="bye"))
        finally:
            self._left(wire)

    def _left(self, wire: Wire) -> None:
        wire.close()
        with self._lock:
            self._open -= 1

    # -- the plan ----------------------------------------------------------------------------------------------

    def _plan(self, wire: Wire) -> None:
        """The first connection finds out what is missing; the others wait for that."""
        with self._planning:
            if self._planned or self.shelf.fault is not None:
                return
            self._learn(wire)
            self.shelf.fill(self._settle(), self._job.keep_free)
            self._planned = True

    def _ask_for_lists(self, wire: Wire) -> None:
        for pin in self._job.pins:
            if not pin.path and lists.kept(self._job.store.state, pin) is None:
                self._ask_for_list(wire, pin)

    def _ask_for_list(self, wire: Wire, pin: Pin) -> None:
        wire.say(Ask(ask="list", repository=pin.repository, revision=pin.revision))
        answer = wire.hear_answer()
        if answer.refused:
            raise self._refused(answer.text)
        try:
            found = manifest.decode(answer.list.encode())
        except ValueError as error:
            raise ProtocolFault(4400, f"the list of files cannot be used: {error}") from None
        lists.keep(self._job.node, self._job.store.state, pin, found)

    def _leader_lacks(self, text: str) -> Fault:
        leader = self._door.leader
        return fault(
            self._job.node,
            "leader-lacks",
            f"weights from {leader}",
            text or "refused",
            "the pinned weights, complete and proven",
            f"Give all Sparks the same [model] settings; on {leader}: glm-spark weights verify.",
        )

    # -- the content -------------------------------------------------------------------------------------------

    def _bring(self, wire: Wire) -> None:
        under_way: deque[Task] = deque()
        buffer = memoryview(bytearray(_BUFFER))
        try:
            while True:
                while len(under_way) < AHEAD:
                    task = self.shelf.take(wait=not under_way)
                    if task is None:
                        break
                    under_way.append(task)
                    wire.say(_question(task))
                if not under_way:
                    return
                self._receive(wire, under_way[0], buffer)
                under_way.popleft()
        except BaseException:
            self.shelf.give_back(reversed(under_way))
            raise

    def _receive(self, wire: Wire, task: Task, buffer: memoryview) -> None:
        answer = wire.hear_answer()
        if answer.refused:
            raise self._refused(answer.text)
        if task.digests:
            if len(answer.digests) != task.digests:
                raise ProtocolFault(4400, "not as many digests as were asked for")
            try:
                self.shelf.compared(task, task.blob.partial.differing(answer.digests, task.first))
            except OSError as error:
                raise self.shelf.disk(task.blob, error) from None
            return
        offset, length = task.blob.partial.span(task.first)
        if answer.length != length:
            raise ProtocolFault(4400, "not as many bytes as were asked for")
        end = offset + length
        while offset < end:
            piece = buffer[: min(_BUFFER, end - offset)]
            receive_into(wire.sock, piece)
            try:
                task.blob.partial.write(offset, piece)
            except OSError as error:
                raise self.shelf.disk(task.blob, error) from None
            offset += len(piece)
            with self._lock:
                self.moved += len(piece)
        self.shelf.got(task)


def _question(task: Task) -> Ask:
    return Ask(
        ask="digests" if task.digests else "chunk",
        repository=task.blob.pin.repository,
        revision=task.blob.pin.revision,
        blob=task.blob.entry.digest,
        first=task.first,
        count=task.digests or 1,
    )
