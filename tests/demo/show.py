"""The demo itself: makes the Sparks, goes live, asks, and stays until Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
from rich.console import Console
from rich.live import Live

from tests import enclosure
from tests.demo import record, screen
from tests.sparks.cluster import Sparks
from tests.sparks.daemon import Daemon, NotSeenError
from tests.sparks.settings import DAEMON

LIVE_WITHIN_S = 90.0
LOOK_S = 0.1
END_WITHIN_S = 10.0
RESTART_S = 2.0  # as RestartSec of the unit
QUESTION = "In one sentence: what joins two Sparks?"

# About five seconds in all: long enough to see each phase of a load, short enough to wait for.
STANDIN = {
    "delay_s": {
        "loading": 0.3,
        "rendezvous": 0.4,
        "transport": 0.4,
        "admission": 0.4,
        "weights": 2.2,
        "kernels": 0.8,
        "ready": 0.2,
    },
    "token_rate": 60.0,
}


class Show:
    def __init__(self, sparks: Sparks, console: Console) -> None:
        self.sparks = sparks
        self.console = console
        self.daemons = [Daemon(spark, sparks.config_file) for spark in sparks]
        self.names = [spark.name for spark in sparks]

    async def statuses(self) -> list[screen.Status]:
        return await asyncio.gather(*map(_status, self.daemons))

    async def go_live(self) -> bool:
        """Starts the daemons and shows the load; False when the set is not live in time."""
        began = time.monotonic()
        for daemon in self.daemons:
            daemon.start()
        interactive = self.console.is_terminal
        shown: dict[str, str] = {}
        with Live(console=self.console, transient=True, auto_refresh=False) if interactive else _nothing() as live:
            while time.monotonic() - began < LIVE_WITHIN_S:
                statuses = await self.statuses()
                if live is not None:
                    live.update(screen.table(self.names, statuses, time.monotonic() - began), refresh=True)
                else:
                    self.say_changes(statuses, shown)
                if screen.state_of(statuses[0]) == "live":
                    return True
                if not all(daemon.running for daemon in self.daemons):
                    return False
                await asyncio.sleep(LOOK_S)
        return False

    def say_changes(self, statuses: list[screen.Status], shown: dict[str, str]) -> None:
        for name, status in zip(self.names, statuses, strict=True):
            text = screen.line(name, status, statuses[0])
            if shown.get(name) != text:
                shown[name] = text
                # The words of a rank have brackets of their own.
                self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def explain_failure(self) -> None:
        for daemon in self.daemons:
            ended = "" if daemon.running else f" (ended, exit status {daemon.returncode})"
            self.console.rule(f"the end of {daemon.spark.name}'s journal{ended}")
            self.console.print("\n".join(daemon.journal()[-20:]), markup=False, highlight=False, soft_wrap=True)

    async def ask(self) -> bool:
        leader = self.daemons[0]
        live_line = screen.live_line(leader.journal())
        if live_line is None:
            self.console.print("the LIVE line is missing from spark-1's journal", style="red")
            return False
        self.console.print(live_line, style="bold green")
        self.console.print("\n$ curl http://127.0.0.1:8888/v1/models", style="bold")
        reply = await leader.spark.http("GET", "http://127.0.0.1:8888/v1/models")
        self.console.print_json(reply.text)
        model = json.loads(reply.body)["data"][0]["id"]
        self.console.print(f"\n$ ./dev demo ask {json.dumps(QUESTION)}", style="bold")
        self.console.print("(the stand-in's words; each needed a turn of every rank)", style="dim")
        question = str(Path(__file__).with_name("question.py"))
        argv = [sys.executable, question, "http://127.0.0.1:8888", model, QUESTION]
        if await self.program(argv) != 0:
            return False
        self.console.print("\n$ glm-spark status", style="bold")
        return await self.program([str(DAEMON), "status"]) == 0

    async def program(self, argv: list[str]) -> int:
        """Runs a program on spark-1 with this terminal; its exit status."""
        sys.stdout.flush()
        process = self.sparks[0].popen(argv)
        return await asyncio.to_thread(process.wait)

    async def stay(self) -> None:
        """Says what changes, and starts a daemon that ended again, as systemd would."""
        shown: dict[str, str] = {}
        ended: dict[str, float] = {}
        for name, status in zip(self.names, statuses := await self.statuses(), strict=True):
            shown[name] = screen.line(name, status, statuses[0])
        while True:
            await asyncio.sleep(LOOK_S)
            for daemon in self.daemons:
                if not daemon.running:
                    since = ended.setdefault(daemon.spark.name, time.monotonic())
                    if time.monotonic() - since >= RESTART_S:
                        del ended[daemon.spark.name]
                        self.console.print(f"{daemon.spark.name}: its daemon is started again")
                        daemon.start()
            self.say_changes(await self.statuses(), shown)

    async def end(self) -> None:
        for daemon in self.daemons:
            daemon.thaw()
            daemon.signal(signal.SIGTERM)
        for daemon in self.daemons:
            try:
                if daemon.process is not None:
                    await daemon.exit_status(END_WITHIN_S)
            except NotSeenError as error:
                self.console.print(f"{error}\nit is ended by force", markup=False, soft_wrap=True)
            daemon.close()


@contextlib.contextmanager
def _nothing() -> Any:
    yield None


async def _status(daemon: Daemon) -> screen.Status:
    """Its status, None while it does not answer. Never waits long: a Spark may be frozen."""
    try:
        async with asyncio.timeout(0.5):
            return await daemon.status()
    except (aiohttp.ClientError, OSError, TimeoutError, NotSeenError):
        return None


@contextlib.asynccontextmanager
async def _interruptible() -> AsyncIterator[None]:
    """Ctrl-C, SIGTERM and a closed terminal end what stands below, once."""
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    asked = False

    def stop() -> None:
        nonlocal asked
        if not asked:
            asked = True
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop)
    try:
        yield
    except asyncio.CancelledError:
        if not asked:
            raise
        task.uncancel()


async def perform(count: int, *, once: bool) -> int:
    """The exit status of the demo."""
    console = Console(highlight=False)
    config = {"stop": {"drain_seconds": 2.0, "kill_seconds": 2.0}}
    status = 130
    with Sparks(count, config=config, standin=STANDIN) as sparks:
        show = Show(sparks, console)
        try:
            async with _interruptible():
                if not once:
                    record.write(_record(sparks))
                console.print(
                    f"{count} Sparks on this machine, cabled, one config file ({sparks.config_file}), "
                    "a stand-in for the engine",
                    soft_wrap=True,
                )
                status = await _act(show, once)
        finally:
            console.print("\nstopping")
            await show.end()
            if not once:
                record.FILE.unlink(missing_ok=True)
    console.print("everything the demo made is gone")
    return 0 if status == 130 else status


async def _act(show: Show, once: bool) -> int:
    if not await show.go_live():
        show.explain_failure()
        ended = [daemon.spark.name for daemon in show.daemons if not daemon.running]
        what = f"the daemon of {' and '.join(ended)} ended" if ended else f"not live in {LIVE_WITHIN_S:.0f} s"
        show.console.print(f"the set did not go live: {what}", style="red")
        return 1
    if not await show.ask():
        show.explain_failure()
        return 1
    if once:
        return 0
    show.console.print("\nFrom another terminal, in this directory:", style="bold")
    for command, what in screen.next_things(len(show.names)):
        show.console.print(f"  {command:<36} {what}", soft_wrap=True)
    show.console.print("\nCtrl-C ends the demo and removes everything it made. What happens shows here:\n")
    await show.stay()
    return 0


def _record(sparks: Sparks) -> record.Record:
    return record.Record(
        init=enclosure.host_pid(),
        mark=enclosure.mark(),
        directory=str(sparks.config_file.parent),
        room=sparks.room.pid,
        names=tuple(spark.name for spark in sparks),
        holders=tuple(spark.holder.pid for spark in sparks),
        count=len(sparks),
    )
