"""The set as any Spark can tell it: the body of /v1/status."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from glm_spark.finding import Finding

LeaderState = Literal["waiting", "preparing", "loading", "verifying", "live", "recovering", "stopping", "failed"]
WorkerState = Literal["armed", "preparing", "running", "stopping", "failed"]
# How one rank is: none, its process is there and loads, it serves or follows, it is being ended, it ended.
RankState = Literal["none", "loading", "ready", "stopping", "ended", "unknown"]
WeightsPhase = Literal[
    "idle",
    "verifying",
    "fetching",
    "waiting",
    "receiving",
    "sending",
    "exporting",
    "loading",
    "complete",
    "failed",
]


class Told(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ApiStatus(Told):
    url: str
    model: str
    max_tokens: int


class MemoryStatus(Told):
    available_gib: float
    total_gib: float


class WeightsStatus(Told):
    """How the weights of one Spark are, or the engine's image where it is handed over.

    `done` of `total` bytes in this phase, `rate` in bytes a second.
    """

    phase: WeightsPhase = "idle"
    done: int = 0
    total: int = 0
    rate: float | None = None
    finding: Finding | None = None  # why they are not complete

    @property
    def seconds_left(self) -> float | None:
        return (self.total - self.done) / self.rate if self.rate and self.total >= self.done else None


class ServedStatus(Told):
    """What the set serves, pinned: "OWNER/NAME@REVISION", or the directory that is served as it is."""

    checkpoint: str
    drafter: str = ""
    image: str = ""


class NodeStatus(Told):
    name: str
    rank: int
    role: Literal["leader", "worker"]
    address: str
    session: Literal["up", "down", "unknown"]
    boot_id: str = ""
    state: str = "unknown"
    rank_state: RankState = "unknown"
    phase: str = ""  # what its rank does while loading
    phase_since: float | None = None  # UNIX seconds
    pid: int | None = None
    memory: MemoryStatus | None = None
    weights: WeightsStatus | None = None
    handover: WeightsStatus | None = None  # of the engine's image, while it is on its way
    findings: tuple[Finding, ...] = ()


class RailEnd(Told):
    netdev: str
    device: str | None
    gid_index: int | None
    address: str
    mtu: int | None


class RailStatus(Told):
    a: RailEnd
    b: RailEnd
    state: Literal["ok", "down", "unknown"]


class LinkStatus(Told):
    a: str
    b: str
    rails: tuple[RailStatus, ...]


class EngineStatus(Told):
    version: str = ""
    context: int = 0  # asked for
    parallel: int = 1
    served_context: int | None = None
    phase: str = ""
    phase_since: float | None = None
    estimate_gib: float | None = None
    tokens_per_second: float | None = None
    iteration_s: float | None = None
    streams: dict[str, int] | None = None
    pool_tokens: int | None = None
    pool_free_tokens: int | None = None


class Status(Told):
    """`since` in UNIX seconds; `reason` is why the set is not live, None while it is."""

    cluster: str
    node: str  # who answers
    role: Literal["leader", "worker"]
    state: str
    ready: bool
    degraded: tuple[str, ...] = ()
    since: float
    reason: Finding | None = None
    generation: int = 0
    version: str
    api: ApiStatus
    nodes: tuple[NodeStatus, ...] = ()
    links: tuple[LinkStatus, ...] = ()
    engine: EngineStatus = EngineStatus()
    served: ServedStatus | None = None
