"""Sparks that are reset, rebooted, frozen or cut off under a set: not ready at once, LIVE again without a hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from . import product
from .conftest import Labs
from .lab import Lab
from .spark import Spark
from .test_fabric import _rails, _status
from .test_gate import LIVE, LIVE_SECONDS, _ready, _reply, _started
from .waiting import until

pytestmark = [pytest.mark.lab, pytest.mark.full]

LOADING = '{"estimate_gib": 0.1, "delay_s": {"weights": 45}}'  # a reset and what the set says to it fit into it
BOOTS = 3 * LIVE_SECONDS  # both Sparks boot, then the set starts


def _go_live(lab: Lab) -> None:
    """Over RoCE, and at every boot again."""
    _started(lab, "roce")
    lab.together(lambda spark: spark.run("systemctl enable -q glm-spark-boot.service && sync"))


@pytest.fixture
def live(labs: Labs) -> Lab:
    return labs.restore("two", "live-roce", _go_live)


def _ranks(spark: Spark) -> str:
    return spark.run(f"pgrep -f '^/usr/bin/python3 {product.STANDIN} serve'", check=False).stdout.strip()


def _until_ready(lab: Lab, wanted: str, within: float) -> None:
    """The leader's readyz; its daemon may be away for a while."""
    url = "http://127.0.0.1:8899/readyz"
    ask = f"curl -s -m 20 -o /dev/null -w '%{{http_code}}' {url}"

    def asked() -> str:
        try:
            return lab[1].run(ask, 40.0, check=False).stdout
        except TimeoutError:
            return "no agent yet"

    until(asked, wanted, within, "readyz of the leader")


def _incidents(spark: Spark) -> list[dict[str, Any]]:
    socket = "/run/glm-spark/control.sock"
    return list(json.loads(spark.out(f"curl -s -m 20 --unix-socket {socket} http://localhost/v1/incidents")))


def test_a_worker_reset_twice_in_the_middle_of_a_load_is_named_and_the_set_goes_live(labs: Labs) -> None:
    lab = labs.restore("two")
    product.install(lab, product.settings(lab), LOADING)
    lab.together(lambda spark: spark.run("systemctl enable -q glm-spark-boot.service && sync"))
    product.start(lab)
    leader, worker = lab[1], lab[2]
    boots = [worker.boot_id()]
    for _ in range(2):
        worker.await_journal(product.UNIT, "startup estimate", LIVE_SECONDS)
        worker.reset()
        worker.await_boot(boots[-1])
        boots.append(worker.boot_id())
    leader.await_journal(product.UNIT, LIVE, BOOTS)
    assert _reply(leader)
    (incident,) = _incidents(leader)
    assert incident["state"] == "loading"
    assert incident["seconds_to_live"] is not None
    told = {finding["measured"] for finding in incident["evidence"] if finding["code"] == "host.rebooted"}
    first, second, third = (boot[:8] for boot in boots)
    assert {text.partition(":")[0] for text in told} == {
        f"boot {second}, before it {first}",
        f"boot {third}, before it {second}",
    }


@pytest.mark.parametrize("order", [(1, 2), (2, 1)], ids=["leader first", "worker first"])
def test_both_sparks_rebooted_in_either_order_are_live_again_without_a_hand(live: Lab, order: tuple[int, int]) -> None:
    boots = {number: live[number].boot_id() for number in order}
    for number in order:
        live[number].run("systemd-run -q --on-active=1 systemctl reboot")  # after the agent has answered
    for number in order:
        live[number].await_boot(boots[number])
    _until_ready(live, "200", BOOTS)
    assert _reply(live[1])
    # an orderly shutdown stops the set first: nothing was killed, and no unit needed a second try
    for number in order:
        assert live[number].out(f"systemctl show {product.UNIT} -P NRestarts") == "0"
        assert "Failed with result" not in live[number].out(f"journalctl --no-pager -b -1 -u {product.UNIT}")


def test_a_frozen_worker_ends_readiness_and_the_set_and_its_thaw_brings_them_back(live: Lab) -> None:
    live[2].freeze()
    until(lambda: _ready(live), "503", 30.0, "readyz of the leader")
    until(lambda: _ranks(live[1]), "", LIVE_SECONDS, "ranks of the leader")
    live[2].thaw()
    live[2].set_clock()
    until(lambda: _ready(live), "200", LIVE_SECONDS, "readyz of the leader")
    assert _reply(live[1])


def test_a_cable_that_loses_everything_silently_ends_the_set_on_both_sides(live: Lab) -> None:
    live.lose(live.cable())
    until(lambda: _ready(live), "503", 30.0, "readyz of the leader")
    for spark in live.sparks.values():
        until(lambda: _ranks(spark), "", LIVE_SECONDS, f"ranks of {spark.name}")  # noqa: B023
    live.regain(live.cable())
    until(lambda: _ready(live), "200", LIVE_SECONDS, "readyz of the leader")
    assert _reply(live[1])


def test_pcie_functions_that_leave_with_the_cable_end_the_set_and_it_comes_back_with_them(live: Lab) -> None:
    """As when a firmware drops the adapters: the devices go while the ranks still hold queue pairs on them."""
    both = [far for _, far in _rails(live)]
    gone = [
        live[2].start_command(f"echo 1 > $(readlink -f /sys/class/net/{far.netdev}/device/..)/remove") for far in both
    ]
    until(lambda: _ready(live), "503", 30.0, "readyz of the leader")
    for command in gone:
        command.wait(LIVE_SECONDS)  # the kernel lets a device go when the last queue pair on it is closed
    until(lambda: _ranks(live[1]), "", LIVE_SECONDS, "ranks of the leader")
    assert _status(live[1])["state"] != "live"
    for far in both:
        live[2].restore_function(far)
    until(lambda: _ready(live), "200", LIVE_SECONDS, "readyz of the leader")
    assert _reply(live[1])
