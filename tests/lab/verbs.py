"""An RDMA exchange between two Sparks with the distribution's own tool: the lab's proof of a rail."""

from __future__ import annotations

import time
from dataclasses import dataclass

from .spark import Spark
from .topology import Function


@dataclass(frozen=True)
class Exchange:
    """What ibv_rc_pingpong said at the connecting end; `seconds` is its wall time, start included."""

    ok: bool
    text: str
    seconds: float


def pingpong(
    near: Spark, a: Function, far: Spark, b: Function, *, messages: int = 100, size: int = 4096, within: float = 20.0
) -> Exchange:
    """RC messages from `a` on `near` to `b` on `far` with the GIDs that hold their IPv4 addresses."""
    gids = (near.await_gid(a.device, near.address(a)), far.await_gid(b.device, far.address(b)))
    common = f"-n {messages} -s {size} -m 4096"
    listen = f"timeout -k 1 {within + 10} ibv_rc_pingpong -d {b.device} -g {gids[1]} {common}"
    server = far.start_command(listen)
    _await_listener(far, 18515)
    start = time.monotonic()
    connect = f"timeout -k 1 {within} ibv_rc_pingpong -d {a.device} -g {gids[0]} {common} {far.address(b)}"
    done = near.run(connect, within + 30, check=False)
    seconds = time.monotonic() - start
    if done.status:
        far.run("pkill -x ibv_rc_pingpong", check=False)
    served = server.wait(within + 30)
    return Exchange(
        done.status == 0 and served.status == 0, done.stdout + done.stderr + served.stdout + served.stderr, seconds
    )


def _await_listener(spark: Spark, port: int, within: float = 20.0) -> None:
    end = time.monotonic() + within
    while not spark.out(f"ss -Hltn sport = :{port}"):
        if time.monotonic() > end:
            raise AssertionError(f"{spark.name}: nothing listens on {port} within {within:.0f} s")
        time.sleep(0.1)
