"""What a transfer's process is told and what it tells: one JSON line in, JSON lines out."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from glm_spark.finding import Finding
from glm_spark.status import WeightsPhase
from glm_spark.weights.look import Store
from glm_spark.weights.pins import Pin


class _Told(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Hub(_Told):
    """Where to fetch from. `endpoint` "" is the client's own. `token` is the secret itself: it goes over a pipe."""

    endpoint: str = ""
    token: str = ""


class Door(_Told):
    """How two Sparks meet for a transfer. `key` is made from the cluster's token for this purpose alone (hex).

    The receiver listens on `addresses` (address, netdev); the sender dials `address` over `netdev` from `source`.
    """

    key: str
    cluster: str
    leader: str
    worker: str
    port: int
    connections: int = 4
    addresses: tuple[tuple[str, str], ...] = ()
    address: str = ""
    netdev: str = ""
    source: str = ""
    rate: int = 0  # bytes a second at most, all connections together; 0: no limit


class ImageJob(_Told):
    """The engine's image, which goes the same way as weights. `digest` is what engine.image pins (64 digits).

    `tool` is podman with its own options, run in `environment`; it is ended when it reads nothing for `silence`
    seconds. `cache` is model.cache, `images` the directory with the records of images that were handed over. A send
    with a `refusal` tells the worker why it gets nothing.
    """

    digest: str = Field(pattern=r"^[0-9a-f]{64}$")
    reference: str
    cache: str
    images: str
    tool: tuple[str, ...]
    environment: dict[str, str]
    silence: float
    refusal: str = ""


class Job(_Told):
    """verify: read what is there and not proven. fetch, receive: that, then bring what is missing. send: serve one
    worker. export: the leader's image onto the disk. `again` forgets what was verified before."""

    verb: Literal["verify", "fetch", "receive", "send", "export"]
    node: str
    cache: str
    state: str
    roots: tuple[str, ...] = ()
    pins: tuple[Pin, ...]
    keep_free: int = 0  # bytes of the disk that are left alone
    again: bool = False
    derive: bool = False
    accept_noncommercial: bool = False
    hub: Hub = Hub()
    door: Door | None = None
    image: ImageJob | None = None

    @property
    def store(self) -> Store:
        return Store(self.node, self.cache, Path(self.state), self.roots, self.derive)


class Word(_Told):
    """One line of a transfer's process. `done` of `total` bytes in this phase; `ended` is the last word, with what
    stood in the way (nothing: it is complete). `moved` counts bytes that came over the network in this life."""

    phase: WeightsPhase = "idle"
    done: int = 0
    total: int = 0
    moved: int = 0
    ended: bool = False
    findings: tuple[Finding, ...] = ()
