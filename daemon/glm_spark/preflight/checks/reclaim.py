"""What else acts when memory runs short: swap, zram, and programs that end others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from glm_spark.finding import Finding, Severity
from glm_spark.preflight.context import Check, Context

PROC = Path("/proc")
USED_GIB = 1.0
_KIB_PER_GIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Swap:
    name: str
    zram: bool
    size: float  # GiB
    used: float


# By the name in /proc/PID/comm. By default earlyoom acts below 10 % available, nohang below 5 %: a live set leaves 6 %.
_ENDERS = {
    "earlyoom": Severity.WARNING,
    "nohang": Severity.WARNING,
    "systemd-oomd": Severity.NOTE,
}


def swaps(text: str) -> list[Swap]:
    """/proc/swaps as the kernel prints it. Pure."""
    found = []
    for line in text.splitlines()[1:]:
        words = line.split()
        if len(words) >= 4 and words[2].isdigit() and words[3].isdigit():
            zram = words[0].rpartition("/")[2].startswith("zram")
            found.append(Swap(words[0], zram, int(words[2]) / _KIB_PER_GIB, int(words[3]) / _KIB_PER_GIB))
    return found


def enders() -> list[tuple[str, int]]:
    """(name, pid) of the programs that end others when memory runs short."""
    found = []
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                name = (entry / "comm").read_text(errors="replace").strip()
                if name in _ENDERS:
                    found.append((name, int(entry.name)))
    return found


def run(context: Context) -> Iterator[Finding]:
    text = ""
    with contextlib.suppress(OSError):
        text = (PROC / "swaps").read_text(errors="replace")
    for swap in swaps(text):
        yield _swap(context, swap)
    for name, pid in enders():
        yield _ender(context, name, pid)


def _swap(context: Context, swap: Swap) -> Finding:
    busy = swap.used >= USED_GIB
    kind = "zram" if swap.zram else "swap"
    why = "compressed memory is taken from the same memory" if swap.zram else "the GPU's memory cannot be swapped"
    return context.finding(
        f"memory.{kind}",
        Severity.WARNING if busy else Severity.NOTE,
        f"{kind} {swap.name}",
        measured=f"{swap.used:.1f} of {swap.size:.1f} GiB in use",
        wanted=f"no {kind} in use: {why}, and the rest of this Spark stalls instead",
        fix=f"As root: swapoff {swap.name}; take it out of the system's configuration to keep it off.",
    )


def _ender(context: Context, name: str, pid: int) -> Finding:
    harmful = _ENDERS[name] is Severity.WARNING
    unit = f"{name}.service"
    return context.finding(
        "memory.ender",
        _ENDERS[name],
        f"{name} (pid {pid})",
        measured="it ends the largest program when memory runs short"
        + (", and a live set leaves less than it wants" if harmful else ""),
        wanted="the rank ended by glm-spark alone (memory.floor_gib)",
        fix=f"systemctl disable --now {unit}, or have it spare this set."
        if harmful
        else f"See oomctl; {unit} may stay.",
    )


CHECK = Check(
    id="reclaim",
    measures="/proc/swaps, and whether earlyoom, nohang or systemd-oomd run",
    wants="no swap in use and nothing that ends ranks",
    advice="Turn swap off and let glm-spark end its ranks by itself.",
    run=run,
)
