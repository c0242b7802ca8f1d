"""The engine's own words are understood, and no text can upset the reader."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glm_spark.engine.vocabulary import (
    Estimate,
    Event,
    Fault,
    Following,
    Gathers,
    Phase,
    Serving,
    Transport,
    Version,
    WaitingFor,
    Window,
    read,
)
from glm_spark.finding import Severity

T = "[tensorfold] "

SAID: list[tuple[str, list[Event]]] = [
    ("tensorfold 0.6.0", [Version("0.6.0")]),
    (T + "EXL3 support is experimental: some checkpoints may not load", [Phase("starting")]),
    (T + "loading GLM: GLM-5.3-Flash (glm5_next) on CUDA, rank 1 of 2", [Phase("rendezvous")]),
    ("spark-1:7:7 [0] NCCL INFO NET/IB : Using [0]rocep1s0f0:1/RoCE [RO]; OOB x:1.2.3.4<0>", [Transport("IB")]),
    ("spark-1:7:7 [0] NCCL INFO NET/IB : No device found.", []),
    ("spark-1:7:7 [0] NCCL INFO NET/Socket : Using [0]enp1s0f0np0:192.168.100.1<0>", [Transport("Socket")]),
    ("spark-1:7:7 [0] NCCL INFO Using network Socket", [Transport("Socket")]),
    ("spark-1:7:9 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0", [Transport("IB")]),
    (
        T + "all-gathers up to 512 KiB over RoCE (rocep1s0f1, roceP2p1s0f1; transport), larger ones over NCCL",
        [Gathers(("rocep1s0f1", "roceP2p1s0f1"))],
    ),
    (
        T + "CUDA rank 0 startup estimate 88.09 GiB within 97.31 GiB; native 1048576, "
        "allocated prompt/reply window 1048576, cache slots 32",
        [Phase("weights"), Estimate(88.09, 97.31), Window(1048576)],
    ),
    (T + "rank 1 finished loading; waiting for rank 0 (60 s)", [Phase("waiting-for-ranks"), WaitingFor(0)]),
    (T + "building CUDA extension glm_moe (first start after an install or update)", [Phase("kernels")]),
    (
        T + "--parallel 4: up to 4 requests decode together, their caches in one pool of 2922496 tokens",
        [Phase("warm-up")],
    ),
    (T + "rank 1 ready in 123.4s, following rank 0", [Phase("ready"), Following(1, 123.4)]),
    (
        T + "serving GLM-5.3-Flash-EXL3 at http://127.0.0.1:8889/v1 on CUDA, rank 0 of 2 "
        "(sampling: temperature 1; context: 1048576; loaded in 145.0s)",
        [Phase("ready"), Serving(1048576, 145.0)],
    ),
    ("tokenizer ready", []),
]


@pytest.mark.parametrize(("line", "events"), SAID, ids=[line[:40] for line, _ in SAID])
def test_a_line_of_a_start_means(line: str, events: list[Event]) -> None:
    assert read(line, 0, "spark-1") == events


FAULTS = [
    (
        "tensorfold: CUDA startup memory budget cannot fit requested context 1048576; estimated largest fitting "
        "prompt-plus-reply window: 786432 tokens across the ranks. Use --context 786432 with less, or free memory",
        ["engine.window-refused"],
    ),
    (
        "RuntimeError: NCCL error 2: unhandled system error (run with NCCL_DEBUG=INFO for details)",
        ["engine.nccl-error"],
    ),
    ("NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory", ["engine.memory-registration"]),
    (
        "RuntimeError: RoCE all-gather setup failed on some rank: RDMA device rocep1s0f0 not found",
        ["engine.rdma-device-missing"],
    ),
    (
        "RuntimeError: RoCE all-gather setup failed on some rank: rocep1s0f0 port 1 is not active",
        ["engine.roce-port-inactive"],
    ),
    (
        "RuntimeError: RoCE all-gather setup failed on some rank: the ranks' RoCE geometry differs",
        ["engine.roce-geometry"],
    ),
    (
        "RuntimeError: RoCE all-gather failed (sequence 12, peer 1, hca 0): RDMA write to rank 1 failed: "
        "transport retry counter exceeded (vendor_err 0x81, wr 12)",
        ["engine.path-broken"],
    ),
    ("RuntimeError: RoCE all-gather failed (sequence 12, peer 1, hca 0) [doorbell 12]", ["engine.peer-late"]),
    (
        T + "request error: RuntimeError: rank 1 answered round 11, not 12: the ranks are out of step: restart both",
        ["engine.out-of-step", "engine.latched"],
    ),
    (T + "--parallel scheduler iteration failed: RuntimeError: CUDA error", ["engine.latched"]),
    ("Timeout (0:05:00)!", ["engine.step-stuck"]),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", ["engine.out-of-memory"]),
    (
        "tensorfold: the two ranks were started with different settings (context): rank 0 ['1'], rank 1 ['2']",
        ["engine.settings-differ"],
    ),
    ("OSError: [Errno 98] Address already in use", ["engine.port-busy"]),
    (
        T + "still waiting after 60 s on the build lock /cache/glm/lock; if no other build is running, delete it",
        ["engine.build-lock"],
    ),
    ("tensorfold: no such model folder: /nowhere", ["engine.refused"]),
    ("tensorfold serve: error: unrecognized arguments: --nope", ["engine.arguments-refused"]),
    ("tensorfold: error: argument verb: invalid choice", ["engine.arguments-refused"]),
]


@pytest.mark.parametrize(("line", "codes"), FAULTS, ids=[codes[0] + str(n) for n, (_, codes) in enumerate(FAULTS)])
def test_a_fault_is_named_with_its_spark_and_a_next_step(line: str, codes: list[str]) -> None:
    found = [event.finding for event in read(line, 1, "spark-2") if isinstance(event, Fault)]
    assert [finding.code for finding in found] == codes
    for finding in found:
        assert finding.node == "spark-2"
        assert "rank 1" in finding.subject
        assert finding.measured
        assert finding.wanted
        assert finding.fix


def test_the_window_that_would_fit_is_told() -> None:
    window, fault = read(FAULTS[0][0], 0, "spark-1")
    assert window == Window(786432)
    assert isinstance(fault, Fault)
    assert "786432" in fault.finding.fix


def test_a_spark_with_no_room_at_all_is_told_so() -> None:
    window, fault = read(FAULTS[0][0].replace("786432", "0"), 0, "spark-1")
    assert window == Window(0)
    assert isinstance(fault, Fault)
    assert fault.finding.code == "engine.window-none"


def test_a_lock_that_is_waited_for_is_a_warning_and_the_kernels_phase() -> None:
    line = T + "CUDA extension glm_moe waits on the build lock /cache/glm_moe/lock; if no other build is running"
    phase, fault = read(line, 0, "spark-1")
    assert phase == Phase("kernels")
    assert isinstance(fault, Fault)
    assert fault.finding.severity is Severity.WARNING
    assert "/cache/glm_moe/lock" in fault.finding.fix


PIECES = st.sampled_from([*(line for line, _ in SAID), *(line for line, _ in FAULTS)])


@given(st.one_of(st.text(), PIECES.flatmap(lambda line: st.text().map(lambda noise: noise + line + noise))))
def test_no_text_upsets_the_reader(line: str) -> None:
    for event in read(line, 0, "spark-1"):
        if isinstance(event, Fault):
            assert event.finding.measured is not None


@given(st.integers(0, 60), PIECES, st.sampled_from(["9" * 5000, "[" * 3000, "\x00" * 100, "{0}{x}", " " * 8000]))
def test_a_known_line_with_noise_in_it_does_not_either(at: int, line: str, noise: str) -> None:
    read(line[:at] + noise + line[at:], 0, "n" * 90)
