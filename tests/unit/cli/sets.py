"""Sets of Sparks in every state."""

from __future__ import annotations

from typing import Any, Literal

from glm_spark.finding import Finding, Severity
from glm_spark.status import (
    ApiStatus,
    EngineStatus,
    LinkStatus,
    MemoryStatus,
    NodeStatus,
    RailEnd,
    RailStatus,
    RankState,
    Status,
)

NOW = 1_800_000_000.0

LOST = Finding(
    code="cluster.peer-lost",
    severity=Severity.ERROR,
    node="spark-2",
    subject="session",
    measured="no beat for 15.2 s",
    wanted="one every 0.5 s",
    fix="Start its daemon: systemctl start glm-spark on spark-2.",
)
UNUSED = Finding(
    code="fabric.netdev-unused",
    severity=Severity.WARNING,
    node="spark-2",
    subject="enP2p1s0f1np1",
    measured="no address",
    wanted="one in a subnet of its own",
    fix="Give it 192.168.101.2/24.",
)

STOPPED = Finding(
    code="set.stopped",
    severity=Severity.NOTE,
    node="spark-1",
    subject="the set",
    measured="stopped by the owner",
    fix="glm-spark restart starts it again.",
)


def rail(a: str, b: str, net: int, state: Literal["ok", "down", "unknown"] = "ok", mtu: int = 9000) -> RailStatus:
    return RailStatus(
        a=RailEnd(netdev=a, device=f"roce-{a}", gid_index=3, address=f"192.168.{net}.1", mtu=9000),
        b=RailEnd(netdev=b, device=f"roce-{b}", gid_index=4, address=f"192.168.{net}.2", mtu=mtu),
        state=state,
    )


LINK = LinkStatus(
    a="spark-1",
    b="spark-2",
    rails=(rail("enp1s0f0np0", "enp1s0f1np1", 100), rail("enP2p1s0f0np0", "enP2p1s0f1np1", 101)),
)


def spark(rank: int, rank_state: RankState = "none", **more: Any) -> NodeStatus:
    told: dict[str, Any] = {
        "name": f"spark-{rank + 1}",
        "rank": rank,
        "role": "worker" if rank else "leader",
        "address": f"192.168.100.{rank + 1}",
        "session": "up",
        "rank_state": rank_state,
        "pid": 4242 + rank if rank_state in ("loading", "ready", "stopping") else None,
        "memory": MemoryStatus(available_gib=7.0 + 3.5 * rank, total_gib=121.7),
    }
    return NodeStatus(**{**told, **more})


def status(state: str, *, ready: bool = False, seconds: float = 200, **more: Any) -> Status:
    told: dict[str, Any] = {
        "cluster": "glm",
        "node": "spark-1",
        "role": "leader",
        "state": state,
        "ready": ready,
        "since": NOW - seconds,
        "generation": 7,
        "version": "0.1.0",
        "api": ApiStatus(url="http://127.0.0.1:8888/v1", model="GLM-5.3-Flash-EXL3", max_tokens=32768),
        "nodes": (spark(0), spark(1)),
        "links": (LINK,),
        "engine": EngineStatus(context=1048576, parallel=1),
    }
    return Status(**{**told, **more})


def live(**more: Any) -> Status:
    engine = EngineStatus(
        context=1048576,
        parallel=4,
        served_context=1048576,
        tokens_per_second=54.23,
        streams={"decoding": 2, "prefilling": 1, "max": 4},
        pool_tokens=2922496,
        pool_free_tokens=2000000,
    )
    told: dict[str, Any] = {"ready": True, "seconds": 11_530, "engine": engine}
    return status("live", **{**told, "nodes": (spark(0, "ready"), spark(1, "ready")), **more})


def _loading() -> Status:
    nodes = (
        spark(0, "loading", phase="weights", phase_since=NOW - 72),
        spark(1, "loading", phase="kernels", phase_since=NOW - 48),
    )
    engine = EngineStatus(context=1048576, parallel=1, phase="weights", phase_since=NOW - 72, estimate_gib=88.09)
    return status("loading", nodes=nodes, engine=engine)


def _three() -> Status:
    links = (
        LINK,
        LinkStatus(a="spark-1", b="spark-3", rails=(rail("enp1s0f1np1", "enp1s0f0np0", 102),)),
        LinkStatus(a="spark-2", b="spark-3", rails=(rail("enp1s0f0np0", "enp1s0f1np1", 103, "down", 1500),)),
    )
    nodes = (spark(0, "ready"), spark(1, "ready"), spark(2, "ready"))
    return live(nodes=nodes, links=links, degraded=("engine.transport-socket", "fabric.netdev-unused", "x.y-z"))


EVERY = {
    "live": live(),
    "live-degraded": live(
        degraded=("engine.smaller-window", "fabric.netdev-unused"),
        nodes=(spark(0, "ready"), spark(1, "ready", findings=(UNUSED,))),
        engine=EngineStatus(context=1048576, parallel=1, served_context=524288, tokens_per_second=0.0),
    ),
    "live-suspect": live(ready=False, reason=LOST, seconds=2),
    "live-three": _three(),
    "waiting": status(
        "waiting",
        reason=LOST,
        nodes=(spark(0), spark(1, "unknown", session="down", memory=None)),
        links=(),
    ),
    "waiting-stopped": status(
        "waiting",
        seconds=60,
        reason=STOPPED,
        nodes=(spark(0), spark(1, "unknown", session="down", memory=None, findings=(UNUSED,))),
        links=(),
    ),
    "preparing": status("preparing", seconds=3, links=()),
    "loading": _loading(),
    "loading-one-late": status(
        "loading",
        nodes=(spark(0, "ready"), spark(1, "loading", phase="kernels", phase_since=NOW - 2400)),
        engine=EngineStatus(context=1048576, parallel=1, phase="kernels", phase_since=NOW - 2400),
    ),
    "verifying": status("verifying", seconds=1, nodes=(spark(0, "ready"), spark(1, "ready"))),
    "recovering": status(
        "recovering", seconds=4, reason=LOST, nodes=(spark(0, "stopping"), spark(1, "unknown", session="down"))
    ),
    "stopping": status("stopping", seconds=4, nodes=(spark(0, "stopping"), spark(1, "ready"))),
    "failed": status(
        "failed",
        seconds=90_061,
        reason=LOST.model_copy(
            update={
                "code": "engine.settings-differ",
                "subject": "rank 1",
                "measured": "the two ranks were started with different settings " + "(context, parallel) " * 6,
                "wanted": "one file for all",
                "fix": "Put the same config.toml on every Spark.",
            }
        ),
        nodes=(spark(0, "ended"), spark(1, "ended")),
    ),
    "unknown": status(
        "unknown",
        node="spark-2",
        role="worker",
        seconds=0,
        links=(),
        nodes=(spark(0, "unknown", session="unknown", memory=None), spark(1, session="down")),
    ),
}
