"""The owner's program hears of trouble once, again while it lasts, and when it is over."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from glm_spark.config.model import Hook
from glm_spark.finding import Finding, Severity
from glm_spark.service.alerts import Alerts, View
from glm_spark.service.hook import HookRunner, run_once


def reason(code: str, severity: Severity = Severity.ERROR) -> Finding:
    return Finding(code=code, severity=severity, node="spark-2", subject="s", measured="m")


def view(
    state: str,
    ready: bool = False,
    why: Finding | None = None,
    degraded: tuple[str, ...] = (),
) -> View:
    return View("glm", "spark-1", state, ready, degraded, why, 3, 50.0)


class Heard:
    def __init__(self, repeat: float = 3600.0) -> None:
        self.alerts = Alerts()
        self.repeat = repeat
        self.now = 1000.0

    def sees(self, at: View, later: float = 1.0) -> str | None:
        self.now += later
        event = self.alerts.event(at, self.now, self.repeat)
        if event is None:
            return None
        assert event["summary"]
        assert json.loads(json.dumps(event)) == event
        return ("again " if event["repeated"] else "") + str(event["event"])


LIVE = view("live", ready=True)
LOST = view("recovering", why=reason("engine.rank-ended"))
LOADING = view("loading", why=reason("set.loading", Severity.NOTE))


def test_a_loss_is_told_once_and_cleared_when_live_again() -> None:
    heard = Heard()
    states = [
        LIVE,
        LOST,
        LOST,
        view("waiting", why=reason("cluster.daemon-gone")),
        LOADING,
        LIVE,
        LIVE,
    ]
    assert [heard.sees(one) for one in states] == [
        None,
        "not-ready",
        None,
        None,
        None,
        "cleared",
        None,
    ]


def test_what_lasts_is_told_again() -> None:
    heard = Heard(repeat=60)
    heard.sees(LIVE)
    assert [heard.sees(LOST, 25) for _ in range(7)] == [
        "not-ready", None, None, "again not-ready", None, None, "again not-ready",
    ]  # fmt: skip
    never = Heard(repeat=0)
    never.sees(LIVE)
    assert [never.sees(LOST, 1e6) for _ in range(3)] == ["not-ready", None, None]


def test_degraded_is_told_by_what_is_missing() -> None:
    heard = Heard()
    one, two = (
        view("live", True, degraded=("a.b",)),
        view("live", True, degraded=("a.b", "c.d")),
    )
    assert [heard.sees(at) for at in (LIVE, one, one, two, LIVE)] == [
        None,
        "degraded",
        None,
        "degraded",
        "cleared",
    ]


def test_a_loss_that_ends_degraded_is_not_cleared() -> None:
    heard = Heard()
    assert [heard.sees(at) for at in (LIVE, LOST, view("live", True, degraded=("a.b",)))] == [
        None, "not-ready", "degraded",
    ]  # fmt: skip


def test_an_open_breaker_has_a_word_of_its_own() -> None:
    heard = Heard()
    stopped = view("failed", why=reason("set.breaker-open"))
    assert [heard.sees(at) for at in (LIVE, LOST, stopped, LIVE)] == [
        None,
        "not-ready",
        "breaker-open",
        "cleared",
    ]


def test_an_owners_stop_alarms_nobody() -> None:
    heard = Heard()
    stop = reason("set.stopped", Severity.NOTE)
    states = [
        LIVE,
        view("stopping", why=stop),
        view("waiting", why=stop),
        LOADING,
        LIVE,
    ]
    assert [heard.sees(at) for at in states] == [None] * 5
    heard.sees(LOST)
    assert heard.sees(view("waiting", why=stop)) == "cleared"


def test_sparks_that_boot_together_alarm_nobody_for_two_minutes() -> None:
    heard = Heard()
    missing = view("waiting", why=reason("cluster.unreachable"))
    assert [heard.sees(missing, 50) for _ in range(4)] == [
        None,
        None,
        None,
        "not-ready",
    ]
    assert Heard().sees(view("failed", why=reason("engine.settings-differ"))) == "not-ready"


# -- the program -------------------------------------------------------------------------------------------------


def program(tmp_path: Path, body: str) -> str:
    path = tmp_path / "hook"
    path.write_text(f"#!{sys.executable}\nimport json, os, sys, time\nout = {str(tmp_path)!r}\n{body}")
    path.chmod(0o755)
    return str(path)


HERE = {
    "PATH": os.environ["PATH"],
    "NOTIFY_SOCKET": "/run/n",
    "CREDENTIALS_DIRECTORY": "/run/c",
    "GLM": "secret",
}


async def test_the_program_gets_the_event_and_nothing_of_the_daemon(
    tmp_path: Path,
) -> None:
    hook = program(
        tmp_path,
        "json.dump([sys.argv[1:], json.load(sys.stdin), dict(os.environ), os.getcwd()], open(out + '/seen', 'w'))",
    )
    assert await run_once((hook, "--to", "me"), {"event": "cleared"}, 10, HERE) is None
    argv, event, environment, directory = json.loads((tmp_path / "seen").read_text())
    assert argv == ["--to", "me"]
    assert event == {"event": "cleared"}
    assert directory == "/"
    assert set(environment) <= {"PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ"}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            "print('first'); print('no such mailbox'); sys.exit(3)",
            "exit status 3; it said: no such mailbox",
        ),
        ("os.kill(os.getpid(), 9)", "signal 9"),
        ("sys.stdin.close()", None),  # it need not read
        ("print('x' * 1000000)", None),
    ],
)
async def test_how_it_went_is_told(tmp_path: Path, body: str, words: str | None) -> None:
    assert await run_once((program(tmp_path, body),), {"event": "e", "pad": "p" * 200_000}, 10, HERE) == words


async def test_a_program_that_hangs_is_killed_with_what_it_started(
    tmp_path: Path,
) -> None:
    body = (
        "pid = os.fork()\nif pid == 0:\n    time.sleep(600)\n"
        "open(out + '/pids', 'w').write(f'{os.getpid()} {pid}')\nprint('working', flush=True)\ntime.sleep(600)\n"
    )
    said = await run_once((program(tmp_path, body),), {"event": "e"}, 1.0, HERE)
    assert said == "no end within 1 s, so it was killed; it said: working"
    for pid in (tmp_path / "pids").read_text().split():
        await until(lambda pid=int(pid): not _lives(pid))  # type: ignore[misc]


async def until(seen: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not seen():  # noqa: ASYNC110 - what happens in another process has no event
            await asyncio.sleep(0.01)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_one_runs_at_a_time_and_the_latest_event_is_next(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two events come while it runs: the older one is dropped. A program that fails is a warning."""
    os.mkfifo(tmp_path / "go")
    body = (
        "event = json.load(sys.stdin)['event']\nopen(out + '/log', 'a').write(event + '\\n')\n"
        "open(out + '/go').read()\nsys.exit(1)\n"
    )
    runner = HookRunner(lambda: Hook(command=(program(tmp_path, body),)), HERE)
    task = asyncio.create_task(runner.run())
    log = tmp_path / "log"
    try:
        runner.tell({"event": "not-ready"})
        await until(log.exists)
        runner.tell({"event": "degraded"})
        runner.tell({"event": "cleared"})
        await asyncio.to_thread((tmp_path / "go").write_text, "go")
        await until(lambda: len(log.read_text().split()) == 2)
        await asyncio.to_thread((tmp_path / "go").write_text, "go")
        await until(lambda: "cleared: exit status 1" in caplog.text)
    finally:
        task.cancel()
    assert log.read_text().split() == ["not-ready", "cleared"]
    assert "hook.command for the event not-ready: exit status 1" in caplog.text


async def test_a_program_that_is_not_there_is_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    runner = HookRunner(lambda: Hook(command=("/no/such/program",)), HERE)
    task = asyncio.create_task(runner.run())
    try:
        runner.tell({"event": "cleared"})
        await until(lambda: "cannot be started: No such file or directory" in caplog.text)
    finally:
        task.cancel()
