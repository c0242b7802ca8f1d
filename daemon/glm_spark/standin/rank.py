"""One rank's life: its start, then serving (rank 0) or following (the others)."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Mapping

from glm_spark.standin.console import say
from glm_spark.standin.failures import RoceError, leave
from glm_spark.standin.faults import FaultSource
from glm_spark.standin.options import ServeOptions
from glm_spark.standin.phases import Start, run_phases
from glm_spark.standin.rendezvous import Hub, Spoke
from glm_spark.standin.ring import Head, watch_peers
from glm_spark.standin.rounds import Scheduler
from glm_spark.standin.web import Web

FLUSH_PIECE = (0, 0, 1)


class Stopped(Exception):
    """SIGTERM or SIGINT while serving."""


async def live(options: ServeOptions, faults: FaultSource, environment: Mapping[str, str]) -> None:
    """Returns only on rank 0, after SIGTERM or SIGINT; every other end is an exception."""
    spoke = Spoke(options.tp, options.rank, options.master, options.master_port)
    hub = Hub(options.tp, options.master_port)
    start = Start(options, faults, environment, spoke if options.rank else hub)
    try:
        await run_phases(start)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(crash_later(faults))
            if start.member:
                await start.member.follow()
            else:
                await serve(start, hub, tasks)
    except* Stopped:
        pass
    finally:
        start.found.close()


async def serve(start: Start, hub: Hub, tasks: asyncio.TaskGroup) -> None:
    """Serves HTTP until a signal. Raises OSError when the port is taken, Stopped at the end."""
    options, faults = start.options, start.faults
    head = Head(hub, faults, start.mesh)
    slots = faults.now().slots or options.slots
    scheduler = Scheduler(head, faults, slots, start.context, start.environment)
    web = Web(options, scheduler, faults)
    await web.open()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    if not faults.now().deaf:
        loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, stop.set)
    decoding = tasks.create_task(scheduler.run())
    tasks.create_task(scheduler.watch_steps())
    tasks.create_task(watch_peers(hub, faults))
    await stop.wait()
    web.cut()
    decoding.cancel()
    if options.spill_gib > 0:
        await flush(head, faults, float(start.environment.get("TF_SPILL_FLUSH_S", "60")))
    raise Stopped


async def flush(head: Head, faults: FaultSource, limit_s: float) -> None:
    """The spill tier's last write, in which every rank takes part."""
    began = time.monotonic()
    how = "done"
    try:
        async with asyncio.timeout(limit_s):
            await head.round([FLUSH_PIECE], more=False)
            await asyncio.sleep(faults.now().flush_s)
    except (TimeoutError, RoceError):
        how = "not finished"
    say(f"spill: shutdown flush {how} in {time.monotonic() - began:.1f}s")


async def crash_later(faults: FaultSource) -> None:
    seconds = faults.now().crash_after_s
    if seconds:
        await asyncio.sleep(seconds)
        leave(faults.now().exit_code)
