"""One Spark wired together: start, signals, stop, exit status."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
import socket
from pathlib import Path

from aiohttp import web

from glm_spark import __version__
from glm_spark.api.bind import BindFault
from glm_spark.api.control import Control
from glm_spark.config import directories
from glm_spark.config.effects import changes
from glm_spark.config.load import ConfigFault, load
from glm_spark.config.me import find_me
from glm_spark.config.model import Config
from glm_spark.config.token import TokenFault, read
from glm_spark.engine import cgroup
from glm_spark.engine.chosen import ChosenRuntime
from glm_spark.fabric.probe import probe_key
from glm_spark.fabric.responder import Responder
from glm_spark.finding import Finding, Severity
from glm_spark.service import journal
from glm_spark.service.guarding import Guarding
from glm_spark.service.leading import Leading
from glm_spark.service.pulse import Pulse
from glm_spark.service.station import Place, Station
from glm_spark.service.working import Working

log = logging.getLogger(__name__)

FINE, BROKEN, BAD_CONFIGURATION = 0, 1, 78
BIND_AGAIN_SECONDS = 2.0


def main(path: Path, node: str | None) -> int:
    """Runs this Spark until it is told to stop. 0 after a stop, 1 for a fault of its own, 78 for a bad file."""
    host = socket.gethostname()
    journal.set_up(node or host, "info")
    try:
        config = load(path)
        me = find_me(config, node, host)
        token = read(config, os.environ, me)
    except (ConfigFault, TokenFault) as fault:
        for line in str(fault).splitlines():
            log.error("%s", line, extra={"code": "config.unusable"})
        return BAD_CONFIGURATION
    journal.set_up(me, config.log.level)
    cgroup.settle()
    place = Place(me, directories.state(os.environ), directories.runtime(os.environ), path)
    with contextlib.suppress(OSError):  # systemd makes them; without it they are made here, or the first use tells
        place.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        place.runtime.mkdir(mode=0o750, parents=True, exist_ok=True)
    held = _hold(place)
    if held is None:
        return BROKEN
    try:
        return asyncio.run(Service(config, place, token).run())
    except Exception:
        log.critical("the daemon ends on a fault of its own", exc_info=True, extra={"code": "daemon.fault"})
        return BROKEN


def _hold(place: Place) -> int | None:
    """The lock by which one daemon at a time runs this Spark; None, with the reason said, when another one does.

    A second one would take the first one's ranks for leftovers. The kernel gives the lock back whatever ends this
    process; no child inherits it.
    """
    path = place.runtime / "daemon.lock"
    try:
        held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        measured, fix = (
            "another glm-spark runs here",
            "glm-spark status shows it; systemctl restart glm-spark renews it.",
        )
    except OSError as error:
        measured, fix = error.strerror or str(error), "Set RUNTIME_DIRECTORY to a directory of this daemon's own."
    else:
        return held
    finding = Finding(
        code="daemon.second",
        severity=Severity.ERROR,
        node=place.me,
        subject=str(path),
        measured=measured,
        wanted="one daemon a runtime directory",
        fix=fix,
    )
    log.error("%s", finding, extra={"code": finding.code})
    return None


class Service:
    """All rooms of one Spark under one task group: a failing task ends the daemon loudly, never silently."""

    def __init__(self, config: Config, place: Place, token: bytes) -> None:
        self._place = place
        self._stop_asked = asyncio.Event()
        self._hurry = asyncio.Event()
        self._readdress = asyncio.Event()
        self._control_faults: tuple[Finding, ...] = ()
        self._file_faults: tuple[Finding, ...] = ()  # of a file that was changed and cannot be used
        self.station = Station(
            config, place, token, ChosenRuntime(lambda: self.station.config), lambda: self.role.changed()
        )
        self.guarding = Guarding(lambda: self.station.config, self.station.post, self.station.estimates)
        leading = config.leader.name == place.me
        self.role: Leading | Working = (Leading if leading else Working)(self.station, lambda: self.pulse)
        self.pulse = Pulse(os.environ, self.role.healthy, self.role.headline)
        handler = _no_sessions if isinstance(self.role, Leading) else self.role.worker.handle
        gate = self.role.gate if isinstance(self.role, Leading) else None
        self.control = Control(config, self.role, token, handler, node=place.me, gate=gate, runtime=place.runtime)
        self.responder = Responder({}, config.control.port, probe_key(token))
        self.station.heard = self.responder.heard
        self.station.take_over = self._take_over
        self.station.on_rank.append(self.guarding.rank_changed)
        self.station.on_inventory.append(lambda _inventory: self._readdress.set())

    async def run(self) -> int:
        log.info("glm-spark %s on %s, %s of %s", __version__, self._place.me, self._role_name(), self._cluster())
        self._listen_to_signals()
        try:
            async with asyncio.TaskGroup() as tasks:
                rooms = [
                    tasks.create_task(self.pulse.run(), name="pulse"),
                    tasks.create_task(self.station.watcher.run(), name="watcher"),
                    tasks.create_task(self.station.post.run(), name="post"),
                    tasks.create_task(self.station.steward.run(), name="steward"),
                    tasks.create_task(self.station.outfit.pull.run(), name="image"),
                    tasks.create_task(self.guarding.run(), name="host"),
                    tasks.create_task(self._keep_control(), name="control"),
                    tasks.create_task(self.role.run(), name="role"),
                ]
                await self._stop_asked.wait()
                self.pulse.stopping()
                await self._leave(tasks)
                for room in rooms:
                    room.cancel()
        finally:
            self.responder.close()
            await self.control.stop()
        log.info("stopped")
        return FINE

    async def _leave(self, tasks: asyncio.TaskGroup) -> None:
        hurry = tasks.create_task(self._hurry_up(), name="hurry")
        await self.role.leave(drain=True)
        hurry.cancel()

    async def _hurry_up(self) -> None:
        await self._hurry.wait()
        self.role.hurry()

    async def _keep_control(self) -> None:
        """Opens control.sock, then binds loopback and the cable's addresses as netlink shows them, and follows them."""
        while True:
            try:
                await self.control.start()
                break
            except BindFault as fault:
                self._control_fault((fault.finding,))
                await asyncio.sleep(BIND_AGAIN_SECONDS)
        while True:
            self._readdress.clear()
            addresses = self.station.fabric_addresses()
            self._control_fault(await self.control.rebind(set(addresses)))
            await self.responder.update(addresses)
            read = self.station.watcher.inventory is not None
            if isinstance(self.role, Working) and read and not self._control_faults:
                self.pulse.ready()  # armed: the leader can come
            try:
                async with asyncio.timeout(BIND_AGAIN_SECONDS if self._control_faults else None):
                    await self._readdress.wait()
            except TimeoutError:
                continue

    def _control_fault(self, faults: tuple[Finding, ...]) -> None:
        for fault in faults:
            if fault not in self._control_faults:
                log.error("%s", fault, extra={"code": fault.code})
        self._control_faults = faults
        self._remark()

    def _remark(self) -> None:
        self.station.post.remarks = (*self._control_faults, *self._file_faults)
        self.station.post.nudge()

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._asked_to_stop, number)
        loop.add_signal_handler(signal.SIGHUP, self._reload)

    def _asked_to_stop(self, number: signal.Signals) -> None:
        if self._stop_asked.is_set():
            log.warning("asked to stop again (%s): not waiting for running requests", number.name)
            self._hurry.set()
        else:
            log.info("asked to stop (%s)", number.name)
            self._stop_asked.set()

    def _reload(self) -> None:
        """Takes over what a changed file may change in a running daemon; a bad file changes nothing."""
        self.pulse.reloading()
        try:
            new = load(self._place.file)
            find_me(new, self._place.me, self._place.me)
        except ConfigFault as fault:
            log.error("the changed configuration is not used: %s", fault, extra={"code": "config.unusable"})
            # What runs goes on, and the next boot would not: it stays in sight until the file is right.
            told = self.station.on_disk.unusable(fault)
            self._file_faults = (told.model_copy(update={"severity": Severity.WARNING}),)
            self._remark()
        else:
            self._take_over(new)
        self.pulse.reloaded()

    def _take_over(self, new: Config) -> None:
        self._file_faults = ()
        self._remark()
        changed = changes(self.station.config, new)
        for change in changed.restart:
            log.warning("%s changed: it takes effect when glm-spark is restarted on this Spark", change.key)
        if changed.restart:
            return
        for change in (*changed.live, *changed.next_start):
            log.info("%s changed: effective %s", change.key, change.effect)
        self.station.config = new
        journal.set_up(self._place.me, new.log.level)
        self.role.reload(new)

    def _role_name(self) -> str:
        return "leader" if isinstance(self.role, Leading) else "worker"

    def _cluster(self) -> str:
        return self.station.config.cluster.name


async def _no_sessions(_request: web.BaseRequest) -> web.StreamResponse:
    return web.Response(status=404, text="This Spark is the leader: it opens sessions, it takes none.\n")
