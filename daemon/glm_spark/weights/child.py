"""A transfer's process: `python -m glm_spark.weights.child`, its job on stdin, its words on stdout.

Apart from the daemon, so that hashing, sockets and the Hub's client neither hold up its loop nor grow its memory,
and so that it can be ended at any moment: what it had noted is taken up by the next.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from glm_spark.finding import Finding
from glm_spark.status import WeightsPhase
from glm_spark.weights import faults, lists, remembered
from glm_spark.weights.faults import Fault, fault
from glm_spark.weights.job import Job, Word
from glm_spark.weights.look import How, Look, look
from glm_spark.weights.pins import Pin
from glm_spark.weights.prove import prove

if TYPE_CHECKING:
    from glm_spark.handover.take import Taker
    from glm_spark.weights.hub import Hub

WORD_SECONDS = 0.25
_PR_SET_PDEATHSIG = 1


class Work:
    """The job under way; `word` is how it is now."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._phase: WeightsPhase = "idle"
        self._count: Callable[[], tuple[int, int, int]] = lambda: (0, 0, 0)

    def word(self) -> Word:
        done, total, moved = self._count()
        return Word(phase=self._phase, done=done, total=total, moved=moved)

    def run(self) -> tuple[Finding, ...]:
        """What stood in the way; nothing when it was done."""
        try:
            if self.job.verb == "send":
                self._send()
                return ()
            with _alone(self.job):
                if self.job.image is not None:
                    self._image()
                else:
                    self._bring()
        except Fault as trouble:
            return (trouble.finding,)
        except OSError as error:
            return (faults.of_disk(self.job.node, str(error.filename or self.job.cache), error).finding,)
        return ()

    def _bring(self) -> None:
        if self.job.again:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.job.store.state / remembered.NAME)
        looks = self._settle()
        if self.job.verb == "verify" or all(one.complete for one in looks):
            return
        if self.job.verb == "fetch":
            self._fetch()
        else:
            self._receive()

    def _settle(self) -> tuple[Look, ...]:
        """Proves what is there and was not proven; how it is then."""
        job = self.job
        looks = look(job.store, job.pins)
        unproven = [file for one in looks for file in one.of(How.UNPROVEN)]
        if not unproven:
            return looks
        read = _Counter(sum({file.real: file.entry.size for file in unproven}.values()))
        before = self._phase, self._count
        self._phase, self._count = "verifying", lambda: (read.done, read.total, 0)
        found = prove(job.node, unproven, read.add)
        remembered.Remembered(job.store.state).add(found)
        self._phase, self._count = before
        return look(job.store, job.pins)

    def _fetch(self) -> None:
        from glm_spark.weights.hub import Hub
        from glm_spark.weights.shelf import Shelf

        job = self.job
        hub, shelf = Hub(job), Shelf(job.store)
        self._phase, self._count = "fetching", lambda: (shelf.done, shelf.total, hub.moved)
        for pin in job.pins:
            if not pin.path and lists.kept(job.store.state, pin) is None:
                self._list(hub, pin)
        os.makedirs(job.cache, mode=0o750, exist_ok=True)
        try:
            shelf.fill(self._settle(), job.keep_free)
            hub.fetch(shelf)
        finally:
            shelf.close()

    def _list(self, hub: Hub, pin: Pin) -> None:
        """The Hub's list of files; without a way there the one that a filled cache shows."""
        try:
            hub.listing(pin)
        except Fault as trouble:
            found = lists.derived(self.job.cache, pin)
            if trouble.finding.code != "weights.hub-unreachable" or found is None:
                raise
            lists.keep(self.job.node, self.job.store.state, pin, found)

    def _image(self) -> None:
        """The engine's image: out of the leader's store, or over the cable and into the worker's."""
        from glm_spark.handover.give import Giver
        from glm_spark.handover.take import Taker

        if self.job.verb == "export":
            giver = Giver(self.job, self._settle)
            self._phase, self._count = "exporting", lambda: (*giver.count(), 0)
            giver.run()
            return
        taker = Taker(self.job, self._settle)
        moved = 0 if taker.received else self._receive(taker)
        self._phase, self._count = "loading", lambda: (*taker.count(), moved)
        taker.load()

    def _receive(self, taker: Taker | None = None) -> int:
        """The bytes that came."""
        from glm_spark.weights.receiver import Receiver

        os.makedirs(self.job.cache, mode=0o750, exist_ok=True)
        learn, lacks = (taker.learn, taker.lacks) if taker else (None, None)
        receiver = Receiver(self.job, self._settle, learn, lacks)
        shelf = receiver.shelf

        def count() -> tuple[int, int, int]:
            self._phase = "receiving" if receiver.begun else "waiting"
            return shelf.done, shelf.total, receiver.moved

        self._phase, self._count = "waiting", count
        try:
            receiver.run()
        finally:
            shelf.close()
        return receiver.moved

    def _send(self) -> None:
        from glm_spark.weights.sender import Sender

        sender = Sender(self.job)
        self._phase, self._count = "sending", lambda: (sender.sent, 0, sender.sent)
        sender.run()


class _Counter:
    def __init__(self, total: int) -> None:
        self.done = 0
        self.total = total
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        with self._lock:
            self.done += count


@contextlib.contextmanager
def _alone(job: Job) -> Iterator[None]:
    """One process at a time changes this Spark's weights: the daemon's, or that of the command line."""
    job.store.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(job.store.state / "lock", "a+b") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            holder = lock.read(40).decode(errors="replace").strip() or "another process"
            raise fault(
                job.node,
                "busy",
                "this Spark's weights" if job.image is None else "this Spark's image",
                f"{holder} is at work on them",
                "one at a time",
                "Wait for it: glm-spark weights status shows how far it is.",
            ) from None
        lock.truncate(0)
        lock.write(f"pid {os.getpid()} ({job.verb})".encode())
        lock.flush()
        yield
        lock.truncate(0)


def _say(word: Word) -> None:
    sys.stdout.write(word.model_dump_json() + "\n")
    sys.stdout.flush()


def _end_with_parent() -> None:
    """The daemon holds the other end of stdin: its end, in whatever way, is ours."""
    with contextlib.suppress(OSError):
        while os.read(0, 1024):
            pass
    os._exit(1)


def main() -> int:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    job = Job.model_validate_json(_first_line())
    os.environ.update(
        HF_HUB_DISABLE_XET="1",
        HF_HUB_DISABLE_PROGRESS_BARS="1",
        HF_HUB_DISABLE_TELEMETRY="1",
        HF_HUB_VERBOSITY="critical",
    )
    os.environ["HF_HOME"] = str(Path(job.state) / "hub-client")  # its own notes, not the weights
    os.environ.pop("HF_TOKEN", None)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    work = Work(job)
    outcome: list[tuple[Finding, ...]] = []
    thread = threading.Thread(target=lambda: outcome.append(work.run()), name="work")
    thread.start()
    while thread.is_alive():
        _say(work.word())
        thread.join(WORD_SECONDS)
    if not outcome:
        return 1  # its traceback is on stderr
    last = work.word()
    _say(last.model_copy(update={"ended": True, "findings": outcome[0]}))
    return 0


def _first_line() -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            break
        line += byte
    return line


if __name__ == "__main__":
    try:
        status = main()
    except BrokenPipeError:
        status = 1
    sys.stdout.flush()
    os._exit(status)
