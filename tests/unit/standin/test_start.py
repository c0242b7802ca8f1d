"""The start of a set: who waits for whom, what is said, and how it can fail."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from contextlib import suppress
from pathlib import Path

import pytest

from tests.unit.standin.sets import Set, until


async def port_open(port: int) -> bool:
    with suppress(OSError):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
        return True
    return False


@pytest.mark.parametrize("first", [0, 2])
async def test_ranks_may_start_in_any_order_and_the_port_opens_last(engine: Set, first: int) -> None:
    order = [first, *({0, 1, 2} - {first})]
    engine.faults(ranks={"2": {"delay_s": {"weights": 0.4}}})
    ranks = {}
    for number in order:
        ranks[number] = await engine.rank(number, 3)
    await ranks[0].says("CUDA rank 0 startup estimate")
    assert not await port_open(engine.http_port)
    assert "serving" not in ranks[0].text
    await engine.opened(ranks[0])
    assert (await engine.chat())["status"] == 200


@pytest.mark.parametrize("tp", [2, 3])
async def test_different_settings_end_every_rank(engine: Set, tp: int) -> None:
    ranks = [
        await engine.rank(number, tp, environment={"TF_GLM_KV": "bf16" if number == tp - 1 else "fp8"})
        for number in range(tp)
    ]
    for rank in ranks:
        assert await rank.ends() == 1
        assert "ranks were started with different settings (TF_GLM_KV): rank 0 ['fp8'], rank 1 [" in rank.text


async def test_settings_of_one_spark_may_differ(engine: Set) -> None:
    head = await engine.rank(0, 2, environment={"NCCL_IB_GID_INDEX": "3", "TENSORFOLD_STANDIN_NOTE": "a"})
    await engine.rank(1, 2, environment={"NCCL_IB_GID_INDEX": "4", "TF_ROCE_HCA": "rocep1s0f0"})
    await engine.opened(head)


async def test_an_absent_peer_ends_the_rank_at_the_limit(engine: Set) -> None:
    engine.faults(rendezvous_limit_s=0.3)
    for number in (0, 1):
        rank = await engine.rank(number, 2)
        assert await rank.ends() == 1
        assert "Traceback" in rank.text
        assert "torch.distributed.DistNetworkError: " in rank.text


async def test_garbage_on_the_master_port_does_no_harm(engine: Set) -> None:
    head = await engine.rank(0, 2)
    await until(lambda: port_open(engine.master_port))
    for junk in (b"", os.urandom(5000), b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\2\1{}", b"\0\0\0\2\1{{"):
        _, writer = await asyncio.open_connection("127.0.0.1", engine.master_port)
        writer.write(junk)
        await writer.drain()
        writer.close()
    await engine.rank(1, 2)
    await engine.opened(head)
    assert "Traceback" not in head.text


@pytest.mark.parametrize("busy", ["http_port", "master_port"])
async def test_a_busy_port_is_an_error_and_for_http_only_after_the_load(engine: Set, busy: str) -> None:
    with socket.create_server(("", getattr(engine, busy))):
        ranks = await engine.begin(2)
        assert await ranks[0].ends() == 1
    assert ("serving " in ranks[0].text) == (busy == "http_port")
    assert ("OSError: [Errno 98]" in ranks[0].text) == (busy == "http_port")
    assert ("EADDRINUSE" in ranks[0].text) == (busy == "master_port")


@pytest.mark.parametrize("disable", ["1", "0"])
async def test_nccl_takes_sockets_where_rdma_is_off_or_no_device_has_that_name(engine: Set, disable: str) -> None:
    environment = {"NCCL_DEBUG": "INFO", "NCCL_IB_DISABLE": disable, "NCCL_IB_HCA": "nothere"}
    ranks = await engine.live(2, NCCL_SOCKET_IFNAME="lo", **environment)
    for rank in ranks:
        assert "NET/Socket : Using [0]lo:" in await rank.says("NCCL INFO NET/")


async def test_a_device_that_is_missing_on_one_rank_ends_all_where_roce_carries_the_gathers(engine: Set) -> None:
    engine.faults(ranks={"1": {"environment": {"NCCL_IB_HCA": "nothere"}}, "0": {"environment": {"NCCL_IB_HCA": ""}}})
    for rank in await engine.begin(2, TF_GLM_COMM="roce"):
        assert await rank.ends() == 1
        assert rank.lines[-1] == (
            "RuntimeError: RoCE all-gather setup failed on some rank: RDMA device nothere not found"
        )


async def test_an_unknown_netdev_is_an_nccl_error(engine: Set) -> None:
    rank = await engine.rank(0, 1, environment={"NCCL_SOCKET_IFNAME": "enp9nothere"})
    assert await rank.ends() == 1
    assert "RuntimeError: NCCL error 3" in rank.text


async def test_a_window_that_does_not_fit_is_refused_by_all_before_the_weights(engine: Set) -> None:
    engine.faults(ranks={"1": {"window": 500_000}})
    for rank in await engine.begin(2, "--context", "1048576"):
        assert await rank.ends() == 1
        assert rank.lines[-1].startswith(
            "tensorfold: CUDA startup memory budget cannot fit requested context 1048576; estimated largest "
            "fitting prompt-plus-reply window: 500000 tokens across the ranks. Use --context 500000 "
        )
    await engine.live(2, "--context", "500000")
    assert (await engine.health())["context_length"] == 500_000


async def test_no_window_at_all_is_refused_even_for_context_0(engine: Set) -> None:
    engine.faults(window=0)
    for rank in await engine.begin(2, "--context", "0"):
        assert await rank.ends() == 1
        assert "window: 0 tokens across the ranks. Please free memory" in rank.lines[-1]


async def test_nccl_error_2_for_the_first_starts_only(engine: Set, tmp_path: Path) -> None:
    engine.faults(fail_with="nccl", fail_starts=2, counter_file=str(tmp_path / "starts"))
    for _ in range(2):
        rank = await engine.rank(0, 1)
        assert await rank.ends() == 1
        assert "RuntimeError: NCCL error 2: unhandled system error" in rank.text
        assert "ibv_reg_mr" in rank.text
        assert "Cannot allocate memory" in rank.text
    await engine.opened(await engine.rank(0, 1))


async def test_nccl_error_2_until_the_environment_is_another(engine: Set) -> None:
    engine.faults(fail_with="nccl", fail_unless={"TF_GLM_HC_SPLIT": "0", "TF_GLM_PREFILL_OVERLAP": "0"})
    half = await engine.rank(0, 1, environment={"TF_GLM_HC_SPLIT": "0"})
    assert await half.ends() == 1
    environment = {"TF_GLM_HC_SPLIT": "0", "TF_GLM_PREFILL_OVERLAP": "0"}
    await engine.opened(await engine.rank(0, 1, environment=environment))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("roce-write", "RDMA write to rank 1 failed: transport retry counter exceeded (vendor_err 0x81"),
        ("roce-device", "RoCE all-gather setup failed on some rank: RDMA device rocep1s0f0 not found"),
        ("roce-port", "port 1 is not active"),
        ("roce-geometry", "the ranks' RoCE geometry differs"),
        ("oom", "torch.OutOfMemoryError: CUDA out of memory"),
    ],
)
async def test_errors_of_a_start(engine: Set, kind: str, text: str) -> None:
    engine.faults(fail_with=kind)
    rank = await engine.rank(0, 1)
    assert await rank.ends() == 1
    assert "Traceback (most recent call last)" in rank.text
    assert text in rank.lines[-1]


@pytest.mark.parametrize(("code", "status"), [(3, 3), (0, 0), (-signal.SIGSEGV, -signal.SIGSEGV), (-9, -9)])
async def test_an_exit_in_a_phase(engine: Set, code: int, status: int) -> None:
    engine.faults(exit_phase="weights", exit_code=code)
    rank = await engine.rank(0, 1)
    assert await rank.ends() == status
    assert "startup estimate" in rank.text


async def test_a_silent_rank_is_waited_for_and_named(engine: Set) -> None:
    engine.faults(waiting_line_s=0.1, meet_limit_s=0.5, ranks={"1": {"silent_phase": "weights"}})
    head, worker = await engine.begin(2)
    await head.says("rank 0 finished loading; waiting for rank 1 (0 s)")
    assert await head.ends() == 1
    assert "RuntimeError: rank 1 did not finish loading" in head.text
    assert worker.process.returncode is None


async def test_a_silent_rank_may_spin_and_still_shows_its_stacks(engine: Set) -> None:
    engine.faults(silent_phase="admission", silent_spin=True)
    rank = await engine.rank(0, 1)
    await rank.says("loading ")

    def ticks() -> int:
        return int(Path(f"/proc/{rank.pid}/stat").read_text().split()[13])

    before = ticks()

    async def burned() -> bool:
        return ticks() > before + 10

    await until(burned)
    rank.signal(signal.SIGUSR1)
    await rank.says("most recent call first")
    rank.signal(signal.SIGTERM)
    assert await rank.ends() == -signal.SIGTERM


async def test_less_may_be_served_than_was_asked_without_a_word(engine: Set) -> None:
    engine.faults(served_context=4096, cache_slots=8)
    (rank,) = await engine.live(1, "--context", "1048576")
    assert (await rank.says("startup estimate")).endswith("window 4096, cache slots 8")
    assert (await engine.health())["context_length"] == 4096


async def test_noise_in_the_log(engine: Set) -> None:
    engine.faults(noise_bytes=50_000)
    (rank,) = await engine.live(1)
    assert "x" * 50_000 in rank.lines


async def test_memory_is_really_taken_and_grows(engine: Set) -> None:
    engine.faults(memory_mib=200, delay_s={"weights": 0.5})
    rank = await engine.rank(0, 1)
    await rank.says("startup estimate")

    def resident_mib() -> int:
        with open(f"/proc/{rank.pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") >> 20

    seen = set()

    async def full() -> bool:
        seen.add(resident_mib() // 20)
        return resident_mib() > 200

    await until(full)
    assert len(seen) > 3


def children_of(pid: int) -> list[str]:
    """The names of its child processes."""
    pids = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [Path(f"/proc/{pid}/comm").read_text().strip() for pid in pids]


async def test_a_kernel_build_has_compilers_and_they_end_with_it(engine: Set) -> None:
    engine.faults(compilers=2, delay_s={"kernels": 0.4})
    rank = await engine.rank(0, 1)
    await rank.says("building CUDA extension tensorfold_exl3 (first start after an install or update;")

    async def two() -> bool:
        return children_of(rank.pid) == ["cicc", "cicc"]

    await until(two)
    await engine.opened(rank)
    assert children_of(rank.pid) == []


async def test_a_killed_build_leaves_its_lock_and_the_next_one_waits(engine: Set, tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    engine.faults(build_lock=str(lock), waiting_line_s=0.1, delay_s={"kernels": 30})
    killed = await engine.rank(0, 1)
    await killed.says("building CUDA extension")
    await killed.clear()
    assert lock.exists()
    engine.faults(build_lock=str(lock), waiting_line_s=0.1)
    rank = await engine.rank(0, 1)
    await rank.says(f"waits on the build lock {lock}; ")
    await rank.says("still waiting after ")
    lock.unlink()
    await engine.opened(rank)
    assert "building" not in rank.text
    assert rank.text.count("still waiting") == 1
    await rank.clear()
    fresh = await engine.rank(0, 1)
    await engine.opened(fresh)
    assert "building CUDA extension" in fresh.text
    assert not lock.exists()
