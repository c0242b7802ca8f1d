"""A rank's start, phase by phase. Each phase is one function; PHASES is their order."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from glm_spark.standin.children import end_compilers, leave_grandchild, start_compiler
from glm_spark.standin.console import BANNER, EXPERIMENTAL, nccl, say
from glm_spark.standin.failures import (
    NCCL,
    REG_MR,
    START_FAILURES,
    DistNetworkError,
    OutOfMemoryError,
    Refusal,
    leave,
    window_refusal,
)
from glm_spark.standin.faults import Faults, FaultSource
from glm_spark.standin.mesh import Found, Mesh, join, open_devices
from glm_spark.standin.options import NATIVE_CONTEXT, ServeOptions
from glm_spark.standin.rendezvous import Hub, Spoke, for_ever
from glm_spark.standin.ring import Member
from glm_spark.standin.rounds import POOL_TOKENS
from glm_spark.standin.settings import difference, shared_settings
from glm_spark.standin.transport import Transport, choose, nccl_lines, roce_line

EXTENSION = "tensorfold_exl3"
LOCK_LOOK_S = 0.1
LOAD_STEPS = 50


@dataclass
class Start:
    """What the phases of one rank's start share."""

    options: ServeOptions
    faults: FaultSource
    environment: Mapping[str, str]
    store: Hub | Spoke
    began: float = field(default_factory=time.monotonic)
    member: Member | None = None
    transport: Transport | None = None
    found: Found = field(default_factory=lambda: Found({}, {}))
    mesh: Mesh | None = None
    window: int = NATIVE_CONTEXT  # tokens that fit on every rank
    ballast: list[bytearray] = field(default_factory=list)

    @property
    def context(self) -> int:
        return self.faults.now().served_context or self.options.context or self.window

    @property
    def network_environment(self) -> Mapping[str, str]:
        """The rank's environment with what a test forces on its network."""
        return {**self.environment, **self.faults.now().environment}

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began


async def banner(start: Start) -> None:
    print(BANNER, flush=True)
    say(EXPERIMENTAL)


async def loading(start: Start) -> None:
    options = start.options
    say(f"loading {options.served_name}: GLM-5.3-Flash (glm5_next) on CUDA, rank {options.rank} of {options.tp}")


async def rendezvous(start: Start) -> None:
    """Meets the other ranks; ends every rank when they were started with different settings."""
    script = start.faults.now()
    store, options = start.store, start.options
    address = options.master or "127.0.0.1"
    ring: tuple[str, int] = ("", 0)
    if isinstance(store, Spoke):
        address = (await store.connect(script.rendezvous_limit_s)).local_address
    start.transport = choose(start.network_environment, address, script.nccl_fallback)
    if isinstance(store, Spoke):
        start.member = Member(store, start.faults)
        ring = await start.member.listen(start.transport.address)
    hello = {
        "rank": options.rank,
        "settings": shared_settings(options, start.environment),
        "window": script.window if script.window >= 0 else NATIVE_CONTEXT,
        "ring": ring,
    }
    world = await store.join(hello, script.rendezvous_limit_s)
    start.window = min(one["window"] for one in world)
    if text := difference([one["settings"] for one in world]):
        raise RuntimeError(text)
    if start.member:
        await start.member.join(world)


async def transport(start: Start) -> None:
    """NCCL and the all-gathers over RoCE: devices opened, every rail used once. Raises RuntimeError."""
    assert start.transport
    asked, environment, options = start.transport, start.network_environment, start.options
    found = start.found = open_devices((*asked.devices, *asked.gather_devices), environment.get("NCCL_IB_GID_INDEX"))
    # NCCL leaves out what it cannot use, without a word.
    start.transport = replace(asked, devices=tuple(name for name in asked.devices if name in found.devices))
    for line in nccl_lines(start.transport, options.rank, environment):
        print(line, flush=True)
    try:
        await everyone(start, "transport")
        if options.tp > 1:
            limits = (start.faults.now().roce_timeout_s, float(environment.get("TF_ROCE_WAIT_S", "300")))
            start.mesh = await join((options.rank, options.tp), start.transport, found, limits, sharing(start))
    except DistNetworkError:
        await for_ever()  # a collective: a rank in it does not notice that rank 0 is gone
    if start.member:
        start.member.mesh = start.mesh
    line = roce_line(start.transport)
    if line and options.rank == 0:
        say(line)


