"""The glance at a set, for every state and two widths of a terminal, as it was read and found good by a person.

After a change that is meant: `GOLDEN=renew .venv/bin/pytest tests/unit/cli/test_show.py`, then read the difference.
"""

from __future__ import annotations

import os
from datetime import UTC
from pathlib import Path
from typing import get_args

import pytest
from rich.console import Console

from glm_spark.cli.show import render
from glm_spark.finding import Finding, Severity
from glm_spark.status import LeaderState, Status
from tests.unit.cli import sets

GOLDEN = Path(__file__).parent / "golden"


def text(status: Status, width: int, *, colour: bool = False) -> str:
    console = Console(
        width=width, force_terminal=colour, color_system="standard" if colour else None, highlight=False, markup=False
    )
    with console.capture() as captured:
        console.print(render(status, sets.NOW, UTC))
    return "\n".join(line.rstrip() for line in captured.get().split("\n"))


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("name", sets.EVERY)
def test_the_glance_is_as_it_was_found_good(name: str, width: int) -> None:
    shown = text(sets.EVERY[name], width)
    path = GOLDEN / f"{name}-{width}.txt"
    if os.environ.get("GOLDEN") == "renew":
        path.write_text(shown)
    assert shown == path.read_text()


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("name", sets.EVERY)
def test_it_fits_the_terminal(name: str, width: int) -> None:
    assert max(map(len, text(sets.EVERY[name], width).split("\n"))) <= width


def test_every_state_of_a_leader_has_a_picture() -> None:
    assert {status.state for status in sets.EVERY.values()} == {*get_args(LeaderState), "unknown"}


def test_live_says_where_and_which_model() -> None:
    first, second, *_ = text(sets.EVERY["live"], 100).split("\n")
    assert first == "LIVE for 3 h 12 min, since 2027-01-15 04:47"
    assert second == "GLM-5.3-Flash-EXL3 at http://127.0.0.1:8888/v1"


def test_a_set_that_is_not_live_says_why_and_what_to_do() -> None:
    shown = text(sets.EVERY["waiting"], 100)
    assert "LIVE" not in shown
    assert "http://" not in shown
    assert "why   spark-2: session: no beat for 15.2 s, wanted one every 0.5 s" in shown
    assert "next  Start its daemon: systemctl start glm-spark on spark-2. [cluster.peer-lost]" in shown


def test_a_suspect_set_is_not_called_live() -> None:
    assert text(sets.EVERY["live-suspect"], 100).startswith("not ready for 2 s")


def test_a_load_says_its_phase_its_time_and_whom_it_waits_for() -> None:
    assert "kernels for 40 min; waits for spark-2" in text(sets.EVERY["loading-one-late"], 100)


def test_a_worker_says_whose_loopback_the_endpoint_is_on() -> None:
    shown = text(sets.live(node="spark-2", role="worker"), 100)
    assert "at http://127.0.0.1:8888/v1 on spark-1\n" in shown


def test_a_traceback_does_not_fill_the_glance() -> None:
    finding = sets.LOST.model_copy(update={"measured": "File x, line 3 | " * 200})
    nodes = (sets.spark(0, "ended", findings=(finding,)), sets.spark(1))
    assert len(text(sets.status("recovering", nodes=nodes), 100).split("\n")) < 25


def test_a_set_at_rest_waits_for_nobody() -> None:
    shown = text(sets.EVERY["waiting-stopped"], 100)
    assert "next  glm-spark restart starts it again. [set.stopped]" in shown
    assert "waits for" not in shown


def test_what_a_spark_found_is_told_once() -> None:
    assert text(sets.EVERY["waiting-stopped"], 100).count("enP2p1s0f1np1") == 1
    assert text(sets.EVERY["live-degraded"], 200).count("no address, wanted") == 1


def test_colours_are_only_added_to_the_same_text() -> None:
    import re

    for status in sets.EVERY.values():
        coloured = text(status, 100, colour=True)
        plain = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
        assert [line.rstrip() for line in plain.split("\n")] == text(status, 100).split("\n")


def test_what_a_peer_wrote_does_not_steer_the_terminal() -> None:
    evil = "\x1b[2J\x07[bold]x[/bold]\r"
    finding = Finding(code="a.b", severity=Severity.ERROR, node="spark-2", subject=evil, measured=evil, fix=evil)
    nodes = (sets.spark(0), sets.spark(1, "loading", phase=evil, findings=(finding,)))
    shown = text(sets.status("loading", nodes=nodes, reason=finding), 100)
    assert "\x1b" not in shown
    assert "\r" not in shown
    assert "[bold]x[/bold]" in shown


def test_a_reason_without_a_next_step_has_its_code_beside_it() -> None:
    loading = sets.STOPPED.model_copy(update={"code": "set.loading", "measured": "the ranks load", "fix": ""})
    shown = text(sets.status("loading", reason=loading), 100)
    assert "why  spark-1: the set: the ranks load [set.loading]" in shown
    assert "next" not in shown
