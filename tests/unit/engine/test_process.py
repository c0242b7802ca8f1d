"""Nothing of a rank outlives what it should not, whatever is killed. Seen in /proc, not in the daemon's own words."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from glm_spark.engine import processes
from glm_spark.engine.process import KeptRank, ProcessRuntime
from glm_spark.engine.runtime import Exit, StartFault
from glm_spark.engine.spec import RankSpec
from glm_spark.finding import Severity

Until = Callable[[Callable[[], object]], Awaitable[None]]
SpecOf = Callable[..., RankSpec]
Start = Callable[[RankSpec], Awaitable[KeptRank]]
Daemon = Callable[..., Awaitable[tuple[asyncio.subprocess.Process, int, int]]]

SLEEP = shutil.which("sleep") or ""  # not in /bin where Nix builds

# A child, and a grandchild that left for a session of its own and forgot its environment; named by sys.argv[1].
FAMILY = """
import os, shutil, signal, sys, time
sleep = shutil.which("sleep")
def away(environment):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execve(sleep, ["sleep", sys.argv[1]], environment)
        os._exit(0)
    os.wait()
if os.fork() == 0:
    os.execv(sleep, ["sleep", sys.argv[1]])
away(ENVIRONMENT)
print("family", flush=True)
"""
WAIT = "time.sleep(1000)\n"
DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WAIT

# A daemon that starts one rank and tells its pid and its keeper's.
DAEMON = """
import asyncio, json, os, sys
from glm_spark.engine.process import ProcessRuntime
from glm_spark.engine.spec import RankSpec
async def main():
    rank = await ProcessRuntime().start(RankSpec.model_validate_json(sys.argv[1]))
    if sys.argv[2] == "fork" and os.fork() == 0:
        os.close(1)
        __import__("time").sleep(1000)
    async for line in rank.lines:
        if line == "family":
            print(rank.pid, rank._keeper.pid, flush=True)
asyncio.run(main())
"""


def having(word: str) -> list[int]:
    """Processes with this word on their command line, zombies left out."""
    found = []
    for process in processes.table().values():
        try:
            command = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if process.state != "Z" and word.encode() in command:
            found.append(process.pid)
    return found


@pytest.fixture
def nap(cluster: str) -> str:
    """A duration for sleep that no other process on this machine has on its command line."""
    return f"1000.{int(cluster[1:], 16)}"


@pytest.fixture
def family(rank_of: SpecOf, nap: str) -> Callable[..., RankSpec]:
    def make(then: str = WAIT, environment: str = "os.environ") -> RankSpec:
        spec = rank_of(FAMILY.replace("ENVIRONMENT", environment) + then)
        return spec.model_copy(update={"argv": (*spec.argv, nap)})

    return make


async def heard(rank: KeptRank, line: str) -> None:
    async with asyncio.timeout(10):
        async for said in rank.lines:
            if said == line:
                return
    raise AssertionError("the rank ended")


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Starts ranks of this test's own process, the daemon, and ends them afterwards."""
    started: list[KeptRank] = []

    async def begin(spec: RankSpec) -> KeptRank:
        started.append(await ProcessRuntime().start(spec))
        return started[-1]

    yield begin
    for rank in started:
        rank.kill()
        async with asyncio.timeout(10):
            await rank.gone()


@pytest.fixture
async def daemon() -> AsyncIterator[Daemon]:
    """Starts a daemon of its own: (its process, its rank's pid, its keeper's pid)."""
    started: list[asyncio.subprocess.Process] = []

    async def begin(spec: RankSpec, how: str = "") -> tuple[asyncio.subprocess.Process, int, int]:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", DAEMON, spec.model_dump_json(), how, stdout=asyncio.subprocess.PIPE
        )
        started.append(process)
        assert process.stdout is not None
        async with asyncio.timeout(10):
            rank, keeper = (await process.stdout.readline()).split()
        return process, int(rank), int(keeper)

    yield begin
    for process in started:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.mark.parametrize("then", [WAIT, DEAF], ids=["plain", "deaf"])
