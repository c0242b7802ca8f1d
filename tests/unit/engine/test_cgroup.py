"""Where the unit hands its control group over, a rank lives in one of its own and one write ends all of it.

Real groups of the kernel's unified hierarchy; systemd's mark of delegation is set by hand.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from glm_spark.engine import cgroup, processes
from glm_spark.engine.spec import RankSpec

Until = Callable[[Callable[[], object]], Awaitable[None]]

# A family that no descent and no mark would find any more: adopted away by another subreaper, without an environment.
RANK = """
import ctypes, os, shutil, signal, sys, time
sleep = shutil.which("sleep")
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve(sleep, ["sleep", sys.argv[1]], {})
    os._exit(0)
os.wait()
print("family", flush=True)
time.sleep(1000)
"""

DAEMON = """
import asyncio, os, signal, sys
from pathlib import Path
from glm_spark.engine import cgroup
from glm_spark.engine.process import ProcessRuntime
from glm_spark.engine.spec import RankSpec
Path(sys.argv[2], "cgroup.procs").write_text(str(os.getpid()))
async def main():
    cgroup.settle()
    rank = await ProcessRuntime().start(RankSpec.model_validate_json(sys.argv[1]))
    lines = rank.lines
    async for line in lines:
        if line == "family":
            break
    print(rank.pid, rank._keeper.pid, flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    rank.kill()
    await rank.gone()
    print("gone", flush=True)
asyncio.run(main())
"""


@pytest.fixture
def unit() -> Iterator[Path]:
    """A group as systemd delegates it."""
    here = cgroup.directory(Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text())
    assert here is not None, "this machine has no cgroup v2 hierarchy"
    if not os.access(here, os.W_OK):
        pytest.skip("only root may make a control group where systemd has handed none over")
    made = here / f"glm-spark-{uuid.uuid4().hex[:8]}.service"
    made.mkdir()
    os.setxattr(made, "user.delegate", b"1")
    yield made
    cgroup.kill(made)
    for _ in range(200):
        cgroup.remove(made)
        if not made.exists():
            return
        asyncio.run(asyncio.sleep(0.02))
    raise AssertionError(f"{made} is not empty")


def members(group: Path) -> list[int]:
    try:
        return [int(pid) for pid in (group / "cgroup.procs").read_text().split()]
    except OSError:
        return []


async def start(unit: Path, spec: RankSpec) -> tuple[asyncio.subprocess.Process, int, int]:
    daemon = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", DAEMON, spec.model_dump_json(), str(unit)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert daemon.stdout is not None
    async with asyncio.timeout(10):
        rank, keeper = (await daemon.stdout.readline()).split()
    return daemon, int(rank), int(keeper)


@pytest.fixture
def family(rank_of: Callable[..., RankSpec]) -> RankSpec:
    spec = rank_of(RANK)
    return spec.model_copy(update={"argv": (*spec.argv, "1000.4")})


async def test_a_rank_has_a_group_of_its_own_beside_the_daemons(unit: Path, family: RankSpec) -> None:
    daemon, rank, keeper = await start(unit, family)
    assert daemon.stdin is not None
    assert daemon.stdout is not None
    assert set(members(unit / "daemon")) == {daemon.pid, keeper}
    inside = members(unit / "rank-7")
    assert rank in inside
    assert len(inside) == 2  # with the one that left its session
    assert members(unit) == []
    daemon.stdin.write(b"\n")
    async with asyncio.timeout(10):
        assert await daemon.stdout.readline() == b"gone\n"
        await daemon.wait()
    assert not (unit / "rank-7").exists()


@pytest.mark.parametrize("victims", ["daemon", "keeper"])
async def test_whoever_is_killed_the_group_is_emptied_and_removed(
    unit: Path, family: RankSpec, until: Until, victims: str
) -> None:
    daemon, _, keeper = await start(unit, family)
    assert daemon.stdin is not None
    inside = members(unit / "rank-7")
    if victims == "daemon":
        daemon.kill()
    else:
        os.kill(keeper, signal.SIGKILL)
        daemon.stdin.write(b"\n")
    await daemon.wait()
    await until(lambda: not (unit / "rank-7").exists())
    # The keeper removes the group as its last act and then ends.
    await until(lambda: (last := processes.read(keeper)) is None or last.state == "Z")
    assert not [pid for pid in inside if (seen := processes.read(pid)) and seen.state != "Z"]


def test_where_the_group_lies_is_read_from_the_mounts() -> None:
    hybrid = "34 24 0:29 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw\n"
    unified = "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
    own = "1:name=systemd:/x\n0::/system.slice/glm-spark.service\n"
    assert cgroup.directory(hybrid, own) == Path("/sys/fs/cgroup/unified/system.slice/glm-spark.service")
    assert cgroup.directory(unified, own) == Path("/sys/fs/cgroup/system.slice/glm-spark.service")
    assert cgroup.directory(unified, "0::/\n") == Path("/sys/fs/cgroup")
    assert cgroup.directory("", own) is None
    assert cgroup.directory(unified, "4:memory:/x\n") is None


def test_what_nobody_handed_over_is_left_alone(unit: Path) -> None:
    assert cgroup._handed_over(unit)
    assert not cgroup._handed_over(unit.parent)
