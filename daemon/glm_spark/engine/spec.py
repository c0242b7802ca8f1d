"""What a start of the set agrees on, and what one rank is started with."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Spec(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Link(Spec):
    """The rails between two Sparks as (a's address, b's address) pairs, in the one order all ranks use."""

    a: str
    b: str
    rails: tuple[tuple[str, str], ...]


class Variant(Spec):
    """How this start departs from the configuration; the same on every rank.

    `context` is a smaller window in tokens that the engine itself proposed; `gentle` turns off HC_SPLIT and
    PREFILL_OVERLAP, which the recipe names as the remedy for a failing first NCCL connection.
    """

    context: int | None = Field(default=None, ge=1)
    gentle: bool = False


class LocalRail(Spec):
    """One rail as the Spark at one end sees it. `device` and `gid_index` are absent with transport "socket"."""

    peer: str
    netdev: str
    address: str
    peer_address: str
    mtu: int
    device: str | None = None
    gid_index: int | None = None


class RankSpec(Spec):
    """One rank, ready to be started: what runs, with what environment, under which name.

    `environment` is the whole of what the engine is told; the runtime adds only what a process needs to live
    (PATH, HOME, LANG). `marks` are the three variables by which leftovers of an earlier life are found.
    """

    cluster: str
    node: str
    rank: int
    generation: int
    argv: tuple[str, ...]
    environment: dict[str, str]

    @property
    def marks(self) -> dict[str, str]:
        return {
            "GLM_SPARK_CLUSTER": self.cluster,
            "GLM_SPARK_NODE": self.node,
            "GLM_SPARK_GENERATION": str(self.generation),
        }
