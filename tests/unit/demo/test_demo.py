"""What the demo says and how its verbs find it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.demo import question, record, screen
from tests.demo.__main__ import _with_spark, parser


def _lines(*events: str) -> Iterator[bytes]:
    for event in events:
        yield f"data: {event}\n".encode()
        yield b"\n"


def test_a_streamed_answer_is_thought_and_words() -> None:
    stream = _lines(
        '{"choices": [{"delta": {"role": "assistant"}}]}',
        '{"choices": [{"delta": {"reasoning_content": "so"}}]}',
        '{"choices": [{"delta": {"content": "A cable."}}]}',
        '{"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": {"completion_tokens": 3}}',
        "[DONE]",
    )
    found = [question.pieces(event) for event in question.deltas(stream)]
    assert found == [("", ""), ("so", ""), ("", "A cable."), ("", "")]


def test_a_stream_that_breaks_off_is_not_an_answer() -> None:
    with pytest.raises(RuntimeError, match=r"without \[DONE\]"):
        list(question.deltas(_lines('{"choices": []}')))


def test_an_error_in_the_stream_is_shown_with_its_words() -> None:
    with pytest.raises(RuntimeError, match="rank 1 is gone"):
        list(question.deltas(_lines('{"error": {"message": "rank 1 is gone"}}', "[DONE]")))


def _record(init: int) -> record.Record:
    return record.Record(
        init=init,
        mark=f"{init}:/srv",
        directory="/srv/x",
        room=3,
        names=("spark-1", "spark-2"),
        holders=(4, 5),
        count=2,
    )


def _process(proc: Path, pid: int, words: str) -> None:
    (proc / str(pid)).mkdir(parents=True)
    (proc / str(pid) / "cmdline").write_bytes(words.replace(" ", "\0").encode())


def test_a_running_demo_is_found_by_its_note(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "demo.json"
    record.write(_record(41), file)
    _process(tmp_path / "proc", 41, "python -m tests.enclosure python -m tests.demo")
    assert record.running(file, tmp_path / "proc") == _record(41)
    assert os.listdir(file.parent) == ["demo.json"]


def test_the_note_of_a_demo_that_was_killed_is_no_demo(tmp_path: Path) -> None:
    file = tmp_path / "demo.json"
    assert record.running(file) is None
    record.write(_record(41), file)
    assert record.running(file, tmp_path / "proc") is None
    _process(tmp_path / "proc", 41, "vim notes")
    assert record.running(file, tmp_path / "proc") is None
    file.write_text("{")
    assert record.running(file, tmp_path / "proc") is None


def test_a_line_says_spark_state_rank_and_reason() -> None:
    leader = {
        "state": "recovering",
        "nodes": [{"name": "spark-2", "rank_state": "loading", "phase": "weights"}],
        "reason": {"node": "spark-2", "subject": "rank 1", "measured": "ended by signal 9"},
    }
    assert screen.line("spark-1", leader, leader) == "spark-1: recovering (spark-2: rank 1: ended by signal 9)"
    worker = {"state": "running", "reason": None}
    assert screen.line("spark-2", worker, leader) == "spark-2: running, rank loading: weights"
    assert screen.line("spark-2", None, None) == "spark-2: starting"
    doubted = {"state": "live", "ready": False, "reason": None}
    assert screen.line("spark-1", doubted, doubted) == "spark-1: not ready"


@pytest.mark.parametrize("count", [2, 3])
def test_every_command_that_is_shown_is_one_the_demo_takes(count: int) -> None:
    for command, what in screen.next_things(count):
        words = shlex.split(command)
        assert words[:2] == ["./dev", "demo"]
        assert parser().parse_args(words[2:]).verb == words[2]
        assert what


def test_three_sparks_are_asked_for_by_number() -> None:
    assert parser().parse_args(["--sparks", "3", "--once"]).count == 3
    assert parser().parse_args(["cut", "2", "3", "--twin", "b"]).sparks == [2, 3]
    assert parser().parse_args(["cut"]).sparks == [1, 2]
    history = parser().parse_args(_with_spark(["status", "--history"]))
    assert (history.spark, history.rest) == (1, ["--history"])
    of_the_worker = parser().parse_args(_with_spark(["status", "2", "--json"]))
    assert (of_the_worker.spark, of_the_worker.rest) == (2, ["--json"])


def test_the_live_line_is_shown_as_in_the_journal() -> None:
    line = "GLM-5.3-Flash-EXL3 is now LIVE! on port 8888"
    assert screen.live_line(["<6>armed", f"<6>{line}"]) == line
    assert screen.live_line(["<6>armed"]) is None
