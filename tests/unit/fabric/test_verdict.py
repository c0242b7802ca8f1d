"""What an RDMA exchange says about a rail."""

from __future__ import annotations

import pytest

from glm_spark.fabric.exchange import Answer, Failed, Measured
from glm_spark.fabric.inventory import Inventory, Pcie
from glm_spark.fabric.verdict import Ends, RailProof, allowed, said, verdict
from glm_spark.finding import Finding, Severity
from tests.unit.fabric.sparks import pair

RAIL = ("192.168.100.1", "192.168.100.2")
GIB = 1 << 30


def hardware(inventory: Inventory, *, pcie: Pcie | None = None, driver: str = "mlx5_core") -> Inventory:
    devices = tuple(one.model_copy(update={"speed": 200.0, "driver": driver}) for one in inventory.devices)
    netdevs = tuple(one.model_copy(update={"pcie": pcie}) for one in inventory.netdevs)
    return inventory.model_copy(update={"devices": devices, "netdevs": netdevs})


def ends(**more: object) -> Ends:
    a, b = (hardware(one, **more) for one in pair().values())  # type: ignore[arg-type]
    return Ends("spark-1", "spark-2", RAIL, a, b)


def whole(gbps: float) -> Answer:
    seconds = GIB * 8e-9 / gbps
    return Answer(measured=Measured(step="done", received=9, round_trip=3e-6, wrote_bytes=GIB, wrote_seconds=seconds))


def broken(step: str, received: int, *, text: str = "transport retries exhausted", status: int = 12) -> Answer:
    failed = Failed(step=step, text=text, status=status, vendor_error=0x81 if status else 0)
    return Answer(measured=Measured(step=step, received=received), failed=failed)


def told(proof: RailProof) -> Finding:
    assert proof.finding is not None
    assert proof.finding.fix
    return proof.finding


def test_a_rail_as_fast_as_its_ports_is_fine() -> None:
    proof = verdict(ends(), whole(97.1), whole(96.8))
    assert (proof.verdict, proof.finding) == ("fine", None)
    assert said(proof) == (
        "rail spark-1 - spark-2, 192.168.100.1 - 192.168.100.2: fine, round trip 3.0 us, "
        "97.1 Gb/s there, 96.8 Gb/s back"
    )


def test_half_of_what_the_ports_allow_is_slow_and_says_both_ways() -> None:
    proof = verdict(ends(), whole(97.0), whole(20.0))
    assert proof.verdict == "slow"
    assert told(proof).severity is Severity.WARNING
    assert told(proof).measured == "97.0 Gb/s from spark-1 and 20.0 Gb/s from spark-2"
    assert "112" in told(proof).wanted


def test_a_narrow_pcie_link_lowers_what_is_expected() -> None:
    narrow = ends(pcie=Pcie(width=1, speed=32.0))
    assert allowed(narrow) == pytest.approx(28.0, abs=0.5)
    assert verdict(narrow, whole(20.0), whole(20.0)).verdict == "fine"


def test_soft_roce_is_not_called_slow_whatever_speed_its_port_claims() -> None:
    assert verdict(ends(driver="rdma_rxe"), whole(0.1), whole(0.1)).verdict == "fine"


def test_the_adapters_own_word_is_told_with_its_syndrome() -> None:
    proof = verdict(ends(), broken("small", 0), broken("small", 0, text="stopped", status=0))
    assert proof.verdict == "broken"
    finding = told(proof)
    assert (finding.code, finding.severity) == ("fabric.rdma-broken", Severity.ERROR)
    assert "transport retries exhausted (completion status 12, vendor_err 0x81)" in finding.measured
    assert "nothing that spark-1 sends is acknowledged" in finding.measured
    assert "enp1s0f0np0 (192.168.100.1) - enp1s0f0np0 (192.168.100.2)" in finding.subject
    assert "4791" in finding.fix


def test_a_message_that_arrives_and_is_not_acknowledged_tells_which_way_is_lost() -> None:
    proof = verdict(ends(), broken("small", 0), broken("small", 1))
    assert "what spark-1 sends arrives at spark-2, what spark-2 sends does not come back" in told(proof).measured


def test_large_messages_that_are_lost_point_at_the_mtu() -> None:
    proof = verdict(ends(), broken("long", 9), broken("long", 9, text="stopped", status=0))
    assert told(proof).code == "fabric.rdma-large-lost"
    assert "MTU" in told(proof).fix


def test_altered_content_is_never_fine() -> None:
    proof = verdict(ends(), broken("payload", 3, text="a message came in altered", status=0), whole(97.0))
    assert (proof.verdict, told(proof).code) == ("broken", "fabric.rdma-corrupt")


def test_nothing_is_concluded_where_one_could_not_take_part() -> None:
    unsure = Finding(code="fabric.rdma-untested", severity=Severity.UNKNOWN, node="spark-2", subject="exchange")
    proof = verdict(ends(), broken("small", 0), Answer(finding=unsure))
    assert (proof.verdict, proof.finding) == ("unknown", unsure)
    assert verdict(ends(), Answer(), Answer()).verdict == "unknown"


def test_an_end_whose_hardware_address_nobody_tells_is_a_path_that_does_not_carry() -> None:
    failed = Failed(step="join", text="Failed to modify QP state to RTR. Errno: 110, Connection timed out", errno=110)
    proof = verdict(ends(), Answer(failed=failed), Answer(end=None))
    assert (proof.verdict, told(proof).code) == ("broken", "fabric.rdma-broken")


def test_a_queue_pair_that_is_refused_is_broken() -> None:
    refused = Answer(failed=Failed(step="join", text="Failed to modify QP state to RTR", errno=22))
    proof = verdict(ends(), refused, whole(97.0))
    assert (proof.verdict, told(proof).code) == ("broken", "fabric.rdma-refused")
