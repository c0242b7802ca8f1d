"""Memory is read as the kernel prints it, and waited for only while it comes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from glm_spark.config.model import Config, Memory
from glm_spark.engine.spec import Variant
from glm_spark.finding import Finding, Severity
from glm_spark.host import estimate, memory, page_cache, settling, whole_file
from glm_spark.preflight.checks import memory as check
from glm_spark.preflight.checks import reclaim
from glm_spark.preflight.context import Context, Moment
from tests.unit.fabric.sparks import config

MEMINFO = """MemTotal:       127600000 kB
MemFree:         20000000 kB
MemAvailable:   120000000 kB
Buffers:            1000 kB
Cached:         99000000 kB
SwapTotal:      16777212 kB
SwapFree:       16777212 kB
HugePages_Total:       0
"""


def test_meminfo_is_read_in_gib() -> None:
    found = memory.parse(MEMINFO)
    assert found is not None
    assert [round(gib, 1) for gib in (found.total, found.available, found.free, found.cached)] == [
        121.7,
        114.4,
        19.1,
        94.4,
    ]
    assert found.swap_total == found.swap_free > 15


@pytest.mark.parametrize("text", ["", "MemTotal: 5 kB\n", "MemAvailable: x\nMemTotal: 5 kB"])
def test_half_a_reading_is_none(text: str) -> None:
    assert memory.parse(text) is None


def test_this_machine_has_memory() -> None:
    assert 0 < memory.read().available_gib <= memory.read().total_gib


def growing(*gib: float) -> Callable[[], memory.Memory | None]:
    """A memory that shows these values one look after the other, then the last one."""
    left = list(gib)
    return lambda: memory.Memory(121.7, left.pop(0) if len(left) > 1 else left[0], 100.0)


async def test_memory_that_an_ended_rank_gives_back_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(settling, "PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(settling, "STILL_SECONDS", 0.2)
    look = growing(70.0, 80.0, 90.0, 103.0)
    async with asyncio.timeout(5):
        assert await settling.settled(102.0, look) > 0.02
    assert look() == memory.Memory(121.7, 103.0, 100.0)


async def test_memory_that_another_program_keeps_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(settling, "PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(settling, "STILL_SECONDS", 0.1)
    async with asyncio.timeout(5):
        assert await settling.settled(102.0, growing(60.0)) < 1
        assert await settling.settled(102.0, lambda: None) < 0.1
        assert await settling.settled(102.0, growing(110.0)) < 0.1


def _check(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    available: float,
    free: float,
    estimate_gib: float | None = None,
    moment: Moment = "start",
) -> list[Finding]:
    rows = {
        "MemTotal": 121.7,
        "MemFree": free,
        "MemAvailable": available,
        "Cached": available - free,
    }
    file = tmp_path / "meminfo"
    file.write_text("".join(f"{name}: {int(gib * 1024**2)} kB\n" for name, gib in rows.items()))
    monkeypatch.setattr(check, "MEMINFO", file)
    settings = config().model_copy(update={"memory": Memory(want_available_gib=110)})
    run = check.CHECK.run(Context(config=settings, me="spark-1", moment=moment, estimate_gib=estimate_gib))
    return list(run)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("available", "free", "estimate_gib", "code", "severity"),
    [
        (118, 118, None, None, None),
        (118, 100, None, None, None),
        (105, 105, None, "memory.low", Severity.WARNING),
        (105, 105, 88.1, "memory.low", Severity.WARNING),
        (80, 80, 88.1, "memory.below-estimate", Severity.ERROR),
        (
            80,
            80,
            None,
            "memory.low",
            Severity.WARNING,
        ),  # nothing is known of the engine yet: it decides
        (118, 30, None, "memory.page-cache", Severity.WARNING),
        (118, 87, 88.1, "memory.page-cache", Severity.WARNING),
        (118, 89, 88.1, None, None),
    ],
)
def test_memory_before_a_start(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    available: float,
    free: float,
    estimate_gib: float | None,
    code: str | None,
    severity: Severity | None,
) -> None:
    found = _check(tmp_path, monkeypatch, available, free, estimate_gib)
    assert [(one.code, one.severity) for one in found] == ([(code, severity)] if code else [])
    assert all(one.measured and one.wanted and one.fix for one in found)


def test_the_estimate_is_known_again_and_belongs_to_its_settings(
    tmp_path: Path,
) -> None:
    first, path = estimate.identity(config(), Variant()), tmp_path / "estimates.json"
    kept = estimate.Estimates(path)
    kept.read()
    assert kept.of(first) is None
    assert kept.keep(first, 88.09)
    assert not kept.keep(first, 88.09)
    kept.write()
    assert path.stat().st_mode & 0o777 == 0o600
    again = estimate.Estimates(path)
    again.read()
    assert again.of(first) == 88.09
    assert again.of(estimate.identity(config(), Variant(context=524288))) is None
    another = config().model_copy(update={"engine": config().engine.model_copy(update={"context": 4096})})
    assert again.of(estimate.identity(another, Variant())) is None


def test_another_program_under_the_same_name_has_another_estimate(
    tmp_path: Path,
) -> None:
    program = tmp_path / "engine"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    engine = config().engine.model_copy(update={"runtime": "process", "command": (str(program),)})
    settings: Config = config().model_copy(update={"engine": engine})
    before = estimate.identity(settings, Variant())
    program.write_text("#!/bin/sh\nexit 0\n")
    assert estimate.identity(settings, Variant()) != before


@pytest.mark.parametrize("content", [b"", b"[1]", b'{"a": "b"}', b"\xff"])
def test_damaged_estimates_are_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "estimates.json").write_bytes(content)
    kept = estimate.Estimates(tmp_path / "estimates.json")
    kept.read()
    assert kept.of("a") is None


def test_a_file_is_whole_or_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    whole_file.write(path, b"first")
    path.chmod(0o644)
    whole_file.write(path, b"second")
    assert path.read_bytes() == b"second"
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["file"]


def _checkpoint(tmp_path: Path) -> Path:
    """A Hugging Face cache entry: a snapshot of links to blobs, one of them astray."""
    entry = tmp_path / "hub/models--a--b"
    snapshot = entry / "snapshots/0123"
    (entry / "blobs").mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for name in ("one", "two"):
        (entry / "blobs" / name).write_bytes(b"w" * (2 << 20))
        (snapshot / f"{name}.safetensors").symlink_to(f"../../blobs/{name}")
    (snapshot / "again.safetensors").symlink_to("../../blobs/one")
    (snapshot / "config.json").write_text("{}")
    (tmp_path / "secret").write_bytes(b"s" * (2 << 20))
    (snapshot / "astray").symlink_to(tmp_path / "secret")
    os.mkfifo(snapshot / "pipe")
    return snapshot


def test_only_the_weights_pages_are_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = _checkpoint(tmp_path)
    told: list[str] = []
    advise = os.posix_fadvise

    def watched(file: int, start: int, length: int, advice: int) -> None:
        told.append(os.path.basename(os.readlink(f"/proc/self/fd/{file}")))
        assert (start, length, advice) == (0, 0, os.POSIX_FADV_DONTNEED)
        advise(file, start, length, advice)

    monkeypatch.setattr(os, "posix_fadvise", watched)
    before = sorted(os.listdir("/proc/self/fd"))
    assert page_cache.give_back([str(snapshot), str(tmp_path / "absent")]) == 4 << 20
    assert sorted(told) == ["one", "two"]
    assert sorted(os.listdir("/proc/self/fd")) == before


SWAPS = """Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority
/swap.img                               file\t\t16777212\t2097152\t\t-2
/dev/zram0                              partition\t8388604\t0\t\t100
"""


def test_swap_and_what_ends_programs_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "swaps").write_text(SWAPS)
    for pid, comm in (
        (7, "earlyoom"),
        (8, "systemd-oomd"),
        (9, "bash"),
        (10, "nohang"),
    ):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "comm").write_text(comm + "\n")
    (tmp_path / "11").mkdir()  # gone while it was looked at
    monkeypatch.setattr(reclaim, "PROC", tmp_path)
    found = list(reclaim.CHECK.run(Context(config=config(), me="spark-1")))  # type: ignore[arg-type]
    assert {(one.code, one.subject, one.severity) for one in found} == {
        ("memory.swap", "swap /swap.img", Severity.WARNING),  # 2 GiB in use
        ("memory.zram", "zram /dev/zram0", Severity.NOTE),
        ("memory.ender", "earlyoom (pid 7)", Severity.WARNING),
        ("memory.ender", "nohang (pid 10)", Severity.WARNING),
        ("memory.ender", "systemd-oomd (pid 8)", Severity.NOTE),
    }
    assert all(one.measured and one.wanted and one.fix for one in found)
