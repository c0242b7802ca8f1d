"""What the engine's log lines mean: phases, figures, the transport in use, and faults as findings.

The patterns are TensorFold v0.6.0's own words as the MiaAI recipe v1.10 runs it, and NCCL's; they are matched, never
paraphrased. `read` is pure and takes any text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from glm_spark.engine.faults import FAULTS
from glm_spark.finding import Finding

PhaseName = Literal["starting", "rendezvous", "weights", "waiting-for-ranks", "kernels", "warm-up", "ready"]


@dataclass(frozen=True, slots=True)
class Phase:
    """The rank entered a phase of its start."""

    name: PhaseName


@dataclass(frozen=True, slots=True)
class Estimate:
    """The memory the rank will take, and the memory it may take, in GiB."""

    gib: float
    budget_gib: float | None


@dataclass(frozen=True, slots=True)
class Window:
    """Prompt and reply together, in tokens, that the rank has room for; of a refusal too (0: nothing fits)."""

    tokens: int


@dataclass(frozen=True, slots=True)
class Transport:
    """The network NCCL took. "Socket" with RoCE asked for means about half the speed."""

    name: Literal["IB", "Socket"]


@dataclass(frozen=True, slots=True)
class Gathers:
    """Rank 0's small all-gathers go over these RoCE devices."""

    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Version:
    text: str


@dataclass(frozen=True, slots=True)
class Serving:
    """Rank 0 is about to serve: the window in tokens and how long the load took, in seconds."""

    context: int | None
    loaded_s: float | None


@dataclass(frozen=True, slots=True)
class Following:
    """A rank above 0 is ready."""

    rank: int
    ready_s: float


@dataclass(frozen=True, slots=True)
class WaitingFor:
    """This rank is done early and waits for another one. Repeated every minute: no progress."""

    rank: int


@dataclass(frozen=True, slots=True)
class Fault:
    finding: Finding


Event = Phase | Estimate | Window | Transport | Gathers | Version | Serving | Following | WaitingFor | Fault


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of line: how it reads, and what follows from it."""

    pattern: re.Pattern[str]
    events: Callable[[re.Match[str]], tuple[Event, ...]]


def _digits(text: str) -> int:
    return int(text[:12])  # a line may hold a number of any length


def _serving(match: re.Match[str]) -> tuple[Event, ...]:
    context = re.search(r"context: ([0-9]+)", match.string)
    loaded = re.search(r"loaded in ([0-9]+(?:\.[0-9]+)?)s", match.string)
    served = Serving(_digits(context[1]) if context else None, float(loaded[1][:16]) if loaded else None)
    return (Phase("ready"), served)


def _row(pattern: str, events: Callable[[re.Match[str]], tuple[Event, ...]]) -> Row:
    return Row(re.compile(pattern, re.ASCII), events)


# In the order of a start.
ROWS: tuple[Row, ...] = (
    _row(r"^tensorfold ([0-9][0-9A-Za-z.+-]{0,30})$", lambda m: (Version(m[1]),)),
    _row(r"EXL3 support is experimental:", lambda _: (Phase("starting"),)),
    _row(r"loading .{1,300}? on CUDA, rank [0-9]+ of [0-9]+", lambda _: (Phase("rendezvous"),)),
    _row(r"NCCL INFO .{0,200}\bUsing network (IB|Socket)\b", lambda m: (Transport(_network(m[1])),)),
    _row(r"NCCL INFO .{0,200}\bNET/(IB|Socket) ?: Using\b", lambda m: (Transport(_network(m[1])),)),
    _row(r"\bvia NET/(IB|Socket)/[0-9]", lambda m: (Transport(_network(m[1])),)),
    _row(
        r"all-gathers up to [0-9]+ KiB over RoCE \(([^;)]{1,300})",
        lambda m: (Gathers(tuple(name.strip() for name in m[1].split(","))),),
    ),
    _row(
        r"startup estimate ([0-9]{1,9}(?:\.[0-9]{1,9})?) GiB(?: within ([0-9]{1,9}(?:\.[0-9]{1,9})?) GiB)?",
        lambda m: (Phase("weights"), Estimate(float(m[1]), float(m[2]) if m[2] else None)),
    ),
    _row(r"allocated prompt/reply window ([0-9]+)", lambda m: (Window(_digits(m[1])),)),
    _row(
        r"largest fitting prompt-plus-reply window: ([0-9]+) tokens",
        lambda m: (Window(_digits(m[1])),),
    ),
    _row(
        r"rank [0-9]+ finished loading; waiting for rank ([0-9]+)",
        lambda m: (Phase("waiting-for-ranks"), WaitingFor(_digits(m[1]))),
    ),
    _row(r"building CUDA extension \S", lambda _: (Phase("kernels"),)),
    _row(r"CUDA extension \S+ waits on the build lock", lambda _: (Phase("kernels"),)),
    _row(r"--parallel [0-9]+: up to [0-9]+ requests decode together", lambda _: (Phase("warm-up"),)),
    _row(
        r"rank ([0-9]+) ready in ([0-9]{1,9}(?:\.[0-9]{1,9})?)s, following rank 0",
        lambda m: (Phase("ready"), Following(_digits(m[1]), float(m[2]))),
    ),
    _row(r"serving .{1,300}? at http://\S+ on CUDA, rank 0 of [0-9]+", _serving),
)


def _network(name: str) -> Literal["IB", "Socket"]:
    return "IB" if name == "IB" else "Socket"


def read(line: str, rank: int, node: str) -> list[Event]:
    """Everything one line says. `rank` and `node` name where it came from in the findings."""
    events: list[Event] = []
    for row in ROWS:
        if match := row.pattern.search(line):
            events += row.events(match)
    events += [Fault(row.finding(match, rank, node)) for row in FAULTS if (match := row.match(line))]
    return events
