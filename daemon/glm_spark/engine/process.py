"""The process runtime: a rank as a plain process of this Spark, held by a keeper (see keeper.py)."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from glm_spark.engine import cgroup, deaths, processes
from glm_spark.engine.lines import follow
from glm_spark.engine.runtime import Exit, StartFault
from glm_spark.engine.spec import RankSpec
from glm_spark.finding import Finding, Severity

KEEPER = Path(__file__).with_name("keeper.py")
START_SECONDS = 10.0  # a keeper is up in 0.02 s; only a disk that does not answer takes this long
LOOK_SECONDS = 5.0  # for one reading of the process table
KEEPER_SECONDS = 1.0  # how often a keeper that was told to kill, and still holds its tree, is looked at
FIRST_LOOK = 0.02
SLOWEST_LOOK = 0.5
SWEEP_SECONDS = 10.0
OUTPUT_SECONDS = 1.0  # for the end of the output once everything is gone

# What a rank needs of this Spark's own environment: to live, to find CUDA and its compiler, and to put temporary
# files where the service manager wants them. Nothing else is inherited: no token, no credential, no socket.
INHERITED = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TZ",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_CACHE_PATH",
)
FALLBACK_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def environment_of(spec: RankSpec, here: Mapping[str, str]) -> dict[str, str]:
    """Pure: the whole environment of a rank, from what it is told and what this daemon runs with."""
    inherited = {name: here[name] for name in INHERITED if here.get(name)}
    return {"PATH": FALLBACK_PATH, **inherited, **spec.environment, **spec.marks}


class KeptRank:
    """A rank held by a keeper. Its status pipe is watched by the loop, so its end is known at once.

    Should the keeper itself be killed, the kernel ends the rank, and what the rank left is found by its control group
    where it has one, and by its marks. Only without a group could something escape: a process that left the session
    and also threw its environment away.
    """

    def __init__(self, spec: RankSpec, commands: int, status: int, group: Path | None = None) -> None:
        self._spec = spec
        self._group = group
        self._commands = commands
        self._status = status
        self._loop = asyncio.get_running_loop()
        self._text = b""
        self._keeper: asyncio.subprocess.Process | None = None
        self._told_gone = False
        self._killed = False
        self._since = time.monotonic()
        self.left = False  # the keeper's last command did not succeed, or it did not come to it
        self._deadline: asyncio.TimerHandle | None = None
        self.started: asyncio.Future[int] = self._loop.create_future()
        self._exit: asyncio.Future[Exit] = self._loop.create_future()
        self._silent = asyncio.Event()  # the keeper is gone: it said so, or was ended itself
        self._loop.add_reader(status, self._read_status)

    def follow(self, keeper: asyncio.subprocess.Process) -> None:
        self._keeper = keeper

    @property
    def pid(self) -> int:
        """The rank's own process; 0 before it was started."""
        return self.started.result() if self.started.done() and not self.started.exception() else 0

    @property
    def lines(self) -> AsyncIterator[str]:
        assert self._keeper is not None
        assert self._keeper.stdout is not None
        return follow(self._keeper.stdout)

    @property
    def over(self) -> bool:
        """The program has ended."""
        return self._exit.done()

    async def ended(self) -> Exit:
        """How the program ended, the moment it did."""
        return await asyncio.shield(self._exit)

    async def wait(self) -> Exit:
        exit = await self.ended()
        return await deaths.explained(exit, self.pid, self._since, by_us=self._killed)

    async def gone(self) -> None:
        await self._silent.wait()
        self.left = self.left or not self._told_gone
        pause = FIRST_LOOK
        while not self._told_gone:
            # Without the keeper's word: end what it left, by its group and its marks, until nothing is left to end.
            try:
                cgroup.kill(self._group)
                self._told_gone = not await end_marked(self._spec.marks, frozenset())
            except TimeoutError:  # a process stuck in the kernel holds up the reading of the table; look again
                pause = SLOWEST_LOOK
            await asyncio.sleep(pause)
            pause = min(pause * 2, SLOWEST_LOOK)
        cgroup.remove(self._group)
        if self._keeper is not None:
            # It has ended already. Newer Pythons wait for the end of its output too, which an outsider may hold open.
            with suppress(TimeoutError):
                async with asyncio.timeout(OUTPUT_SECONDS):
                    await self._keeper.wait()

    def terminate(self) -> None:
        self._command(b"T")

    def dump(self) -> None:
        self._command(b"U")

    def kill(self) -> None:
        self._killed = self._killed or not self._exit.done()
        self._command(b"K")
        if self._deadline is None and not self._silent.is_set():
            self._deadline = self._loop.call_later(KEEPER_SECONDS, self._relieve_keeper)

    def _relieve_keeper(self) -> None:
        """A stopped keeper cannot do its work: without it the rank dies, and `gone` ends the rest.

        A working one is left alone: freeing a rank's 100 GiB takes its time, and only the keeper sees the exit status.
        """
        self._deadline = self._loop.call_later(KEEPER_SECONDS, self._relieve_keeper)
        if self._keeper is not None and self._keeper.returncode is None:
            seen = processes.read(self._keeper.pid)
            if seen is not None and seen.state in "Tt":
                self._keeper.kill()

    def _command(self, letter: bytes) -> None:
        # EPIPE: the keeper is gone, and all it held with it. EAGAIN: it has not read thousands of commands.
        if self._commands >= 0:
            with suppress(BrokenPipeError, BlockingIOError):
                os.write(self._commands, letter)

    def _read_status(self) -> None:
        try:
            data = os.read(self._status, 4096)
        except BlockingIOError:
            return
        if not data:
            self._close()
            return
        *told, self._text = (self._text + data).split(b"\n")
        for line in told:
            self._take(line.decode().split())

    def _take(self, words: list[str]) -> None:
        match words:
            case ["started", pid]:
                self.started.set_result(int(pid))
            case ["failed", number] if not self.started.done():
                self._not_started(OSError(int(number), os.strerror(int(number))))
            case ["ended", code, number]:
                self._exit.set_result(Exit(None if code == "-" else int(code), None if number == "-" else int(number)))
            case ["gone" | "left"]:
                self._told_gone, self.left = True, words == ["left"]

    def _close(self) -> None:
        """The keeper is gone. Without its word on the rank, how that one ended is not known."""
        self._loop.remove_reader(self._status)
        os.close(self._status)
        os.close(self._commands)
        self._commands = -1
        if self._deadline is not None:
            self._deadline.cancel()
        if not self.started.done():
            self._not_started(ChildProcessError("the keeper ended before the rank was started"))
        if not self._exit.done():
            self._exit.set_result(Exit(None, None))
        self._silent.set()

    def _not_started(self, error: OSError) -> None:
        self.started.set_exception(error)
        self.started.exception()  # seen: `start` may have given up on it already


