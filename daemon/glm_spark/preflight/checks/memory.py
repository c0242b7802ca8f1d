"""Is there as much memory as the engine is going to ask for?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from glm_spark.finding import Finding, Severity
from glm_spark.preflight import holders
from glm_spark.preflight.context import Check, Context

MEMINFO = Path("/proc/meminfo")
_GIB = 1 << 30
_WORTH_NAMING = 0.5 * _GIB


def available() -> tuple[float, float]:
    """(available, total) in GiB, as the kernel estimates it (MemAvailable, MemTotal). Raises OSError, KeyError."""
    fields = dict(line.split(":", 1) for line in MEMINFO.read_text(encoding="ascii").splitlines())
    gib = {name: int(fields[name].split()[0]) * 1024 / _GIB for name in ("MemAvailable", "MemTotal")}
    return gib["MemAvailable"], gib["MemTotal"]


def run(context: Context) -> Iterator[Finding]:
    free, total = available()
    want = context.config.memory.want_available_gib
    if free >= want:
        return
    biggest = [holder for holder in holders.by_memory(3) if holder.rss >= _WORTH_NAMING]
    ours = [holder for holder in biggest if holder.cluster == context.config.cluster.name]
    if ours and context.moment == "check":
        yield context.finding(
            "memory.in-use",
            Severity.NOTE,
            "memory",
            measured=f"{free:.1f} GiB of {total:.1f} available while this set's rank runs (pid {ours[0].pid})",
            wanted=f"{want:g} GiB before the next start",
            fix="The rank gives it back when it ends.",
        )
        return
    held = ", ".join(f"{holder.program} (pid {holder.pid}) {holder.rss / _GIB:.1f} GiB" for holder in biggest)
    yield context.finding(
        "memory.low",
        Severity.WARNING,
        "memory",
        measured=f"only {free:.1f} GiB memory available of {total:.1f}"
        + (f"; the most is held by {held}" if held else ""),
        wanted=f"{want:g} GiB (memory.want_available_gib)",
        fix="End what is not needed (the desktop: systemctl isolate multi-user.target), and wait up to a minute after "
        "a rank has ended; or lower engine.context.",
    )


CHECK = Check(
    id="memory",
    measures="MemAvailable, and which programs hold the most",
    wants="memory.want_available_gib before a start",
    advice="End what is not needed; the engine itself refuses when it is too little.",
    run=run,
)
