"""The runner: a fixed order, a deadline each, and no check that hides another."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from glm_spark.config.model import Cluster
from glm_spark.finding import Finding, Severity
from glm_spark.preflight.checks import ALL
from glm_spark.preflight.context import Check, Context
from glm_spark.preflight.runner import run
from tests.unit.fabric.sparks import config

CONTEXT = Context(config=config(), me="spark-1")


def check(name: str, what: object, deadline: float = 5.0) -> Check:
    return Check(id=name, measures="a thing", wants="that it is", advice="", run=what, deadline=deadline)  # type: ignore[arg-type]


def says(code: str) -> Finding:
    return Finding(code=code, severity=Severity.NOTE, node="spark-1", subject="a thing")


async def test_the_order_is_fixed_whoever_is_done_first() -> None:
    first_may_go = asyncio.Event()

    async def slow(_: Context) -> Iterable[Finding]:
        await first_may_go.wait()
        return [says("a.first")]

    async def fast(_: Context) -> Iterable[Finding]:
        first_may_go.set()
        return [says("b.second")]

    def plain(_: Context) -> Iterator[Finding]:
        yield says("c.third")
        yield says("c.fourth")

    told = await run(CONTEXT, [check("slow", slow), check("fast", fast), check("plain", plain)])
    assert [finding.code for finding in told] == ["a.first", "b.second", "c.third", "c.fourth"]


async def test_what_two_checks_say_alike_is_said_once() -> None:
    told = await run(CONTEXT, [check(name, lambda _: [says("a.same")]) for name in ("one", "two")])
    assert len(told) == 1


@pytest.mark.parametrize("kind", ["plain", "coroutine"])
async def test_a_check_that_never_returns_is_unknown_and_the_loop_goes_on(kind: str) -> None:
    release = threading.Event()

    def stuck(_: Context) -> Iterable[Finding]:
        release.wait()
        return []

    async def waiting(_: Context) -> Iterable[Finding]:
        await asyncio.Event().wait()
        return []

    never = check("disk", stuck if kind == "plain" else waiting, deadline=0.1)
    try:
        told = await run(CONTEXT, [never, check("other", lambda _: [says("a.other")])])
    finally:
        release.set()
    assert [(finding.code, finding.severity) for finding in told] == [
        ("preflight.timeout", Severity.UNKNOWN),
        ("a.other", Severity.NOTE),
    ]
    assert told[0].measured == "no answer within 0.1 s"


async def test_a_check_that_fails_itself_is_unknown_and_loud(caplog: pytest.LogCaptureFixture) -> None:
    def broken(_: Context) -> Iterator[Finding]:
        yield says("a.before")
        raise ZeroDivisionError("by nought")

    with caplog.at_level(logging.ERROR):
        (finding,) = await run(CONTEXT, [check("broken", broken)])
    assert (finding.code, finding.severity) == ("preflight.check-failed", Severity.UNKNOWN)
    assert "ZeroDivisionError: by nought" in finding.measured
    assert "ZeroDivisionError" in caplog.text


async def test_the_whole_set_runs_on_this_machine(tmp_path: Path) -> None:
    settings = config().model_copy(update={"cluster": Cluster(token_file=str(tmp_path / "none"))})
    told = await run(Context(config=settings, me="spark-1", environ={}), ALL)
    assert not {finding.code for finding in told} & {"preflight.check-failed", "preflight.timeout"}
    assert {"fabric.not-read", "token.missing"} <= {finding.code for finding in told}


def test_a_program_can_end_while_a_check_is_stuck() -> None:
    program = (
        "import asyncio, threading\n"
        "from glm_spark.preflight.aside import in_a_thread\n"
        "async def main():\n"
        "    try:\n"
        "        async with asyncio.timeout(0.1):\n"
        "            await in_a_thread(threading.Event().wait, 'stuck')\n"
        "    except TimeoutError:\n"
        "        print('went on')\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout == "went on\n"
