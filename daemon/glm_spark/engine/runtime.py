"""What a runtime does for a rank: start it, follow it, end it, and find what an earlier life left behind."""

from __future__ import annotations

import signal as signals
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from glm_spark.engine.spec import RankSpec
from glm_spark.finding import Finding


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended: an exit status, or the signal that ended it; neither where nobody could see it.

    `cause` says who or what ended it, in words, where that is known.
    """

    code: int | None
    signal: int | None
    cause: str = ""

    @property
    def killed(self) -> bool:
        """By SIGKILL: a container runtime tells of it as exit status 137."""
        return self.signal == signals.SIGKILL or self.code == 128 + signals.SIGKILL

    def __str__(self) -> str:
        cause = f" ({self.cause})" if self.cause else ""
        if self.signal is not None:
            return f"ended by {_signal_name(self.signal)}{cause or _MEANING.get(128 + self.signal, '')}"
        if self.code is not None:
            return f"ended with exit status {self.code}{cause or _MEANING.get(self.code, '')}"
        return f"ended, and how could not be seen{cause}"


# TensorFold's exit codes; above 128 a container runtime's way to tell of a signal.
_MEANING = {
    1: " (it refused, or failed with a traceback)",
    2: " (it rejects its command line)",
    134: " (abort)",
    137: " (killed: by a stop, or by the kernel for want of memory)",
    139: " (segmentation fault)",
    143: " (asked to end)",
}


def _signal_name(number: int) -> str:
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"


class StartFault(Exception):
    """A rank could not be started at all."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(str(finding))
        self.finding = finding


class Running(Protocol):
    """A rank that was started. Every method but the two waits returns at once and may be called at any time."""

    @property
    def pid(self) -> int: ...

    @property
    def lines(self) -> AsyncIterator[str]:
        """Its output, stdout and stderr together, line by line until the last holder of the pipe is gone."""
        ...

    async def wait(self) -> Exit:
        """Returns the moment the rank itself ended."""
        ...

    async def gone(self) -> None:
        """Returns when nothing that the rank started is left."""
        ...

    def terminate(self) -> None:
        """SIGTERM to the rank alone."""
        ...

    def kill(self) -> None:
        """End the rank and everything it started."""
        ...

    def dump(self) -> None:
        """SIGUSR1: the engine writes all its threads' stacks to its output and goes on."""
        ...


class Runtime(Protocol):
    async def start(self, spec: RankSpec) -> Running:
        """Raises StartFault when the rank cannot be started."""
        ...

    async def sweep(self, cluster: str, node: str) -> list[str]:
        """End what earlier lives of this Spark's daemon left; says what was ended, one text each."""
        ...
