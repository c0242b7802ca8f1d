"""Who killed a rank: glm-spark, the kernel for want of memory, or somebody else. Lines as the kernel writes them."""

from __future__ import annotations

import pytest

from glm_spark.engine import deaths
from glm_spark.engine.deaths import Line, cause, explained, journal_line, kmsg_line
from glm_spark.engine.runtime import Exit

OOM = [
    Line(99.0, "Out of memory: Killed process 4242 (python3) total-vm:1kB, anon-rss:1kB"),
    Line(200.1, "firefox invoked oom-killer: gfp_mask=0x140cca(GFP_HIGHUSER_MOVABLE|__GFP_COMP), order=0"),
    Line(200.2, "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),task=python3,pid=4242,uid=0"),
    Line(200.3, "Out of memory: Killed process 4242 (python3) total-vm:118000000kB, anon-rss:9000000kB, UID:0"),
]


def test_the_kernels_killer_is_named_with_who_asked_for_memory() -> None:
    assert cause(OOM, 4242, 150.0) == "killed by the kernel for want of memory, when firefox asked for more"


def test_another_process_or_another_life_of_the_number_is_not_taken_for_the_rank() -> None:
    assert cause(OOM, 4243, 150.0) == ""
    assert cause(OOM[:1], 4242, 150.0) == ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Memory cgroup out of memory: Killed process 4242 (python3) total-vm:1kB", "killed by the kernel"),
        ("python3[4242]: segfault at 0 ip 00007f sp 00007f error 4 in libcuda.so", "segfault at 0"),
        ("NVRM: Xid (PCI:000f:01:00): 31, pid=4242, name=python3, Ch 00000008", "Xid 31"),
        ("NVRM: Xid (PCI:000f:01:00): 31, pid='4242', name=python3, Ch 00000008", "Xid 31"),
        ("NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x51)", "NV_ERR_NO_MEMORY"),
        ("enp1s0f0np0: link becomes ready", ""),
    ],
)
def test_each_kind_of_line_is_understood(text: str, said: str) -> None:
    found = cause([Line(200.0, text)], 4242, 150.0)
    assert said in found
    assert bool(found) is bool(said)


def test_both_ways_to_the_log_give_the_same_line() -> None:
    record = "3,1234,200300000,-;Out of memory: Killed process 4242 (python3)\n SUBSYSTEM=memory\n"
    told = "[  200.300000] spark-1 kernel: Out of memory: Killed process 4242 (python3)"
    assert kmsg_line(record) == journal_line(told) == Line(200.3, "Out of memory: Killed process 4242 (python3)")
    assert kmsg_line("torn") is None
    assert journal_line("-- Boot 1 --") is None


@pytest.mark.parametrize("ended", [Exit(137, None), Exit(None, 9)])
@pytest.mark.parametrize(
    ("log", "by_us", "said"),
    [
        (OOM, False, "want of memory"),
        (OOM, True, "killed by glm-spark"),
        ([], False, "killed by somebody on this Spark: neither by glm-spark nor by the kernel"),
        (None, False, "whose log cannot be read"),
    ],
)
async def test_a_kill_by_us_by_the_kernel_and_by_a_stranger_are_told_apart(
    monkeypatch: pytest.MonkeyPatch, ended: Exit, log: list[Line] | None, by_us: bool, said: str
) -> None:
    async def kernel_log() -> list[Line] | None:
        return log

    monkeypatch.setattr(deaths, "kernel_log", kernel_log)
    told = await explained(ended, 4242, 150.0, by_us=by_us)
    assert said in told.cause
    assert said in str(told)


async def test_an_end_by_itself_needs_no_killer() -> None:
    for ended in (Exit(0, None), Exit(1, None), Exit(None, None)):
        assert await explained(ended, 4242, 150.0, by_us=False) == ended
