"""Every fault the lab can make, seen from inside the guests: a fault that shows nothing would prove nothing."""

from __future__ import annotations

import time

import pytest

from .conftest import Labs
from .lab import Lab
from .topology import Function
from .verbs import pingpong
from .waiting import until

pytestmark = pytest.mark.lab

# carrier and port state follow within 3 s on an idle machine; the rest is for a busy one
SHOWN = 30.0


def _rails(lab: Lab) -> list[tuple[Function, Function]]:
    return lab.topology.rails(lab.cable())


def _states(lab: Lab, spark: int) -> set[str]:
    return {lab[spark].port_state(function.device) for function in lab[spark].functions()}


def _until_ports(lab: Lab, spark: int, state: str) -> None:
    until(lambda: _states(lab, spark), {state}, SHOWN, f"port states of spark-{spark}")


def _reaches(lab: Lab, function: Function) -> bool:
    return lab[function.port.spark].ping(function)


def test_both_twins_carry_rdma_at_full_mtu_and_the_spare_port_is_dark(two: Lab) -> None:
    for a, b in _rails(two):
        assert two[1].ping(a, size=8972)
        exchange = pingpong(two[1], a, two[2], b)
        assert exchange.ok, exchange.text
    shown = two[1].out("cat /sys/class/infiniband/rocep1s0f0/ports/1/rate /sys/class/net/enp1s0f0np0/speed")
    assert shown == "200 Gb/sec (4X HDR)\n200000"
    assert not two[1].carrier("enp1s0f1np1")
    assert two[1].port_state("rocep1s0f1") == "DOWN"
    assert two[1].out("ping -c1 -W5 10.77.0.2 >/dev/null && ip route get 192.0.2.1").startswith("192.0.2.1 via 10.77.")


def test_a_pulled_cable_takes_the_carrier_at_both_ends_and_plugging_brings_it_back(two: Lab) -> None:
    two.pull(two.cable())
    for spark in (1, 2):
        _until_ports(two, spark, "DOWN")
        assert not any(two[spark].carrier(function.netdev) for function in two[spark].functions())
    two.plug(two.cable())
    for spark in (1, 2):
        _until_ports(two, spark, "ACTIVE")
    a, b = _rails(two)[0]
    until(lambda: _reaches(two, a), True, SHOWN, "ping")
    assert pingpong(two[1], a, two[2], b).ok


def test_a_silent_loss_leaves_every_carrier_up(two: Lab) -> None:
    a, _ = _rails(two)[0]
    assert _reaches(two, a)
    two.lose(two.cable())
    assert not _reaches(two, a)
    assert _states(two, 1) == _states(two, 2) == {"ACTIVE"}
    two.regain(two.cable())
    until(lambda: _reaches(two, a), True, SHOWN, "ping")


def test_a_one_way_loss_lets_the_other_direction_through(two: Lab) -> None:
    a, b = _rails(two)[0]
    two[2].lose_outgoing(b.netdev)
    before = int(two[2].out(f"cat /sys/class/net/{b.netdev}/statistics/rx_packets"))
    assert not _reaches(two, a)
    assert int(two[2].out(f"cat /sys/class/net/{b.netdev}/statistics/rx_packets")) > before
    two[2].heal_outgoing(b.netdev)
    until(lambda: _reaches(two, a), True, SHOWN, "ping")


def test_an_mtu_lowered_at_one_end_passes_small_frames_and_loses_large_ones(two: Lab) -> None:
    a, b = _rails(two)[0]
    two[2].set_mtu(b.netdev, 1500)
    assert two[1].ping(a)
    assert not two[1].ping(a, size=8972)
    assert two[2].link(b.netdev)["mtu"] == 1500
    assert not pingpong(two[1], a, two[2], b, within=8.0).ok
    two[2].set_mtu(b.netdev, 9000)
    assert two[1].ping(a, size=8972)
    assert pingpong(two[1], a, two[2], b).ok


def test_a_gid_moves_while_its_address_stays_and_rdma_works_at_the_new_index(two: Lab) -> None:
    a, b = _rails(two)[0]
    before, after = two[1].move_gid(a)
    assert after > before
    assert before not in two[1].gids(a.device) or two[1].gid_index(a.device, two[1].address(a)) == after
    assert two[2].gid_index(b.device, two[2].address(b)) == before
    assert pingpong(two[1], a, two[2], b).ok


def test_an_address_removed_leaves_link_and_device_but_no_ipv4_gid(two: Lab) -> None:
    a, _ = _rails(two)[1]
    two[1].remove_address(a.netdev)
    until(lambda: two[1].gid_index(a.device, two[1].address(a)), None, SHOWN, "the address's GID")
    assert two[1].port_state(a.device) == "ACTIVE"
    two[1].add_address(a.netdev, two[1].address(a))
    two[1].await_gid(a.device, two[1].address(a))
    assert _reaches(two, a)


def test_a_device_deleted_is_gone_and_comes_back_under_any_name(two: Lab) -> None:
    a, _ = _rails(two)[0]
    two[1].delete_device(a.device)
    assert a.device not in two[1].devices()
    assert _reaches(two, a), "the netdev stays"
    two[1].add_device("mlx5_7", a.netdev)
    until(lambda: two[1].port_state("mlx5_7"), "ACTIVE", SHOWN, "the new device's port")
    assert two[1].await_gid("mlx5_7", two[1].address(a)) > 0


def test_a_pcie_function_vanishes_with_netdev_and_device_and_returns_under_its_names(two: Lab) -> None:
    a, b = _rails(two)[0]
    two[1].remove_function(a)
    assert a.device not in two[1].devices()
    assert two[1].run(f"ip link show {a.netdev}", check=False).status != 0
    two[1].restore_function(a)
    until(lambda: two[1].port_state(a.device), "ACTIVE", SHOWN, "the device's port")
    until(lambda: _reaches(two, a), True, SHOWN, "ping")
    assert pingpong(two[1], a, two[2], b).ok


