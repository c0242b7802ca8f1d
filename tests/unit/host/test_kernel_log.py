"""What the kernel says is understood: what is fatal, what passes, and what is nothing. Lines as drivers print them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glm_spark.finding import Severity
from glm_spark.host import kernel_lines
from glm_spark.host.kernel_log import FATAL_CODES, SIGNS, Ear

NO_MEMORY = (
    "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) returned from "
    "_memdescAllocInternal(pMemDesc) @ mem_desc.c:1359"
)


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (
            "NVRM: Xid (PCI:000f:01:00): 79, GPU has fallen off the bus.",
            "hardware.gpu-reset-needed",
        ),
        (
            "NVRM: Xid (PCI:000f:01:00): 119, pid=4711, name=python3, Timeout after 45s of waiting for RPC response",
            "hardware.gpu-reset-needed",
        ),
        (
            "NVRM: Xid (PCI:000f:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
            "hardware.gpu-reset-needed",
        ),
        (
            "NVRM: Xid (PCI:000f:01:00): 154, GPU recovery action changed from 0x0 to 0x2 (Node Reboot Required)",
            "hardware.gpu-reset-needed",
        ),
        (
            "NVRM: nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062)",
            "hardware.gpu-reset-needed",
        ),
        (
            "NVRM: Xid (PCI:000f:01:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
            "hardware.gpu-xid",
        ),
        (
            "NVRM: Xid (PCI:000f:01:00): 13, pid=4711, Graphics Exception",
            "hardware.gpu-xid",
        ),
        (
            "NVRM: Xid (PCI:000f:01:00): 480, pid=4711, a number that begins as another",
            "hardware.gpu-xid",
        ),
        (
            "pcieport 0002:00:00.0: AER: Uncorrectable (Fatal) error message received from 0002:01:00.0",
            "hardware.pcie-fatal",
        ),
        (
            "mlx5_core 0002:01:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer",
            "hardware.pcie-fatal",
        ),
        (
            "pcieport 0015:00:00.0: DPC: containment event, status:0x200d, ERR_FATAL received from 0015:01:00.0",
            "hardware.pcie-fatal",
        ),
        (
            "pcieport 0002:00:00.0: AER: Uncorrectable (Non-Fatal) error message received from 0002:01:00.0",
            None,
        ),
        (
            "pcieport 0002:00:00.0: AER: Correctable error message received from 0002:01:00.0",
            None,
        ),
        ("pcieport 0002:00:00.0: AER: enabled with IRQ 12", None),
        (
            "mlx5_core 0000:01:00.0: poll_health:739:(pid 0): Fatal error 1 detected",
            "hardware.nic-firmware",
        ),
        (
            "mlx5_core 0000:01:00.0: poll_health:772: device's health compromised - reached miss count",
            "hardware.nic-firmware",
        ),
        ("mlx5_core 0000:01:00.0 enp1s0f0np0: Link down", None),
        ("mlx5_core 0000:01:00.0: firmware version: 28.45.4028", None),
        (
            "Out of memory: Killed process 4711 (python3) total-vm:9000000kB, anon-rss:8000000kB, file-rss:0kB",
            "memory.oom-killed",
        ),
        (
            "Memory cgroup out of memory: Killed process 12 (make) total-vm:1kB",
            "memory.oom-killed",
        ),
        (
            "watchdog: BUG: soft lockup - CPU#3 stuck for 26s! [kworker/u40:1:88]",
            "hardware.lockup",
        ),
        ("Internal error: Oops: 0000000096000006 [#1] SMP", "hardware.kernel-oops"),
        (
            "pc : mt7925_mac_link_sta_update+0x24/0x90 [mt7925_common]",
            "hardware.wifi-oops",
        ),
        ("INFO: task iw:4242 blocked for more than 122 seconds.", "hardware.task-hung"),
        (NO_MEMORY, None),  # one is no storm
        ("wlP9s9: authenticated", None),
        ("", None),
    ],
)
def test_the_table(line: str, code: str | None) -> None:
    found = Ear("spark-2").hear(line, 0.0)
    assert (found.code if found else None) == code
    if found is not None:
        assert (found.severity is Severity.ERROR) == (code in FATAL_CODES)
        assert found.node == "spark-2"
        assert line[:60] in found.measured
        assert found.wanted
        assert found.fix


def test_the_device_and_the_victim_are_named() -> None:
    ear = Ear("spark-1")
    pcie = ear.hear(
        "pcieport 0002:00:00.0: AER: Uncorrectable (Fatal) error message received from 0002:01:00.0",
        0,
    )
    assert pcie is not None
    assert "0002:01:00.0" in pcie.subject
    killed = ear.hear("Out of memory: Killed process 4711 (python3) total-vm:9kB", 0)
    assert killed is not None
    assert "python3 (pid 4711)" in killed.subject


def test_a_storm_is_five_within_ten_seconds() -> None:
    ear = Ear("spark-1")
    assert [ear.hear(NO_MEMORY, at * 60.0) for at in range(20)] == [None] * 20
    heard = [ear.hear(NO_MEMORY, 5000 + at) for at in range(5)]
    assert [one.code if one else None for one in heard] == [None] * 4 + ["hardware.gpu-memory-storm"]


def test_a_flood_is_told_once_a_minute() -> None:
    ear = Ear("spark-1")
    line = "NVRM: Xid (PCI:000f:01:00): 13, Graphics Exception"
    assert [at for at in range(0, 150, 10) if ear.hear(line, float(at)) is not None] == [0, 60, 120]


def test_fatal_codes_are_those_of_the_hardware() -> None:
    assert {
        "hardware.gpu-reset-needed",
        "hardware.gpu-memory-storm",
        "hardware.pcie-fatal",
    } == FATAL_CODES
    assert {sign.severity for sign in SIGNS if sign.code in FATAL_CODES} == {Severity.ERROR}


@given(st.text(max_size=3000))
def test_nothing_the_kernel_says_breaks_the_ear(line: str) -> None:
    Ear("spark-1").hear(line, 0.0)
    Ear("spark-1").hear(f"NVRM: Xid ({line}): 79 {line}", 0.0)


RECORDED = (
    b"6,339,5140900,-;NET: Registered PF_INET6 protocol family\n"
    b" SUBSYSTEM=net\n DEVICE=+net:lo\n"
    b"12,340,5140901,-;systemd[1]: a program wrote this: NVRM: Xid (PCI:000f:01:00): 79\n"
    b"3,341,5140902,c;NVRM: Xid (PCI:000f:01:00): 79,\\x0a gone \xff\n"
    b"no record\n"
)


def test_the_kernels_own_records_are_read() -> None:
    """Facility 0 only: a program that writes to /dev/kmsg (the second record: 12 is facility 1) is not the kernel."""
    assert kernel_lines.kmsg_lines(RECORDED) == [
        "NET: Registered PF_INET6 protocol family",
        "NVRM: Xid (PCI:000f:01:00): 79,  gone \ufffd",
    ]


@given(st.binary(max_size=300))
def test_any_bytes_are_read(data: bytes) -> None:
    kernel_lines.kmsg_lines(data)
    kernel_lines.journal_line(data)


@pytest.mark.parametrize(
    ("told", "line"),
    [
        ({"MESSAGE": "a", "SYSLOG_FACILITY": "0"}, "a"),
        ({"MESSAGE": "a"}, "a"),
        ({"MESSAGE": [104, 105]}, "hi"),
        ({"MESSAGE": "a", "SYSLOG_FACILITY": "3"}, None),
        ({"MESSAGE": [999]}, None),
        ({"MESSAGE": None}, None),
        ([], None),
    ],
)
def test_the_journals_objects_are_read(told: object, line: str | None) -> None:
    assert kernel_lines.journal_line(json.dumps(told).encode()) == line


async def _first(lines: asyncio.Queue[str]) -> str:
    async with asyncio.timeout(10):
        return await lines.get()


@contextlib.asynccontextmanager
async def followed(kmsg: Path) -> AsyncIterator[asyncio.Queue[str]]:
    lines: asyncio.Queue[str] = asyncio.Queue()
    task = asyncio.create_task(kernel_lines.follow(lines.put_nowait, kmsg))
    try:
        yield lines
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_lines_are_heard_as_they_come(tmp_path: Path) -> None:
    pipe = tmp_path / "kmsg"
    os.mkfifo(pipe)
    writer = os.open(pipe, os.O_RDWR)
    try:
        async with followed(pipe) as lines:
            os.write(writer, b"3,1,1,-;first\n3,2,2,-;second\n")
            assert [await _first(lines), await _first(lines)] == ["first", "second"]
            os.write(writer, RECORDED)
            assert (await _first(lines)).startswith("NET")
    finally:
        os.close(writer)


async def test_where_kmsg_may_not_be_read_the_journal_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A journalctl that prints one line, hangs, and writes down what it was given. It ends with its reader."""
    child = tmp_path / "journalctl"
    child.write_text(
        f"#!{sys.executable}\nimport json, os, sys, time\n"
        f"json.dump([os.getpid(), sys.argv[1:], dict(os.environ)], open({str(tmp_path / 'seen')!r}, 'w'))\n"
        'print(\'{"MESSAGE": "NVRM: hello"}\', flush=True)\ntime.sleep(600)\n'
    )
    child.chmod(child.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/secret")
    async with followed(tmp_path / "absent") as lines:
        assert await _first(lines) == "NVRM: hello"
        pid, argv, environment = json.loads((tmp_path / "seen").read_text())
    assert argv[:3] == ["--dmesg", "--follow", "--lines=0"]
    assert set(environment) <= {"PATH", "LANG", "LC_CTYPE"}
    assert not Path(f"/proc/{pid}").exists()


async def test_a_journal_that_ends_is_followed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = tmp_path / "journalctl"
    child.write_text('#!/bin/sh\necho \'{"MESSAGE": "again"}\'\n')
    child.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(kernel_lines, "FIRST_PAUSE", 0.01)
    async with followed(tmp_path / "absent") as lines:
        assert [await _first(lines) for _ in range(3)] == ["again"] * 3