async def end_marked(marks: Mapping[str, str], spare: frozenset[int]) -> list[processes.Process]:
    """Kill what carries the marks, and all below it; returns what was found. TimeoutError: /proc does not answer."""

    def look_and_kill() -> list[processes.Process]:
        found = processes.marked(marks, spare)
        for process in found:
            processes.kill(process)
        return found

    return await processes.aside(look_and_kill, LOOK_SECONDS)


@dataclass(frozen=True, slots=True)
class Program:
    """What a keeper runs: the words and their whole environment, and the keeper's own options."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    group: Path | None = None  # an empty cgroup v2 group for it
    last: Sequence[str] = ()  # run when all of it has ended


async def keep(spec: RankSpec, program: Program, explain: Callable[[RankSpec, OSError], Finding]) -> KeptRank:
    """Starts a program under a keeper. Must be called on the main thread's loop. Raises StartFault."""
    commands_read, commands_write = os.pipe()
    status_read, status_write = os.pipe()
    os.set_blocking(commands_write, False)
    os.set_blocking(status_read, False)
    rank = KeptRank(spec, commands_write, status_read, program.group)
    options = [f"--last={word}" for word in program.last]
    if program.group is not None:
        options.append(f"--cgroup={program.group}")
    try:
        keeper = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", str(KEEPER), str(commands_read), str(status_write), str(os.getpid())),
            *(*options, "--", *program.argv),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=dict(program.environment),
            pass_fds=(commands_read, status_write),
            start_new_session=True,
        )
        rank.follow(keeper)
    except OSError as error:
        raise StartFault(explain(spec, error)) from error
    finally:
        os.close(commands_read)
        os.close(status_write)
    try:
        async with asyncio.timeout(START_SECONDS):
            await asyncio.shield(rank.started)
    except OSError as error:  # TimeoutError is one
        rank.kill()
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS):
                await rank.gone()
        raise StartFault(explain(spec, error)) from error
    except asyncio.CancelledError:
        rank.kill()
        raise
    return rank


class ProcessRuntime:
    """Runs ranks as processes, each in a control group of its own where systemd handed one to the daemon."""

    async def start(self, spec: RankSpec) -> KeptRank:
        """Must be called on the main thread's loop. Raises StartFault with a Finding that names the program."""
        group = cgroup.make(f"rank-{spec.generation}")
        return await keep(spec, Program(spec.argv, environment_of(spec, os.environ), group), start_finding)

    async def sweep(self, cluster: str, node: str) -> list[str]:
        """Ends what carries this cluster's and this Spark's marks and does not descend from this daemon.

        Returns when all of it is gone. What SIGKILL does not end in time is named as such, and never raised: one
        process that hangs in a driver must not keep the daemon from telling so.
        """
        marks = {"GLM_SPARK_CLUSTER": cluster, "GLM_SPARK_NODE": node}
        ended: dict[tuple[int, int], str] = {}
        left: list[processes.Process] = []
        pause = FIRST_LOOK
        try:
            async with asyncio.timeout(SWEEP_SECONDS):
                while left := await end_marked(marks, frozenset({os.getpid()})):
                    ended |= {(one.pid, one.began): f"process {one.pid} ({one.name})" for one in left}
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, SLOWEST_LOOK)
        except TimeoutError:
            for one in left:
                ended[one.pid, one.began] += f", which SIGKILL has not ended within {SWEEP_SECONDS:g} s"
        return list(ended.values())


def start_finding(spec: RankSpec, error: OSError) -> Finding:
    """Pure: why a rank's program could not be started, in words, with the next step."""
    program = spec.argv[0]
    code, fix = "engine.start-failed", "See the daemon's journal on this Spark."
    measured = error.strerror or str(error) or type(error).__name__
    match error.errno:
        case errno.ENOENT:
            code, fix = "engine.program-missing", "Install the engine, or name its program in engine.command."
            measured = "no such program" if "/" in program else "no such program in PATH"
        case errno.EACCES:
            code, fix = "engine.program-not-executable", f"Make it executable (chmod +x {program})."
            measured = "may not be executed"
        case errno.ENOEXEC:
            code, fix = (
                "engine.program-not-executable",
                "Name a program for this Spark's processor, or a script with #!.",
            )
            measured = "is no program this system can run"
    if isinstance(error, TimeoutError):
        measured, fix = f"did not start within {START_SECONDS:g} s", "Look at the disk that holds the program."
    return Finding(
        code=code,
        severity=Severity.ERROR,
        node=spec.node,
        subject=program[:300],
        measured=measured,
        wanted="a program that starts",
        fix=fix,
    )
