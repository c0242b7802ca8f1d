"""RDMA between the ranks: who is paired with whom, over which GID, and in which words it fails."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glm_spark.engine import vocabulary
from glm_spark.standin import failures
from glm_spark.standin.roce import (
    LONGEST,
    Failed,
    Gid,
    Port,
    gid_index,
    message,
    pairs,
    sequence_of,
    setup_fault,
    timeout_exponent,
)
from glm_spark.standin.transport import choose, nccl_lines, roce_line

LINK_LOCAL = Gid(0, "fe80::1", 2, "")
OLD_KIND = Gid(1, "::ffff:192.168.100.1", 1, "192.168.100.1")
WANTED = Gid(3, "::ffff:192.168.100.1", 2, "192.168.100.1")


def port(name: str, network: str = "") -> Port:
    return Port(name, "::", 4096, network)


@pytest.mark.parametrize(
    ("wanted", "index"),
    [(None, 3), ("", 0), (" ", 0), ("3", 3), ("5", 5)],
    ids=["unset", "empty", "blank", "3", "5"],
)
def test_an_unset_index_is_looked_up_and_an_empty_one_is_0(wanted: str | None, index: int) -> None:
    assert gid_index(wanted, [LINK_LOCAL, OLD_KIND, WANTED]) == index


def test_a_table_without_a_roce_v2_address_leaves_index_0() -> None:
    assert gid_index(None, [LINK_LOCAL, OLD_KIND]) == 0


def test_an_index_that_is_no_number_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="NCCL_IB_GID_INDEX=auto"):
        gid_index("auto", [WANTED])


def test_two_ranks_pair_their_devices_by_place_whatever_they_are_called() -> None:
    ours = [
        port("rocep1s0f0", "192.168.100.0/24"),
        port("roceP2p1s0f0", "192.168.101.0/24"),
    ]
    theirs = [
        port("roceP2p1s0f1", "192.168.101.0/24"),
        port("rocep1s0f1", "192.168.100.0/24"),
    ]
    assert pairs(ours, theirs, 2) == [(0, 0), (1, 1)]


@given(
    st.lists(st.sampled_from(["a", "b", "c", ""]), max_size=6),
    st.lists(st.sampled_from(["a", "b", ""]), max_size=6),
)
def test_three_ranks_pair_by_subnet_the_same_way_from_both_ends(ours: list[str], theirs: list[str]) -> None:
    mine, others = (
        [port("x", network) for network in ours],
        [port("y", network) for network in theirs],
    )
    found = pairs(mine, others, 3)
    assert sorted((b, a) for a, b in pairs(others, mine, 3)) == sorted(found)
    assert all(ours[a] == theirs[b] != "" for a, b in found)
    assert len({a for a, _ in found}) == len({b for _, b in found}) == len(found)


def test_all_ranks_name_the_same_fault_and_a_missing_device_comes_before_the_count() -> None:
    assert setup_fault({0: "", 1: "RDMA device x not found"}, {0: 2, 1: 1}) == "RDMA device x not found"
    assert setup_fault({0: "", 1: ""}, {0: 2, 1: 1}) == "the ranks' RoCE geometry differs"
    assert setup_fault({0: "", 1: ""}, {0: 2, 1: 2}) == ""


@pytest.mark.parametrize(("seconds", "exponent"), [(4.0, 17), (2.0, 16), (30.0, 20), (0.0, 1), (1e9, 31)])
def test_the_tries_on_a_dead_path_take_about_the_seconds_asked_for(seconds: float, exponent: int) -> None:
    assert timeout_exponent(seconds) == exponent


def test_a_message_fills_a_packet_and_tells_its_round_and_its_sender() -> None:
    said = message(1, 0, 77)
    assert len(said) == LONGEST
    assert sequence_of(said) == 77
    assert len({said, message(0, 0, 77), message(1, 1, 77), message(1, 0, 78)}) == 4
    assert said == message(1, 0, 77)


@pytest.mark.parametrize(("status", "told", "shown"), [(12, 0, 0x81), (12, 0x8A, 0x8A), (9, 0, 0)])
def test_a_path_that_is_dead_is_told_by_a_connectx_syndrome(status: int, told: int, shown: int) -> None:
    assert Failed(status, told).vendor == shown


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (failures.roce_write(7, 1, 0, str(Failed(12, 0)), 0x81), "engine.path-broken"),
        (failures.roce_late(7, 1, 0), "engine.peer-late"),
        (
            failures.ROCE_SETUP + "RDMA device rocep1s0f0 not found",
            "engine.rdma-device-missing",
        ),
        (
            failures.ROCE_SETUP + "rocep1s0f0 port 1 is not active",
            "engine.roce-port-inactive",
        ),
        (
            failures.ROCE_SETUP + "the ranks' RoCE geometry differs",
            "engine.roce-geometry",
        ),
        (
            f"NCCL {failures.REG_MR.format(error='Cannot allocate memory')}",
            "engine.memory-registration",
        ),
        (failures.out_of_step(1, 6, 7), "engine.out-of-step"),
    ],
)
def test_the_daemon_knows_every_text_and_takes_it_for_nothing_else(text: str, code: str) -> None:
    events = vocabulary.read(f"RuntimeError: {text}", 0, "spark-1")
    assert [one.finding.code for one in events if isinstance(one, vocabulary.Fault)] == [code]


def test_an_error_over_roce_reads_as_a_plain_runtime_error() -> None:
    assert (failures.RoceError.__module__, failures.RoceError.__qualname__) == (
        "builtins",
        "RuntimeError",
    )


def test_the_devices_of_each_carrier_and_their_lines() -> None:
    environment = {
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_DEBUG": "INFO",
        "NCCL_IB_HCA": "=rocep1s0f1:1,roceP2p1s0f1",
        "TF_GLM_COMM": "roce",
    }
    found = choose(environment, "127.0.0.1")
    assert found.rails == found.devices == ("rocep1s0f1", "roceP2p1s0f1")
    assert any(
        "NET/IB : Using [0]rocep1s0f1:1/RoCE [1]roceP2p1s0f1:1/RoCE [RO]" in line
        for line in nccl_lines(found, 0, environment)
    )
    assert roce_line(found).startswith("all-gathers up to 512 KiB over RoCE (rocep1s0f1, roceP2p1s0f1; ")
    assert choose({**environment, "TF_ROCE_HCA": "roceP2p1s0f1"}, "127.0.0.1").rails == ("roceP2p1s0f1",)
    assert choose({**environment, "NCCL_IB_DISABLE": "1"}, "127.0.0.1").rails == ()
    assert choose({**environment, "TF_GLM_COMM": "nccl"}, "127.0.0.1", fallback=True).rails == ()
    assert roce_line(choose({**environment, "TF_GLM_COMM": "nccl"}, "127.0.0.1")) == ""