@pytest.mark.parametrize("environment", ["os.environ", "{}"], ids=["marked", "unmarked"])
@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
async def test_a_killed_daemon_takes_its_rank_and_all_below_it_along(
    family: Callable[..., RankSpec], nap: str, until: Until, daemon: Daemon, then: str, environment: str, stopped: bool
) -> None:
    process, rank, _ = await daemon(family(then, environment))
    await until(lambda: len(having(nap)) == 4)  # the keeper, the rank, its child, the one that left
    if stopped:
        os.kill(rank, signal.SIGSTOP)
    process.kill()
    await process.wait()
    await until(lambda: not having(nap))


async def test_a_fork_of_the_daemon_does_not_keep_the_rank_alive(
    family: Callable[..., RankSpec], nap: str, until: Until, daemon: Daemon
) -> None:
    process, _, keeper = await daemon(family(), "fork")
    (fork,) = (one.pid for one in processes.table().values() if one.parent == process.pid and one.pid != keeper)
    process.kill()
    await process.wait()
    try:
        await until(lambda: not having(nap))
        assert processes.read(fork) is not None
    finally:
        os.kill(fork, signal.SIGKILL)


async def test_a_stopped_daemon_leaves_its_rank_alone(
    family: Callable[..., RankSpec], nap: str, until: Until, daemon: Daemon
) -> None:
    process, _, _ = await daemon(family())
    process.send_signal(signal.SIGSTOP)
    await asyncio.sleep(0.1)
    assert len(having(nap)) == 4
    process.kill()
    await process.wait()
    await until(lambda: not having(nap))


async def test_a_killed_keeper_takes_the_rank_along_and_the_daemon_ends_the_rest(
    family: Callable[..., RankSpec], nap: str, start: Start
) -> None:
    rank = await start(family())
    await heard(rank, "family")
    assert rank._keeper is not None
    rank._keeper.kill()
    async with asyncio.timeout(10):
        assert await rank.wait() == Exit(None, None)
        await rank.gone()
    assert having(nap) == []


async def test_a_killed_rank_leaves_nothing_and_says_how_it_ended(
    family: Callable[..., RankSpec], nap: str, start: Start
) -> None:
    rank = await start(family(environment="{}"))
    await heard(rank, "family")
    os.kill(rank.pid, signal.SIGKILL)
    async with asyncio.timeout(10):
        ended = await rank.wait()
        assert (ended.code, ended.signal) == (None, signal.SIGKILL)
        assert ended.cause.startswith("killed by somebody")
        await rank.gone()
    assert having(nap) == []


@pytest.mark.parametrize("then", [WAIT, DEAF], ids=["plain", "deaf"])
@pytest.mark.parametrize("stopped", ["rank", "keeper", "nobody"])
async def test_a_kill_ends_everything(
    family: Callable[..., RankSpec], nap: str, start: Start, then: str, stopped: str
) -> None:
    rank = await start(family(then, "{}" if stopped != "keeper" else "os.environ"))
    await heard(rank, "family")
    assert rank._keeper is not None
    if stopped != "nobody":
        os.kill(rank.pid if stopped == "rank" else rank._keeper.pid, signal.SIGSTOP)
    rank.kill()
    async with asyncio.timeout(10):
        await rank.gone()
    assert having(nap) == []


async def test_what_forks_while_it_is_killed_ends_too(rank_of: SpecOf, nap: str, start: Start) -> None:
    spec = rank_of(
        "import os, time\n"
        "print('on', flush=True)\n"
        "for _ in range(40):\n"
        "    if os.fork() == 0: os.setsid()\n"
        "    else: time.sleep(0.001)\n"
        "    if len(os.listdir('/proc')) > 600: time.sleep(1000)\n"
        "time.sleep(1000)\n"
    )
    rank = await start(spec.model_copy(update={"argv": (*spec.argv, nap)}))
    await heard(rank, "on")
    rank.kill()
    async with asyncio.timeout(10):
        await rank.gone()
    assert having(nap) == []


