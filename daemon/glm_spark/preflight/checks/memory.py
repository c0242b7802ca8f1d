"""Is there as much memory as the engine is going to ask for?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from glm_spark.config.model import Config
from glm_spark.finding import Finding, Severity
from glm_spark.host.memory import Memory, look
from glm_spark.preflight import holders
from glm_spark.preflight.context import Check, Context

MEMINFO = Path("/proc/meminfo")
_GIB = 1 << 30
_WORTH_NAMING = 0.5 * _GIB


def run(context: Context) -> Iterator[Finding]:
    memory = look(MEMINFO)
    if memory is None:
        raise OSError(f"{MEMINFO} has no MemAvailable")
    want, needed = context.config.memory.want_available_gib, context.estimate_gib or 0.0
    if memory.available >= max(want, needed):
        yield from _crowded(context, memory)
        return
    biggest = [holder for holder in holders.by_memory(3) if holder.rss >= _WORTH_NAMING]
    ours = [holder for holder in biggest if holder.cluster == context.config.cluster.name]
    if ours and context.moment == "check":
        yield context.finding(
            "memory.in-use",
            Severity.NOTE,
            "memory",
            measured=f"{memory.available:.1f} GiB of {memory.total:.1f} available while this set's rank runs "
            f"(pid {ours[0].pid})",
            wanted=f"{want:g} GiB before the next start",
            fix="The rank gives it back when it ends.",
        )
        return
    held = ", ".join(f"{holder.program} (pid {holder.pid}) {holder.rss / _GIB:.1f} GiB" for holder in biggest)
    told = f"only {memory.available:.1f} GiB memory available of {memory.total:.1f}"
    told += f"; the most is held by {held}" if held else ""
    yield _refused(context, told, needed) if memory.available < needed else _low(context, told, want)


def _low(context: Context, measured: str, want: float) -> Finding:
    return context.finding(
        "memory.low",
        Severity.WARNING,
        "memory",
        measured=measured,
        wanted=f"{want:g} GiB (memory.want_available_gib)",
        fix="End what is not needed (the desktop: systemctl isolate multi-user.target), and wait up to a minute after "
        "a rank has ended; or lower engine.context.",
    )


def _refused(context: Context, measured: str, needed: float) -> Finding:
    """The engine would refuse as well, after minutes, or take what another program lives on."""
    return context.finding(
        "memory.below-estimate",
        Severity.ERROR,
        "memory",
        measured=measured,
        wanted=f"{needed:.1f} GiB, which the engine said it needs when it was last started with these settings",
        fix="End what is not needed (the desktop: systemctl isolate multi-user.target) or lower engine.context. The "
        "start is tried again as soon as there is enough.",
    )


def _crowded(context: Context, memory: Memory) -> Iterator[Finding]:
    """Enough is available, but so much of it is page cache that the GPU driver may not get it."""
    wanted = driver_wants(context.config, context.estimate_gib)
    if context.moment != "start" or memory.free >= wanted:
        return
    yield context.finding(
        "memory.page-cache",
        Severity.WARNING,
        "memory",
        measured=f"{memory.available:.1f} GiB available, but only {memory.free:.1f} GiB free: the page cache holds "
        f"{memory.cached:.1f} GiB, and the weights' part of it was given back already",
        wanted=f"{wanted:.1f} GiB free, or the engine may start with fewer slots",
        fix="End what reads or copies large files; as root: sync; echo 1 > /proc/sys/vm/drop_caches.",
    )


def driver_wants(config: Config, estimate_gib: float | None) -> float:
    """GiB that should be free, not only available: the engine's own estimate, before the first start what is wanted
    less the reserve that the engine leaves to everything else."""
    if estimate_gib is not None:
        return estimate_gib
    return max(0.0, config.memory.want_available_gib - config.memory_reserve_gib)


CHECK = Check(
    id="memory",
    measures="MemAvailable, MemFree and which programs hold the most",
    wants="memory.want_available_gib before a start, and no less than the engine's own estimate",
    advice="End what is not needed; the engine itself refuses when it is too little.",
    run=run,
)
