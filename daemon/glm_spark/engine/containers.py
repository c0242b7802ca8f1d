"""Ranks as containers of podman or docker, each held by a keeper that removes the container at the end.

The keeper runs podman (or docker) in the foreground. Below podman stands everything of the rank: conmon and, below
that, the container; so the keeper's own way to end all its descendants reaches them, and its last act is the
runtime's `rm --force`, which takes mounts and records away. A docker container stands below containerd: there the last
act ends it too.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from pathlib import Path

from glm_spark.config.model import Config
from glm_spark.engine import cgroup, container, deaths, images, processes
from glm_spark.engine.command import Unanswered, ask
from glm_spark.engine.process import KeptRank, ProcessRuntime, Program, keep
from glm_spark.engine.runtime import Exit, StartFault
from glm_spark.engine.spec import RankSpec
from glm_spark.finding import Finding, Severity

log = logging.getLogger(__name__)

START_SECONDS = 120.0  # from the runtime's start to the container's first process: 0.4 s, and minutes on a slow disk
FIRST_LOOK = 0.03
SLOWEST_LOOK = 0.3
LOOK_SECONDS = 5.0
ENDED_SECONDS = 5.0  # between a container's end and the runtime's word on it: 0.2 s
TOOL_SECONDS = 30.0  # for one answer of the runtime
REMOVE_TRIES = 5
WORDS_SECONDS = 2.0
LAST_WORDS = 12  # lines of podman's or docker's own complaint


class ContainerRank:
    """A rank in a container. `pid` is its first process as this Spark numbers it: what is measured and signalled."""

    def __init__(self, kept: KeptRank, remove: tuple[str, ...], environment: Mapping[str, str]) -> None:
        self._kept = kept
        self._remove = remove
        self._environment = environment
        self._process: processes.Process | None = None
        self._watched: list[int] = []
        self._overdue: asyncio.TimerHandle | None = None
        self._killed = False
        self._since = asyncio.get_running_loop().time()

    def found(self, first: processes.Process, *, monitored: bool) -> None:
        """The container's first process is known; `monitored`: its parent is conmon, without which nobody sees its
        end and podman waits for ever (4.3)."""
        self._process = first
        for pid in (first.pid, first.parent) if monitored else (first.pid,):
            with suppress(OSError):
                handle = os.pidfd_open(pid)
                self._watched.append(handle)
                asyncio.get_running_loop().add_reader(handle, self._one_ended, handle)

    def _one_ended(self, handle: int) -> None:
        """The runtime should say so any moment; when it does not, the rest is ended."""
        self._unwatch(handle)
        if self._overdue is None:
            self._overdue = asyncio.get_running_loop().call_later(ENDED_SECONDS, self._kept.kill)

    def _unwatch(self, handle: int) -> None:
        asyncio.get_running_loop().remove_reader(handle)
        os.close(handle)
        self._watched.remove(handle)

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    @property
    def lines(self) -> AsyncIterator[str]:
        return self._kept.lines

    async def wait(self) -> Exit:
        ended = await self._kept.ended()
        if self._overdue is not None:
            self._overdue.cancel()
        for handle in tuple(self._watched):
            self._unwatch(handle)
        if ended.signal is not None and not self._killed:
            # It is the runtime's own end: the rank's is not known.
            tool = Path(self._remove[0]).name
            return Exit(None, None, f"{tool}, which ran it, {Exit(None, ended.signal)}")
        return await deaths.explained(ended, self.pid, self._since, by_us=self._killed)

    async def gone(self) -> None:
        """Nothing of it runs, and the runtime knows nothing of it any more, as far as that can be had."""
        await self._kept.gone()
        if not self._kept.left:
            return
        for attempt in range(REMOVE_TRIES):
            with suppress(Unanswered):
                if (await ask(self._remove, TOOL_SECONDS, self._environment)).code == 0:
                    return
            await asyncio.sleep(0.2 * 2**attempt)

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def dump(self) -> None:
        self._signal(signal.SIGUSR1)

    def kill(self) -> None:
        self._killed = self._killed or not self._kept.over
        self._kept.kill()

    def _signal(self, number: signal.Signals) -> None:
        """To the engine itself, which is the container's first process."""
        if self._process is not None and not self._kept.over:
            processes.send(self._process, number)