def test_a_frozen_spark_keeps_its_carrier_answers_nothing_and_its_clocks_stood_still(two: Lab) -> None:
    a, _ = _rails(two)[0]
    before = float(two[2].out("cut -d' ' -f1 /proc/uptime"))
    two[2].freeze()
    start = time.monotonic()
    assert not _reaches(two, a)
    assert _states(two, 1) == {"ACTIVE"}
    time.sleep(max(0.0, 5.0 - (time.monotonic() - start)))
    frozen = time.monotonic() - start
    two[2].thaw()
    assert float(two[2].out("cut -d' ' -f1 /proc/uptime")) - before < frozen
    two[2].set_clock()
    assert abs(time.time() - float(two[2].out("date +%s.%N"))) < 2.0
    until(lambda: _reaches(two, a), True, SHOWN, "ping")


def test_a_stalled_spark_answers_nothing_and_finds_that_time_went_on(two: Lab) -> None:
    a, _ = _rails(two)[0]
    before = float(two[2].out("cut -d' ' -f1 /proc/uptime"))
    start = time.monotonic()
    two[2].stall()
    assert not _reaches(two, a)
    time.sleep(max(0.0, 5.0 - (time.monotonic() - start)))
    two[2].unstall()
    assert float(two[2].out("cut -d' ' -f1 /proc/uptime")) - before >= 5.0
    until(lambda: _reaches(two, a), True, SHOWN, "ping")


def test_a_killed_sparks_peer_loses_its_carrier_and_its_disk_keeps_what_was_synced(two: Lab) -> None:
    a, b = _rails(two)[0]
    two[2].run("echo kept > /root/kept; sync; logger -t lab before the cut; journalctl --sync")
    two[2].run("echo lost > /root/lost")
    old = two[2].boot_id()
    two.kill(two[2])
    _until_ports(two, 1, "DOWN")
    two.power_on(two[2])
    assert two[2].boot_id() != old
    assert two[2].out("cat /root/kept") == "kept"
    assert two[2].run("grep lost /root/lost", check=False).status != 0, "what was not synced must not survive"
    assert "before the cut" in [entry.get("MESSAGE") for entry in two[2].journal(boot="-1", matches="-t lab")]
    _until_ports(two, 1, "ACTIVE")
    assert pingpong(two[1], a, two[2], b).ok


def test_a_reset_spark_comes_back_with_another_boot_id(two: Lab) -> None:
    a, _ = _rails(two)[0]
    old = two[2].boot_id()
    two[2].reset()
    two[2].await_boot(after=old)
    assert two[2].boot_id() != old
    until(lambda: _reaches(two, a), True, SHOWN, "ping")


def test_a_firewall_on_the_cable_drops_rdma_and_leaves_ping(two: Lab) -> None:
    a, b = _rails(two)[0]
    two[2].firewall(f"iifname {b.netdev} udp dport 4791 drop")
    assert _reaches(two, a)
    assert not pingpong(two[1], a, two[2], b, within=8.0).ok
    two[2].no_firewall()
    assert pingpong(two[1], a, two[2], b).ok


def test_a_pulled_lan_leaves_the_cable_alone(two: Lab) -> None:
    two[2].set_lan(False)
    assert two[1].run("ping -c1 -W2 10.77.0.2", check=False).status != 0
    assert _reaches(two, _rails(two)[0][0])
    two[2].set_lan(True)
    until(lambda: two[1].run("ping -c1 -W2 10.77.0.2", check=False).status, 0, SHOWN, "ping over the LAN")


def test_with_arp_flux_a_twin_answers_for_the_other_ones_address(labs: Labs) -> None:
    lab = labs.restore("two-one-subnet")
    (a, b), (_, dark) = _rails(lab)
    assert lab[1].ping(a)
    lab[2].set_function_carrier(dark, False)
    command = f"ping -c1 -W3 -I {a.netdev} {lab[2].address(dark)}"
    assert lab[1].run(command, check=False).status != 0
    lab[2].set_arp_flux(True)
    lab[1].run("ip neigh flush all")
    assert lab[1].run(command, check=False).status == 0
    neighbour = lab[1].out(f"ip neigh show {lab[2].address(dark)} dev {a.netdev}")
    assert b.mac in neighbour, "the lit twin's MAC stands for the dark twin's address"


def test_the_other_cablings_carry_rdma_between_the_ports_they_join(labs: Labs) -> None:
    lab = labs.restore("two-crossed")
    a, b = _rails(lab)[0]
    assert (a.device, b.device) == ("rocep1s0f0", "rocep1s0f1")
    assert pingpong(lab[1], a, lab[2], b).ok


def test_a_restored_spark_has_nothing_of_the_test_before(two: Lab) -> None:
    assert two[1].run("ls /root/kept /root/lost", check=False).status != 0
    assert two[1].link("enp1s0f0np0")["mtu"] == 9000
    assert abs(time.time() - float(two[1].out("date +%s.%N"))) < 2.0


def test_three_sparks_reach_each_other_over_each_edge_of_the_triangle(three: Lab) -> None:
    for cable in three.topology.cables:
        for a, b in three.topology.rails(cable):
            near, far = three[a.port.spark], three[b.port.spark]
            exchange = pingpong(near, a, far, b)
            assert exchange.ok, exchange.text
    assert all(three[1].run(f"ping -c1 -W5 10.77.0.{number}", check=False).status == 0 for number in (2, 3))