async def test_daemon_and_keeper_killed_together_leave_what_the_next_life_sweeps(
    family: Callable[..., RankSpec], nap: str, until: Until, daemon: Daemon
) -> None:
    spec = family()
    process, rank, keeper = await daemon(spec)
    os.kill(keeper, signal.SIGKILL)
    process.kill()
    await process.wait()
    await until(lambda: rank not in having(nap))  # the kernel ends the rank itself
    ended = await ProcessRuntime().sweep(spec.cluster, spec.node)
    assert having(nap) == []
    assert len(ended) == 2


async def test_a_sweep_ends_its_own_clusters_leftovers_on_this_spark_and_nothing_else(
    rank_of: SpecOf, cluster: str, start: Start
) -> None:
    rank = await start(rank_of("import time; time.sleep(1000)"))

    async def lone(**marks: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(SLEEP, "1000", env=marks, start_new_session=True)

    others = [
        await lone(GLM_SPARK_CLUSTER=f"{cluster}x", GLM_SPARK_NODE="spark-2"),
        await lone(GLM_SPARK_CLUSTER=cluster, GLM_SPARK_NODE="spark-22"),
        await lone(GLM_SPARK_NODE="spark-2"),
    ]
    try:
        # What descends from this daemon is of the current life: the rank, and here even the lone ones.
        assert await ProcessRuntime().sweep(cluster, "spark-2") == []
        orphan = await asyncio.create_subprocess_exec(
            "/bin/sh",
            "-c",
            "setsid sleep 1000 >/dev/null 2>&1 & echo $!",
            env={
                "GLM_SPARK_CLUSTER": cluster,
                "GLM_SPARK_NODE": "spark-2",
                "GLM_SPARK_GENERATION": "3",
                "PATH": os.environ["PATH"],
            },
            stdout=asyncio.subprocess.PIPE,
        )
        pid = int((await orphan.communicate())[0])
        (told,) = await ProcessRuntime().sweep(cluster, "spark-2")
        assert told.startswith(f"process {pid} (")
        assert processes.read(pid) is None or processes.read(pid).state == "Z"  # type: ignore[union-attr]
        assert [other.returncode for other in others] == [None, None, None]
        assert processes.read(rank.pid) is not None
    finally:
        for other in others:
            other.kill()
            await other.wait()


async def test_the_rank_inherits_no_secret_and_no_socket(
    rank_of: SpecOf, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (
        *("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"),
        *("CREDENTIALS_DIRECTORY", "INVOCATION_ID", "JOURNAL_STREAM", "GLM_SPARK_TOKEN", "HF_TOKEN", "PYTHONPATH"),
    ):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("CUDA_HOME", "/usr/local/cuda")
    monkeypatch.setenv("LANG", "C.UTF-8")
    spec = rank_of("import time; time.sleep(1000)", environment={"TF_GLM_KV": "fp8"})
    rank = await start(spec)
    assert rank._keeper is not None
    for pid in (rank.pid, rank._keeper.pid):
        told = dict(
            pair.decode().split("=", 1) for pair in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if pair
        )
        assert spec.marks.items() <= told.items()
        assert told["TF_GLM_KV"] == "fp8"
        assert told["CUDA_HOME"] == "/usr/local/cuda"
        standard = {"PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "CUDA_HOME"}
        assert set(told) - set(spec.marks) - {"TF_GLM_KV"} <= standard


async def test_the_rank_has_three_descriptors_and_default_signals(rank_of: SpecOf, start: Start) -> None:
    leaky = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(leaky, True)
    try:
        rank = await start(rank_of("import time; print('on', flush=True); time.sleep(1000)"))
        await heard(rank, "on")
    finally:
        os.close(leaky)
    assert sorted(os.listdir(f"/proc/{rank.pid}/fd")) == ["0", "1", "2"]
    assert os.readlink(f"/proc/{rank.pid}/fd/0") == "/dev/null"
    shown = dict(line.split(":\t", 1) for line in Path(f"/proc/{rank.pid}/status").read_text().splitlines())
    ignored = int(shown["SigIgn"], 16)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD):
        assert not ignored & 1 << (number - 1)
    assert int(shown["SigBlk"], 16) == 0


async def test_the_keeper_is_small(rank_of: SpecOf, start: Start) -> None:
    rank = await start(rank_of("import time; time.sleep(1000)"))
    assert rank._keeper is not None
    shown = Path(f"/proc/{rank._keeper.pid}/status").read_text()
    assert int(shown.split("VmRSS:")[1].split()[0]) < 12 * 1024


@pytest.mark.parametrize(
    ("program", "ended"),
    [
        ("raise SystemExit(0)", Exit(0, None)),
        ("raise SystemExit(3)", Exit(3, None)),
        ("import os; os.kill(os.getpid(), 6)", Exit(None, 6)),
    ],
)
async def test_how_a_rank_ends_is_told(rank_of: SpecOf, start: Start, program: str, ended: Exit) -> None:
    rank = await start(rank_of(program))
    async with asyncio.timeout(10):
        assert await rank.wait() == ended
        await rank.gone()
    rank.terminate()  # after the end all commands are harmless
    rank.dump()
    rank.kill()


async def test_sigterm_and_sigusr1_reach_the_rank_alone(
    rank_of: SpecOf, nap: str, start: Start, tmp_path: Path
) -> None:
    program = (
        "import os, signal, sys, time\n"
        "def end(*_):\n"
        "    print('ending', flush=True)\n"
        "    while os.path.exists(sys.argv[2]): time.sleep(0.01)\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGUSR1, lambda *_: print('stacks', flush=True))\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "if os.fork() == 0: os.execv('/bin/sleep', ['sleep', sys.argv[1]])\n"
        "print('on', flush=True)\n"
        "while True: time.sleep(1000)\n"
    )
    spec, held = rank_of(program), tmp_path / "held"
    held.touch()
    rank = await start(spec.model_copy(update={"argv": (*spec.argv, nap, str(held))}))
    await heard(rank, "on")
    rank.dump()
    await heard(rank, "stacks")
    rank.terminate()
    await heard(rank, "ending")
    assert len(having(nap)) == 3  # the keeper, the rank, and its child while the rank ends
    held.unlink()
    async with asyncio.timeout(10):
        assert await rank.wait() == Exit(0, None)
        await rank.gone()
    assert having(nap) == []


async def test_a_program_that_cannot_be_started_is_named(
    rank_of: SpecOf, tmp_path: Path, no_stray_descriptors: None
) -> None:
    script = tmp_path / "engine"
    script.write_text("neither a program nor a script\n")
    spec = rank_of("")
    faults = {}
    for program in ("no-such-engine", str(tmp_path / "missing"), str(script), str(tmp_path)):
        with pytest.raises(StartFault) as caught:
            await ProcessRuntime().start(spec.model_copy(update={"argv": (program, "serve")}))
        finding = caught.value.finding
        assert (finding.node, finding.subject, finding.severity) == ("spark-2", program, Severity.ERROR)
        assert finding.fix
        faults[program] = finding.code
    script.chmod(0o755)
    with pytest.raises(StartFault) as caught:
        await ProcessRuntime().start(spec.model_copy(update={"argv": (str(script),)}))
    assert caught.value.finding.code == "engine.program-not-executable"
    assert list(faults.values()) == [
        *("engine.program-missing", "engine.program-missing"),
        *("engine.program-not-executable", "engine.program-not-executable"),
    ]


async def test_many_starts_leave_no_descriptor_behind(rank_of: SpecOf, no_stray_descriptors: None) -> None:
    for _ in range(10):
        rank = await ProcessRuntime().start(rank_of("print('x')"))
        assert [line async for line in rank.lines] == ["x"]
        await rank.gone()
