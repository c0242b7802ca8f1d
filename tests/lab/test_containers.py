"""Ranks in podman under the real unit, systemd and cgroup v2: they go live, and nothing outlives what it should.

What is asserted is seen from outside the daemon: podman's list, the table of processes, the mounts, the control groups.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.sparks.settings import merged

from . import podman, product
from .conftest import Labs
from .lab import Lab
from .spark import Spark
from .test_gate import LIVE_SECONDS
from .waiting import until

pytestmark = [pytest.mark.lab, pytest.mark.full]

STARTS = 2 * LIVE_SECONDS  # podman makes two containers a start here: one that reads the command line, and the rank
LOADING = '{"estimate_gib": 0.1, "delay_s": {"weights": 30}}'  # long enough that a power cut finds it in the middle


def _furnished(lab: Lab, transport: str, standin: str = product.STANDIN_SAYS) -> None:
    """Everything is there and nothing was started."""
    product.install(
        lab,
        product.settings(lab, merged(podman.settings(), {"fabric": {"transport": transport}})),
        standin,
    )
    lab.together(podman.furnish)


def _started(lab: Lab, transport: str) -> None:
    _furnished(lab, transport)
    product.start(lab)
    _live(lab)


@pytest.fixture
def live(labs: Labs) -> Lab:
    return labs.restore("two", "live-socket", lambda lab: _started(lab, "socket"), podman=True)


def _status(spark: Spark) -> dict[str, Any]:
    """/v1/status over control.sock, {} while nobody answers: no Python starts in the guest for a look."""
    ask = "curl -s -m 20 --unix-socket /run/glm-spark/control.sock http://localhost/v1/status"
    said = spark.run(ask, check=False).stdout
    return dict(json.loads(said)) if said.startswith("{") else {}


def _live(lab: Lab, after: int = 0) -> int:
    """Waits for readiness in a later generation than `after`, and returns that generation."""
    found = [0]

    def seen() -> tuple[bool, bool]:
        status = _status(lab[1])
        found[0] = int(status.get("generation") or 0)
        return bool(status.get("ready")), found[0] > after

    until(
        seen,
        (True, True),
        STARTS,
        f"(ready, later than generation {after}) of the leader",
    )
    return found[0]


def _one_rank_each(lab: Lab, generation: int) -> None:
    """Each Spark has the container of this generation, what holds it, its mounts, and nothing else."""
    for rank, spark in enumerate(lab.sparks.values()):
        seen = podman.look(spark)
        assert seen.containers == (f"glm-spark-glm-spark-{rank + 1}-{generation}-{rank}",), spark.name
        held = (
            len(seen.engines),
            len(seen.conmons),
            len(seen.podmans),
            len(seen.keepers),
            len(seen.mounts),
        )
        assert held == (1, 1, 1, 1, 1), f"{spark.name}: {seen}"


def _active(spark: Spark, wanted: str) -> None:
    until(
        lambda: spark.run(f"systemctl is-active {product.UNIT}", check=False).stdout.strip(),
        wanted,
        60.0,
        "the unit",
    )


def _nothing_left(spark: Spark) -> None:
    until(
        lambda: podman.look(spark),
        podman.NOTHING,
        60.0,
        f"what {spark.name} has of containers",
    )
    groups = spark.run(f"ls -d /sys/fs/cgroup/system.slice/{product.UNIT}.service", check=False).stdout
    assert groups == "", f"{spark.name}: the unit's control group is there after its end"


def _stop_all(lab: Lab) -> None:
    for spark in lab.sparks.values():
        spark.run(f"systemctl stop {product.UNIT}")
        _nothing_left(spark)


def _said(spark: Spark) -> str:
    return "\n".join(spark.journal_lines(product.UNIT))


def test_a_set_lives_in_the_units_own_control_group_and_a_stop_leaves_nothing(live: Lab) -> None:
    generation = _live(live)
    _one_rank_each(live, generation)
    for spark in live.sparks.values():
        (engine,) = podman.look(spark).engines
        group = spark.out(f"cat /proc/{engine}/cgroup")
        assert group.startswith(f"0::/system.slice/{product.UNIT}.service/rank-{generation}/"), group
        assert spark.out(f"cat /proc/{engine}/oom_score_adj") == "500"
        assert "unlimited" in spark.out(f"grep 'locked memory' /proc/{engine}/limits")
        assert "NOTIFY_SOCKET" not in spark.out(f"tr '\\0' '\\n' </proc/{engine}/environ")
    _stop_all(live)
    product.start(live)
    _one_rank_each(live, _live(live, generation))
    assert "ended a leftover" not in "".join(_said(spark) for spark in live.sparks.values())


def test_a_container_has_the_rdma_devices(labs: Labs) -> None:
    lab = labs.restore("two", podman=True)
    _started(lab, "roce")
    assert "NET/IB" in _said(lab[1])
    _stop_all(lab)


def _kill_daemon(spark: Spark) -> None:
    spark.run(f"kill -9 $(systemctl show -P MainPID {product.UNIT})")


def _kill_unit(spark: Spark) -> None:
    spark.run(f"systemctl kill -s KILL {product.UNIT}")


def _kill_rank(spark: Spark) -> None:
    spark.run(f"kill -9 {podman.look(spark).engines[0]}")


@pytest.mark.parametrize(
    ("kill", "number"),
    [
        *((_kill_daemon, 2), (_kill_unit, 1), (_kill_rank, 2)),
        *(
            pytest.param(*pair, marks=pytest.mark.full)
            for pair in ((_kill_daemon, 1), (_kill_unit, 2), (_kill_rank, 1))
        ),
    ],
)
def test_whatever_is_killed_the_set_comes_back_beside_nothing_of_the_old(
    live: Lab, kill: Callable[[Spark], None], number: int
) -> None:
    generation = _live(live)
    kill(live[number])
    _one_rank_each(live, _live(live, generation))


@pytest.mark.parametrize("kill", [_kill_daemon, _kill_unit])
def test_a_killed_daemon_that_is_not_started_again_leaves_nothing(live: Lab, kill: Callable[[Spark], None]) -> None:
    """What the next life would remove is gone before it: by systemd, by the keeper and by the unit's last command."""
    live[2].run(
        f"mkdir -p /run/systemd/system/{product.UNIT}.service.d && "
        f"printf '[Service]\\nRestart=no\\n' >/run/systemd/system/{product.UNIT}.service.d/once.conf && "
        "systemctl daemon-reload"
    )
    kill(live[2])
    _active(live[2], "failed")
    _nothing_left(live[2])


def test_a_spark_that_loses_power_in_mid_load_starts_clean(labs: Labs) -> None:
    lab = labs.restore("two", "furnished", lambda lab: _furnished(lab, "socket", LOADING), podman=True)
    for spark in lab.sparks.values():
        spark.run("systemctl enable -q glm-spark-boot.service && sync")
    product.start(lab)
    lab[2].await_journal(product.UNIT, "startup estimate", STARTS)
    generation = int(_status(lab[1])["generation"])
    lab.power_cycle(lab[2])
    _one_rank_each(lab, _live(lab, generation))
    assert f"container glm-spark-glm-spark-2-{generation}-1" in _said(lab[2])
    _stop_all(lab)
