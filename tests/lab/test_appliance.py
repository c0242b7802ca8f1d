"""The appliance: the module's units and configuration under systemd, booted, switched, rolled back, stopped."""

from __future__ import annotations

import functools

import pytest

from . import appliance, product
from .appliance import Generation, generation
from .conftest import Labs
from .lab import Lab
from .spark import Spark
from .waiting import until

pytestmark = pytest.mark.lab

LIVE = "GLM-5.3-Flash-EXL3 is now LIVE! on port 8888"
LIVE_SECONDS = 240.0
# 60 s after the daemon's last request for more time systemd ends a start; then it has to start again
FROZEN_START_SECONDS = 120.0
SMALLER = {"engine": {"max_tokens": 16384}}


@pytest.fixture
def installed(labs: Labs) -> Lab:
    return labs.restore("two", "appliance", appliance.install)


def _go_live(lab: Lab) -> None:
    appliance.install(lab)
    lab.together(lambda spark: spark.run(f"systemctl start {appliance.BOOT}"))
    lab[1].await_journal(product.UNIT, LIVE, LIVE_SECONDS)


@pytest.fixture
def live(labs: Labs) -> Lab:
    return labs.restore("two", "appliance-live", _go_live)


def _shown(spark: Spark, key: str) -> str:
    return spark.out(f"systemctl show {product.UNIT} -P {key}")


def _ready(lab: Lab) -> str:
    """The status of the leader's readyz; 000 while its daemon is away."""
    url = "http://127.0.0.1:8899/readyz"
    return lab[1].run(f"curl -s -m 20 -o /dev/null -w '%{{http_code}}' {url}", check=False).stdout


def _until_ready(lab: Lab, wanted: str = "200") -> None:
    until(lambda: _ready(lab), wanted, LIVE_SECONDS, "readyz of the leader")


def _ranks(spark: Spark) -> str:
    return spark.run(f"pgrep -f '^/usr/bin/python3 {product.STANDIN} serve'", check=False).stdout.strip()


def _reason(spark: Spark) -> str:
    """Why the set is not live, as a person at this Spark is told."""
    return str((appliance.status(spark).get("reason") or {}).get("subject"))


def test_a_boot_waits_for_nobody_a_start_by_hand_waits_for_live_and_a_stop_ends_it_everywhere(installed: Lab) -> None:
    leader, worker = installed[1], installed[2]
    installed.kill(worker)
    installed.kill(leader)
    appliance.switch_on(installed, leader)
    assert _shown(leader, "ActiveState") == "activating"
    by_hand = leader.start_command(f"systemctl start {product.UNIT}")
    leader.await_journal(product.UNIT, "waiting", 60.0)
    assert by_hand.poll() is None
    appliance.switch_on(installed, worker)
    assert by_hand.wait(LIVE_SECONDS).status == 0
    assert _shown(leader, "ActiveState") == "active"
    assert _ready(installed) == "200"
    assert LIVE in leader.out(f"journalctl --no-pager -b -u {product.UNIT}")
    # the kernel's lines are followed through the journal, as the ordinary user that the daemon is
    assert leader.out("pgrep -c -x -u glm-spark journalctl") == "1"
    leader.run(f"systemctl stop {product.UNIT}", timeout=60.0)
    assert [_ranks(spark) for spark in installed.sparks.values()] == ["", ""]
    assert _shown(leader, "ActiveState") == "inactive"
    assert _shown(worker, "ActiveState") == "active"


def test_a_setting_switched_on_one_spark_ends_nothing_and_is_named_until_the_other_follows(live: Lab) -> None:
    leader, worker = live[1], live[2]
    before = appliance.status(leader)["generation"]
    assert appliance.switch(leader, generation("spark-1"), generation("spark-1", SMALLER)) == "reload"
    leader.await_journal(product.UNIT, "engine.max_tokens changed", 30.0)
    refused = leader.run("glm-spark restart", check=False)
    assert refused.status == 2
    said = refused.stdout + refused.stderr
    assert "engine.max_tokens" in said
    assert "32768 on spark-2" in said
    assert "16384 as on spark-1" in said
    _until_ready(live)
    assert appliance.status(leader)["generation"] == before
    assert appliance.switch(worker, generation("spark-2"), generation("spark-2", SMALLER)) == "reload"
    worker.await_journal(product.UNIT, "engine.max_tokens changed", 30.0)
    until(lambda: leader.run("glm-spark restart", check=False).status, 0, 60.0, "glm-spark restart")
    until(lambda: appliance.status(leader)["generation"] > before, True, 60.0, "a new generation")
    _until_ready(live)
    assert "--max-tokens 16384" in leader.out(f"tr '\\0' ' ' < /proc/{_ranks(leader)}/cmdline")


def _switch_both(lab: Lab, order: tuple[int, int], old: dict[int, Generation], new: dict[int, Generation]) -> None:
    """One Spark, then the other: between the two the set is down and both say by which key."""
    first, second = (lab[number] for number in order)
    assert appliance.switch(first, old[first.number], new[first.number]) == "restart"
    for spark in (first, second):
        until(functools.partial(_reason, spark), "engine.max_tokens", 90.0, f"the reason told on {spark.name}")
    assert _ready(lab) == "503"
    assert appliance.switch(second, old[second.number], new[second.number]) == "restart"
    _until_ready(lab)


@pytest.mark.full
def test_a_newer_generation_goes_live_when_both_have_it_and_a_rollback_likewise(live: Lab) -> None:
    old = {number: generation(live[number].name) for number in (1, 2)}
    new = {number: generation(live[number].name, SMALLER, newer=True) for number in (1, 2)}
    _switch_both(live, (2, 1), old, new)
    assert "glm-spark-newer" in _shown(live[1], "ExecStart")
    _switch_both(live, (1, 2), new, old)
    assert "glm-spark-newer" not in _shown(live[1], "ExecStart")


def _freeze(spark: Spark) -> str:
    pid = _shown(spark, "MainPID")
    spark.run(f"kill -STOP {pid}")
    return pid


@pytest.mark.full
def test_a_daemon_frozen_before_and_after_it_is_ready_is_started_again_and_the_set_recovers(installed: Lab) -> None:
    leader, worker = installed[1], installed[2]
    leader.write(
        f"/etc/systemd/system/{product.UNIT}.service.d/quick.conf",
        "[Service]\nTimeoutStartSec=20\nWatchdogSec=15\n",
    )
    leader.run(f"systemctl daemon-reload && systemctl start {appliance.BOOT}")
    leader.await_journal(product.UNIT, "spark-2", 60.0)
    old = _freeze(leader)
    worker.run(f"systemctl start {appliance.BOOT}")
    until(lambda: _shown(leader, "NRestarts"), "1", FROZEN_START_SECONDS, "restarts of the leader's unit")
    assert _shown(leader, "MainPID") != old
    _until_ready(installed)
    until(lambda: _shown(leader, "ActiveState"), "active", 30.0, "the leader's unit")
    _freeze(leader)
    until(lambda: _shown(leader, "NRestarts"), "2", 90.0, "restarts of the leader's unit")
    _until_ready(installed)
    assert "Watchdog timeout" in leader.out(f"journalctl --no-pager -b -u {product.UNIT}")