class ContainerRuntime:
    """`config` is read anew at every start: what changed in the file takes effect with the next one."""

    def __init__(self, config: Callable[[], Config]) -> None:
        self._config = config

    async def start(self, spec: RankSpec) -> ContainerRank:
        """Must be called on the main thread's loop. Raises StartFault when no container of it runs."""
        config = self._config()
        image = await images.look(config, spec.node)
        if isinstance(image, Finding):
            raise StartFault(image)
        kernels = await _kernel_cache(config, image, spec.node)
        podman = config.engine.runtime == "podman"
        group = cgroup.make(f"rank-{spec.generation}") if podman else None
        environment = container.tool_environment(os.environ)
        remove = container.remove(config, container.name_of(spec))
        argv = container.run(config, spec, kernels, split=group is not None, image=image.reference)
        program = Program(argv, {**environment, **spec.marks}, group, remove)
        kept = await keep(spec, program, _no_runtime)
        rank = ContainerRank(kept, remove, environment)
        try:
            async with asyncio.timeout(START_SECONDS):
                await _first_process(rank, kept, spec, monitored=podman)
        except asyncio.CancelledError:
            kept.kill()
            raise
        except TimeoutError:
            await _abandon(rank)
            raise StartFault(_slow(config, spec)) from None
        if kept.over and (await kept.ended()).code in container.NOT_STARTED and rank.pid == 0:
            said = await _last_words(kept)
            await _abandon(rank)
            raise StartFault(not_run(config, spec, said))
        return rank

    async def sweep(self, cluster: str, node: str) -> list[str]:
        """Ends and removes this Spark's containers of this cluster, and what else carries its marks."""
        config = self._config()
        ended = await ProcessRuntime().sweep(cluster, node)
        environment = container.tool_environment(os.environ)
        if shutil.which(config.engine.runtime, path=environment["PATH"]) is None:
            return ended  # a check before the start says so
        try:
            told = await ask(container.listing(config, cluster, node), TOOL_SECONDS, environment)
            if told.code != 0:
                raise Unanswered(f"{config.engine.runtime}: {told.last_words}")
            for name in told.output.split():
                removed = await ask(container.remove(config, name), TOOL_SECONDS, environment)
                trouble = "" if removed.code == 0 else f", which could not be removed: {removed.last_words}"
                ended.append(f"container {name}{trouble}")
        except Unanswered as silence:
            code = {"code": "engine.runtime-silent"}
            log.error("%s: containers of an earlier life were not looked for: %s", node, silence, extra=code)
        return ended


async def _first_process(rank: ContainerRank, kept: KeptRank, spec: RankSpec, *, monitored: bool) -> None:
    """Waits until the container's first process is seen, or until the runtime has ended."""
    marks = {**spec.marks, container.MARK: container.name_of(spec)}
    pause = FIRST_LOOK
    while not kept.over:
        seen = None
        with suppress(TimeoutError):  # a process stuck in the kernel holds up the reading of the table; look again
            seen = await processes.aside(lambda: processes.first_marked(marks), LOOK_SECONDS)
        if seen is not None:
            rank.found(seen, monitored=monitored)
            return
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, SLOWEST_LOOK)


async def _last_words(kept: KeptRank) -> list[str]:
    """What the runtime said before it ended; somebody else may hold its output open."""
    said: list[str] = []
    with suppress(TimeoutError):
        async with asyncio.timeout(WORDS_SECONDS):
            async for line in kept.lines:
                said.append(line)
    return said


async def _abandon(rank: ContainerRank) -> None:
    rank.kill()
    with suppress(TimeoutError):
        async with asyncio.timeout(TOOL_SECONDS):
            await rank.gone()


async def _kernel_cache(config: Config, image: images.Image, node: str) -> str:
    """The image's own directory of compiled kernels; one that fits another image must never be loaded."""
    directory = Path(config.engine.kernel_cache) / image.kernels
    try:
        await processes.aside(lambda: directory.mkdir(mode=0o755, parents=True, exist_ok=True), LOOK_SECONDS)
    except OSError as error:
        raise StartFault(
            Finding(
                code="engine.kernel-cache",
                severity=Severity.ERROR,
                node=node,
                subject=str(directory)[:300],
                measured=error.strerror or str(error) or "no answer from the disk",
                wanted="a directory that compiled kernels can be kept in",
                fix="Make engine.kernel_cache writable for the daemon, or name another directory.",
            )
        ) from error
    return str(directory)


def _no_runtime(spec: RankSpec, error: OSError) -> Finding:
    return Finding(
        code="engine.start-failed",
        severity=Severity.ERROR,
        node=spec.node,
        subject=f"the container of rank {spec.rank}",
        measured=error.strerror or str(error) or type(error).__name__,
        wanted="a container runtime that starts",
        fix="Run glm-spark check on this Spark.",
    )


def _slow(config: Config, spec: RankSpec) -> Finding:
    return Finding(
        code="engine.container-slow",
        severity=Severity.ERROR,
        node=spec.node,
        subject=f"the container of rank {spec.rank}",
        measured=f"{config.engine.runtime} had not started it after {START_SECONDS:g} s",
        wanted="a container that starts",
        fix=f"See what holds up {config.engine.runtime} ps and the disk with its images.",
    )


_HINTS = (
    (
        "unresolvable CDI devices",
        "Write the CDI specification: sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
    ),
    ("could not select device driver", "Install the NVIDIA container toolkit for docker, or set engine.gpu_options"),
    ("/dev/infiniband", "Load the RDMA drivers (modprobe mlx5_ib), or set fabric.transport to socket on all Sparks"),
    ("rlimit", "Give the daemon's unit LimitMEMLOCK=infinity, or name a lower --ulimit in engine.container_options"),
    ("executable file not found", "Correct engine.command: it is looked for in the image"),
    ("docker daemon", "Start it: systemctl start docker"),
)


def not_run(config: Config, spec: RankSpec, said: list[str]) -> Finding:
    """Pure: podman's or docker's own words on why there is no container, and what to do about those that are known."""
    words = " | ".join(said[-LAST_WORDS:]) or "it said nothing"
    fix = next((fix for text, fix in _HINTS if text in words), "Correct what it names")
    return Finding(
        code="engine.container-refused",
        severity=Severity.ERROR,
        node=spec.node,
        subject=f"the container of rank {spec.rank}",
        measured=f"{config.engine.runtime}: {words}"[:4000],
        wanted="a container that starts",
        fix=f"{fix}.",
    )
