"""What the HTTP rooms need of the daemon, so that they can be built and tested without it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from glm_spark.finding import Finding
from glm_spark.status import Status


@dataclass(frozen=True, slots=True)
class Readiness:
    """The answer to "may a request come?": `state` and `code` go into /readyz, `reason` into a 503's message."""

    live: bool
    state: str
    code: str
    reason: Finding | None


@dataclass(frozen=True, slots=True)
class Refused:
    """A commanded restart or stop that was not begun, and why."""

    findings: tuple[Finding, ...]


class Source(Protocol):
    """The daemon, as /v1/* asks it."""

    def readiness(self) -> Readiness: ...

    def status(self) -> Status: ...

    def restarts(self) -> int:
        """Starts of the whole set in this daemon's life, the first not counted."""
        ...

    def incidents(self) -> list[dict[str, Any]]: ...

    async def plan(self) -> dict[str, Any]:
        """The links found and every rank's argv and environment; nothing is started."""
        ...

    async def check(self) -> dict[str, Any]:
        """Preflight on every Spark that answers."""
        ...

    async def restart(self) -> Refused | None:
        """Begin a stop and a start of the whole set; None when begun."""
        ...

    async def sync(self) -> Refused | None:
        """Begin to bring every Spark's weights, also while the set is stopped; None when begun."""
        ...

    async def stop(self) -> Refused | None:
        """Begin a stop of the whole set, which then stays stopped until `restart`; None when begun."""
        ...