def sharing(start: Start) -> Callable[[str, Any], Awaitable[Mapping[int, Any]]]:
    """Tells all ranks a value and waits for theirs."""

    async def share(place: str, value: Any) -> Mapping[int, Any]:
        await everyone(start, place, value=value)
        return start.store.told(place)

    return share


async def admission(start: Start) -> None:
    """The memory estimate, and the refusal of a window that does not fit the smallest rank."""
    options, script = start.options, start.faults.now()
    if start.window <= 0 or options.context > start.window:
        raise window_refusal(options.context, start.window)
    say(
        f"CUDA rank {options.rank} startup estimate {script.estimate_gib:.2f} GiB within "
        f"{script.budget_gib:.2f} GiB; native {NATIVE_CONTEXT}, allocated prompt/reply window {start.context}, "
        f"cache slots {script.cache_slots}"
    )


async def weights(start: Start) -> None:
    """No line of its own. Takes `delay_s.weights`, reading and keeping `memory_mib` in even steps."""
    script = start.faults.now()
    seconds = script.delay_s.get("weights", 0.0)
    if script.noise_bytes:
        make_noise(script.noise_bytes)
    if not script.memory_mib:
        await asyncio.sleep(seconds)
        return
    size = (script.memory_mib << 20) // LOAD_STEPS
    for _ in range(LOAD_STEPS):
        start.ballast.append(read_weights(size))
        await asyncio.sleep(seconds / LOAD_STEPS)


def make_noise(size: int) -> None:
    """Random bytes, then as many in one line: what a crashing library leaves in a log."""
    sys.stdout.buffer.write(os.urandom(size) + b"\n" + b"x" * size + b"\n")
    sys.stdout.flush()


def read_weights(size: int) -> bytearray:
    """So many bytes, read and held: both show in /proc, as a real load does."""
    chunk = bytearray(size)
    with open("/dev/zero", "rb", buffering=0) as source:
        source.readinto(chunk)
    return chunk


async def kernels(start: Start) -> None:
    """Says nothing when the kernel cache is warm: no delay, no compilers and no lock asked for."""
    script = start.faults.now()
    seconds = script.delay_s.get("kernels", 0.0)
    if not (seconds or script.compilers or script.build_lock):
        return None
    lock = script.build_lock
    if lock and locked(lock):
        # Once it is gone the module is taken as it is: a start that waited builds nothing itself.
        return await wait_for_lock(lock, script.waiting_line_s)
    if lock:
        os.close(os.open(lock, os.O_CREAT | os.O_WRONLY, 0o600))
    say(f"building CUDA extension {EXTENSION} (first start after an install or update; later starts reuse it)")
    compilers = [start_compiler() for _ in range(script.compilers)]
    try:
        await asyncio.sleep(seconds)
    finally:
        end_compilers(compilers)
    if lock:
        with suppress(FileNotFoundError):
            os.unlink(lock)
    return None


def locked(path: str) -> bool:
    return os.path.exists(path)


async def wait_for_lock(lock: str, line_s: float) -> None:
    """Waits, for ever if need be, for a lock that a killed build left behind; says so twice, as the engine does."""
    hint = "a killed build may have left it: stop this start, delete the lock and start again"
    say(f"CUDA extension {EXTENSION} waits on the build lock {lock}; {hint}")
    began = time.monotonic()
    said = False
    while locked(lock):
        await asyncio.sleep(LOCK_LOOK_S)
        if not said and time.monotonic() - began >= line_s:
            said = True
            say(f"still waiting after {line_s:g} s on the build lock {lock}; {hint}")


