"""What the checks look at, and what a check is."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from glm_spark.config.model import Config, Node
from glm_spark.engine.spec import Link
from glm_spark.fabric.inventory import Inventory
from glm_spark.finding import Finding, Severity

Moment = Literal["check", "start"]  # asked for by a person, maybe beside a running set; or just before a rank starts


@dataclass(frozen=True, slots=True)
class Context:
    """One Spark at one moment.

    `inventory` is None when the network could not be read; `reader` are the watcher's findings about that.
    `token` is the cluster token where the caller has read it already. `peers` are other Sparks' inventories and
    `links` the rails found, as far as they are known. `environ` is the daemon's environment. `estimate_gib` is what
    the engine said it needs when it was last started here with the same settings, None when it never was. `heard` says
    of an address whether a path probe came from it within the last seconds. `alone` is true without a daemon, under
    the limits of whoever asks.
    """

    config: Config
    me: str
    moment: Moment = "check"
    inventory: Inventory | None = None
    token: bytes | None = None
    peers: Mapping[str, Inventory] = field(default_factory=dict)
    links: tuple[Link, ...] = ()
    reader: tuple[Finding, ...] = ()
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    estimate_gib: float | None = None
    heard: Callable[[str], bool] = lambda _address: False
    alone: bool = False

    @property
    def leads(self) -> bool:
        return self.me == self.config.leader.name

    @property
    def others(self) -> tuple[Node, ...]:
        """The other Sparks whose address on the cable is in the file."""
        return tuple(node for node in self.config.node if node.name != self.me and node.address)

    def finding(
        self, code: str, severity: Severity, subject: str, *, measured: str = "", wanted: str = "", fix: str = ""
    ) -> Finding:
        """A Finding about this Spark."""
        return Finding(
            code=code,
            severity=severity,
            node=self.me,
            subject=subject,
            measured=measured,
            wanted=wanted,
            fix=fix,
        )


@dataclass(frozen=True, slots=True)
class Check:
    """A check: what it measures, what it wants and what to do, for people; and how.

    `run` may be plain, and is then run in a thread of its own, since a disk or a driver may not answer; or a
    coroutine function. `deadline` is in seconds.
    """

    id: str
    measures: str
    wants: str
    advice: str
    run: Callable[[Context], Iterable[Finding]] | Callable[[Context], Awaitable[Iterable[Finding]]]
    deadline: float = 5.0
