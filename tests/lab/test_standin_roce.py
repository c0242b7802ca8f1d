"""The stand-in engine's own RDMA: it proves what a rank was given, and fails as the real engine does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from . import product
from .agent import GuestCommand
from .conftest import Labs
from .lab import Lab
from .machine import archive
from .recipe import CODE
from .spark import Spark
from .waiting import until

pytestmark = pytest.mark.lab

LIVE = "GLM-5.3-Flash-EXL3 is now LIVE! on port 8888"
LIVE_SECONDS = 180.0
START_SECONDS = 60.0
DEAD = "transport retry counter exceeded (vendor_err 0x81, "
RETRIES_OVER = "RDMA write to rank {peer} failed: " + DEAD
SETUP = "RuntimeError: RoCE all-gather setup failed on some rank: "
BOTH = "rocep1s0f0,roceP2p1s0f0"


@dataclass
class Started:
    """Two ranks started by hand on two Sparks, without a daemon."""

    lab: Lab
    commands: list[GuestCommand]

    def ends(self) -> list[str]:
        """What each rank said, once both have ended with 1."""
        said = []
        for command, spark in zip(self.commands, self.lab.sparks.values(), strict=True):
            status = command.wait(START_SECONDS).status
            text = spark.out("cat /tmp/rank.log")
            assert status == 1, f"{spark.name}: status {status}\n{text}"
            said.append(text)
        return said

    def serves(self) -> list[str]:
        """What each rank said until it was ready."""
        for number, text in ((1, "serving "), (2, "following rank 0")):
            wait = f"timeout {START_SECONDS:.0f} tail -n +1 -F /tmp/rank.log 2>/dev/null | grep -qm1 '{text}'"
            spark = self.lab[number]
            assert spark.run(wait, START_SECONDS + 10, check=False).status == 0, spark.out("cat /tmp/rank.log")
        return [spark.out("cat /tmp/rank.log") for spark in self.lab.sparks.values()]


def _begin(lab: Lab, *environments: Mapping[str, str], through: str = "") -> Started:
    """Starts a rank on each Spark with what is given, as the argument of the command `through`."""
    commands = []
    for rank, (spark, given) in enumerate(zip(lab.sparks.values(), environments, strict=True)):
        own = {
            "NCCL_SOCKET_IFNAME": "enp1s0f0np0",
            "NCCL_DEBUG": "INFO",
            "TF_GLM_COMM": "roce",
            "TF_ROCE_WAIT_S": "10",
            "TENSORFOLD_STANDIN": '{"roce_timeout_s": 2}',
            **given,
        }
        words = " ".join(f"{name}='{value}'" for name, value in own.items())
        argv = f"serve standin --tp 2 --rank {rank} --master {lab[1].address(lab[1].functions()[0])} --drafter none"
        run = f"{through} env {words} {product.STANDIN} {argv} --port 8889 --name GLM-5.3-Flash-EXL3"
        commands.append(spark.start_command(f"rm -f /tmp/rank.log; {run} >/tmp/rank.log 2>&1"))
    return Started(lab, commands)


def _with_code(lab: Lab) -> None:
    packed = archive(product.code())
    lab.together(lambda spark: spark.push_archive(packed, CODE))


@pytest.fixture
def bare(labs: Labs) -> Lab:
    """Two Sparks with the program and no daemon."""
    return labs.restore("two", "standin", _with_code)


def _index(spark: Spark, twin: int = 0) -> str:
    function = spark.functions()[twin]
    return str(spark.await_gid(function.device, spark.address(function)))


def _rails(lab: Lab, **more: str) -> list[dict[str, str]]:
    return [{"NCCL_IB_HCA": BOTH, "NCCL_IB_GID_INDEX": _index(spark), **more} for spark in lab.sparks.values()]


def _sent(spark: Spark, device: str) -> int:
    """Packets that a soft-RoCE device has sent since it was made."""
    return int(spark.out(f"cat /sys/class/infiniband/{device}/ports/1/hw_counters/sent_pkts"))


def _ask(port: int, tokens: int) -> str:
    """The command of a client that wants so many tokens; it prints the body of what it gets."""
    body = {
        "model": "GLM-5.3-Flash-EXL3",
        "max_tokens": tokens,
        "ignore_eos": True,
        "messages": [{"role": "user", "content": "Hello"}],
    }
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    return f"curl -s -m 90 -H 'content-type: application/json' -d '{json.dumps(body)}' {url}"


def _decodes(spark: Spark) -> bool:
    """Whether rank 0 on this Spark is in the middle of a reply."""
    health = json.loads(spark.out("curl -s -m 10 http://127.0.0.1:8889/health"))
    return bool(health["requests_running"] and health["iteration_s"] < 1 and health["rounds_total"] > 3)


def test_every_round_goes_over_both_twins_and_a_missing_index_is_found(bare: Lab) -> None:
    first, second = _rails(bare)
    del second["NCCL_IB_GID_INDEX"]
    said = _begin(bare, first, second).serves()
    assert "all-gathers up to 512 KiB over RoCE (rocep1s0f0, roceP2p1s0f0; " in said[0]
    for text in said:
        assert "NET/IB : Using [0]rocep1s0f0:1/RoCE [1]roceP2p1s0f0:1/RoCE [RO]" in text
    before = {(spark.number, name): _sent(spark, name) for spark in bare.sparks.values() for name in BOTH.split(",")}
    assert "choices" in bare[1].run(_ask(8889, 16)).stdout
    for (number, name), packets in before.items():
        assert _sent(bare[number], name) >= packets + 16, f"{name} of spark-{number} carried too little"


def test_wrong_names_and_ports_fail_on_every_rank_in_the_engines_words(bare: Lab) -> None:
    fine = _rails(bare)[0]
    for devices, text in (
        ("rocep1s0f0,mlx5_1", "RDMA device mlx5_1 not found"),
        ("rocep1s0f0,rocep1s0f1", "rocep1s0f1 port 1 is not active"),
        ("rocep1s0f0", "the ranks' RoCE geometry differs"),
    ):
        for said in _begin(bare, fine, {"NCCL_IB_HCA": devices}).ends():
            assert said.splitlines()[-1] == SETUP + text


def test_over_nccl_a_wrong_name_falls_to_sockets_without_a_word(bare: Lab) -> None:
    wrong = {"TF_GLM_COMM": "nccl", "NCCL_IB_HCA": "mlx5_1"}
    for text in _begin(bare, wrong, wrong).serves():
        assert "NET/Socket : Using [0]enp1s0f0np0:" in text
        assert "mlx5_1" not in text


def test_a_gid_index_of_an_address_that_the_peer_cannot_reach_is_a_dead_path(bare: Lab) -> None:
    a = bare[2].functions()[0]
    bare[2].run(f"ip address add 198.51.100.7/32 dev {a.netdev}")
    bare[2].firewall("ip daddr 198.51.100.7 drop")  # without it the kernel takes the address for one on the cable
    first, second = _rails(bare)
    second["NCCL_IB_GID_INDEX"] = str(bare[2].await_gid(a.device, "198.51.100.7"))
    first["NCCL_IB_HCA"] = second["NCCL_IB_HCA"] = a.device
    said = _begin(bare, first, second).ends()
    assert RETRIES_OVER.format(peer=1) in said[0].splitlines()[-1]
    assert RETRIES_OVER.format(peer=0) in said[1].splitlines()[-1]


def test_an_empty_index_is_0_and_a_slot_without_a_gid_is_nccls_error_2(bare: Lab) -> None:
    first, second = _rails(bare)
    said = _begin(bare, {**first, "NCCL_IB_GID_INDEX": ""}, {**second, "NCCL_IB_GID_INDEX": "77"}).ends()
    assert any("NCCL WARN Call to ibv_modify_qp failed with" in text for text in said)
    assert any("local GID fe80:" in text or "remote GID fe80:" in text for text in said)


def test_a_twin_with_another_mtu_is_a_dead_path_for_full_packets(bare: Lab) -> None:
    twin = bare[2].functions()[1]
    bare[2].set_mtu(twin.netdev, 1500)
    said = "\n".join(_begin(bare, *_rails(bare)).ends())
    assert "hca 1): RDMA write to rank 1 failed: " in said


def test_memory_that_may_not_be_locked_is_nccls_error_2(bare: Lab) -> None:
    user = "prlimit --memlock=8388608 setpriv --reuid=65534 --clear-groups --bounding-set=-all --inh-caps=-all"
    for said in _begin(bare, *_rails(bare), through=user).ends():
        assert "NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory" in said
        assert said.splitlines()[-1].startswith("RuntimeError: NCCL error 2: unhandled system error")


def test_a_peer_that_stands_still_is_late_and_no_dead_path(bare: Lab) -> None:
    _begin(bare, *_rails(bare, TF_ROCE_WAIT_S="3")).serves()
    asking = bare[1].start_command(_ask(8889, 100_000))
    until(lambda: _decodes(bare[1]), True, START_SECONDS, "tokens of the reply")
    bare[2].run("pkill -STOP -f 'glm-spark-standin serve'")
    told = asking.wait(START_SECONDS).stdout
    assert "RoCE all-gather failed (sequence " in told
    assert "RDMA write" not in told


def test_a_cable_cut_under_a_request_is_a_dead_path_and_latches_rank_0(bare: Lab) -> None:
    _begin(bare, *_rails(bare)).serves()
    asking = bare[1].start_command(_ask(8889, 100_000))
    until(lambda: _decodes(bare[1]), True, START_SECONDS, "tokens of the reply")
    bare.pull(bare.cable())
    body = asking.wait(START_SECONDS).stdout
    assert body, bare[1].out("cat /tmp/rank.log")
    told = json.loads(body)["error"]["message"]
    assert told.startswith("request error: RuntimeError: RoCE all-gather failed (sequence ")
    assert told in bare[1].out("cat /tmp/rank.log")
    # The one whose write was under way says so; to the other, its write already answered, the peer is late.
    assert DEAD in "\n".join(spark.out("cat /tmp/rank.log") for spark in bare.sparks.values())
    assert told in bare[1].run(_ask(8889, 16)).stdout


def _live(lab: Lab) -> None:
    # The daemon leaves the ranks alone for so long after the carrier's loss that they see it by themselves.
    fabric = {"transport": "roce", "hold_seconds": 30.0}
    product.install(lab, product.settings(lab, {"fabric": fabric}), '{"roce_timeout_s": 2, "estimate_gib": 0.1}')
    product.start(lab)
    lab[1].await_journal(product.UNIT, LIVE, LIVE_SECONDS)


@pytest.mark.full
def test_crossed_ports_with_other_names_and_indexes_carry_every_round_on_all_rails(labs: Labs) -> None:
    lab = labs.restore("two-crossed")
    for number, function in enumerate(lab[2].functions()):
        lab[2].delete_device(function.device)
        lab[2].add_device(f"mlx5_{number}", function.netdev)
        lab[2].run(f"ip address add 198.51.100.{number + 7}/32 dev {function.netdev}")
        lab[2].remove_address(function.netdev)
        lab[2].add_address(function.netdev, lab[2].address(function))
    _live(lab)
    names = {1: BOTH.split(","), 2: ["mlx5_0", "mlx5_1"]}
    for number, (first, second) in names.items():
        used = lab[number].await_journal(product.UNIT, "NET/IB : Using", 5.0)["MESSAGE"]
        assert f"[0]{first}:1/RoCE [1]{second}:1/RoCE [RO]" in str(used)
    before = {(number, name): _sent(lab[number], name) for number in names for name in names[number]}
    assert "choices" in lab[1].run(_ask(8888, 16)).stdout
    for (number, name), packets in before.items():
        assert _sent(lab[number], name) >= packets + 16, f"{name} of spark-{number} carried too little"


@pytest.mark.full
def test_the_daemon_leaves_out_a_twin_without_an_address(labs: Labs) -> None:
    lab = labs.restore("two-first-only")
    _live(lab)
    for spark in lab.sparks.values():
        used = spark.await_journal(product.UNIT, "NET/IB : Using", 5.0)["MESSAGE"]
        assert "NET/IB : Using [0]rocep1s0f0:1/RoCE [RO]" in str(used)


def test_a_cable_cut_under_a_request_is_a_dead_path_and_the_set_comes_back_with_the_plug(labs: Labs) -> None:
    lab = labs.restore("two", "standin-live", _live)
    asking = lab[1].start_command(_ask(8888, 100_000))
    until(lambda: _decodes(lab[1]), True, START_SECONDS, "tokens of the reply")
    lab.pull(lab.cable())
    until(lambda: product.control(lab[1], "/readyz").splitlines()[-1], "503", START_SECONDS, "readyz of the leader")
    asking.wait(START_SECONDS)
    said = [line for spark in lab.sparks.values() for line in spark.journal_lines(product.UNIT)]
    assert any(DEAD in line for line in said)
    lab.plug(lab.cable())
    until(lambda: product.control(lab[1], "/readyz").splitlines()[-1], "200", LIVE_SECONDS, "readyz of the leader")
    assert "choices" in lab[1].run(_ask(8888, 16)).stdout