async def meet(start: Start) -> None:
    """Every rank waits here for the slowest one to finish loading."""
    script, rank = start.faults.now(), start.options.rank

    def line(seconds: float) -> None:
        missing = ", ".join(str(one) for one in start.store.absent("loaded"))
        say(f"rank {rank} finished loading; waiting for rank {missing} ({seconds:.0f} s)")

    try:
        async with asyncio.timeout(script.meet_limit_s):
            await everyone(start, "loaded", script.waiting_line_s, line)
    except TimeoutError:
        missing = ", ".join(str(one) for one in start.store.absent("loaded"))
        raise RuntimeError(f"rank {missing} did not finish loading in {script.meet_limit_s:.0f} s") from None


async def ready(start: Start) -> None:
    """The last line before serving; rank 0 says it before it binds its port."""
    options = start.options
    if start.faults.now().grandchild:
        leave_grandchild()
    if options.rank:
        say(f"rank {options.rank} ready in {start.seconds:.1f}s, following rank 0")
        return
    if options.slots > 1:
        say(
            f"--parallel {options.slots}: up to {options.slots} requests decode together, their caches in one "
            f"pool of {POOL_TOKENS} tokens (each up to {start.context}); a request that does not fit waits"
        )
    say(
        f"serving {options.served_name} at http://{options.host}:{options.port}/v1 on CUDA, rank 0 of "
        f"{options.tp} (sampling: temperature 1, top-p 0.95; context: {start.context}; "
        f"loaded in {start.seconds:.1f}s)"
    )


PHASES: tuple[Callable[[Start], Awaitable[None]], ...] = (
    banner,
    loading,
    rendezvous,
    transport,
    admission,
    weights,
    kernels,
    meet,
    ready,
)
PACED_INSIDE = ("weights", "kernels")


async def run_phases(start: Start) -> None:
    """The whole start. Raises Refusal, RuntimeError or OSError where the engine would end."""
    for phase in PHASES:
        name = phase.__name__
        script = start.faults.now()
        await strike(name, script, start)
        if name not in PACED_INSIDE:
            await asyncio.sleep(script.delay_s.get(name, 0.0))
        await phase(start)


async def strike(phase: str, script: Faults, start: Start) -> None:
    """The faults that any phase can have: silence, an exit, one of the engine's own errors."""
    if script.silent_phase == phase:
        while script.silent_spin:
            pass  # as NCCL spins: CPU without progress, and no other task of this process runs
        await for_ever()
    if script.exit_phase == phase:
        leave(script.exit_code)
    if not script.fail_with:
        return
    where, error = START_FAILURES[script.fail_with]
    if where == phase and fails_now(script, start):
        if str(error) == NCCL:
            print(nccl(REG_MR.format(error="Cannot allocate memory")), flush=True)
        raise OutOfMemoryError(*error.args) if isinstance(error, OutOfMemoryError) else RuntimeError(*error.args)


def fails_now(script: Faults, start: Start) -> bool:
    """Counts this start in `counter_file` (one file a rank); True while it is among the first `fail_starts`."""
    wanted = script.fail_unless
    if wanted and all(start.environment.get(name) == value for name, value in wanted.items()):
        return False
    if not script.fail_starts:
        return True
    if not script.counter_file:
        raise Refusal("TENSORFOLD_STANDIN: fail_starts needs counter_file")
    path = f"{script.counter_file}.{start.options.rank}"
    try:
        with open(path, encoding="ascii") as file:
            starts = int(file.read() or 0)
    except FileNotFoundError:
        starts = 0
    with open(path, "w", encoding="ascii") as file:
        file.write(str(starts + 1))
    return starts < script.fail_starts


async def everyone(
    start: Start, place: str, line_s: float = 0.0, line: Callable[[float], None] | None = None, value: Any = None
) -> None:
    """Waits until all ranks have come to `place` with their values, calling `line` with the seconds every `line_s`."""
    start.store.arrive(place, value)
    began = time.monotonic()
    lines = 1
    while start.store.absent(place):
        limit = max(0.0, began + lines * line_s - time.monotonic()) if line else None
        try:
            async with asyncio.timeout(limit):
                await start.store.changed()
        except TimeoutError:
            if line:
                line(lines * line_s)
                lines += 1
