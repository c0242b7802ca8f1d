"""Late is not gone: what counts as progress of a load, and what never does."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from glm_spark.engine.progress import COMPILER_STEP, WEIGHT_STEP, Sample, Watch, look, silent_for

Until = Callable[[Callable[[], object]], Awaitable[None]]


def test_bytes_read_and_memory_that_grows_are_progress_of_the_weights() -> None:
    for field in ("read_bytes", "memory_bytes"):
        samples = [Sample(at=10.0 * n, phase="weights", **{field: n * WEIGHT_STEP}) for n in range(5)]
        assert silent_for(samples, "weights") == 0.0
        still = [Sample(at=10.0 * n, phase="weights", **{field: 7}) for n in range(5)]
        assert silent_for(still, "weights") == 40.0


def test_a_slow_but_steady_load_is_no_silence() -> None:
    samples = [Sample(at=float(n), phase="weights", read_bytes=n * WEIGHT_STEP // 10) for n in range(100)]
    assert silent_for(samples, "weights") < 10


def test_memory_that_only_swings_is_no_progress() -> None:
    samples = [Sample(at=float(n), phase="weights", memory_bytes=(n % 2) * WEIGHT_STEP) for n in range(100)]
    assert silent_for(samples, "weights") >= 98


def test_compilers_at_work_are_progress_of_the_kernels() -> None:
    samples = [Sample(at=60.0 * n, phase="kernels", compiler_cpu_s=n * COMPILER_STEP) for n in range(40)]
    assert silent_for(samples, "kernels") == 0.0


@pytest.mark.parametrize("phase", ["rendezvous", "waiting-for-ranks"])
def test_waiting_has_no_progress_of_its_own(phase: str) -> None:
    samples = [
        Sample(at=60.0 * n, phase=phase, read_bytes=n << 40, memory_bytes=n << 40, compiler_cpu_s=99.0 * n)
        for n in range(11)
    ]
    assert silent_for(samples, phase) == 600.0


def test_a_new_phase_is_progress_and_what_cannot_be_read_proves_nothing() -> None:
    watch = Watch()
    assert (watch.last_progress, watch.silent_for) == (None, 0.0)
    watch.add(Sample(at=0.0, phase="rendezvous"))
    watch.add(Sample(at=50.0, phase="weights", read_bytes=None))
    watch.add(Sample(at=80.0, phase="weights", read_bytes=None))
    assert (watch.last_progress, watch.silent_for) == (50.0, 30.0)
    assert silent_for([], "weights") == 0.0


SPIN = "while True: pass"


@pytest.fixture
def compiler(tmp_path: Path) -> Path:
    """A program by a compiler's name that only burns CPU."""
    program = tmp_path / "cicc"
    shutil.copy(os.path.realpath(sys.executable), program)
    return program


@pytest.fixture
def started() -> Iterator[Callable[[str], int]]:
    processes: list[subprocess.Popen[bytes]] = []

    def start(program: str) -> int:
        processes.append(subprocess.Popen([sys.executable, "-I", "-S", "-c", program], start_new_session=True))
        return processes[-1].pid

    yield start
    for process in processes:
        os.killpg(process.pid, 9)
        process.wait()


async def test_a_ranks_own_cpu_is_never_progress(started: Callable[[str], int]) -> None:
    pid = started(SPIN)
    await asyncio.sleep(0.3)
    assert look(pid, "kernels", 0.0).compiler_cpu_s == 0.0


async def test_a_compilers_cpu_below_the_rank_is_seen_and_kept_after_its_end(
    started: Callable[[str], int], until: Until, compiler: Path
) -> None:
    program = f"import os, subprocess, time\nsubprocess.run([{str(compiler)!r}, '-I', '-S', '-c', {BURN!r}])\n"
    pid = started(program + "time.sleep(1000)\n")
    await until(lambda: (look(pid, "kernels", 0.0).compiler_cpu_s or 0.0) > 0.1)
    await until(lambda: not Path(f"/proc/{pid}/task/{pid}/children").read_text())
    assert (look(pid, "kernels", 0.0).compiler_cpu_s or 0.0) >= 0.25


BURN = "import time\nwhile time.process_time() < 0.3: pass"


async def test_reading_and_growing_are_seen(started: Callable[[str], int], until: Until, tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    weights.write_bytes(b"\1" * WEIGHT_STEP)
    pid = started(f"import time\nheld = open({str(weights)!r}, 'rb').read()\ntime.sleep(1000)\n")
    await until(lambda: (look(pid, "weights", 0.0).read_bytes or 0) >= WEIGHT_STEP)
    await until(lambda: (look(pid, "weights", 0.0).memory_bytes or 0) >= WEIGHT_STEP)


def test_a_rank_that_is_gone_reads_as_nothing() -> None:
    assert look(2**22 - 1, "weights", 1.0) == Sample(at=1.0, phase="weights")
